"""A forward that does again what the one before decided gives what deciding anew gives: bit for bit, row for row.

The models of ``replay_nets`` differ from one forward to the next in something that a decision follows from.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations.runtime import replay

from .replay_nets import NETS, WIDTH, Alternating, Net, Repeating, Swapping, input_of

Step = Callable[[nn.Module, int], Tensor]


def _plain(model: nn.Module, step: int) -> Tensor:
    return model(input_of(step), step).square().mean()  # type: ignore[no-any-return]


def _trained(model: nn.Module, steps: Sequence[int], step: Step) -> list[tuple[list[Tensor], list[object]]]:
    """Gradients and rows of each step."""
    torch.manual_seed(0)
    found = []
    for number in steps:
        model.zero_grad()
        step(model, number).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        found.append((gradients, list(integrations.compression(model).report().rows)))
    return found


def _same(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, step: Step = _plain, level: str = "L1", steps: int = 6
) -> None:
    """Trains twins, of which one decides everything anew."""
    anew = copy.deepcopy(model)
    handles = [integrations.compress_model(twin, level, min_bytes=0) for twin in (model, anew)]
    found = _trained(model, range(steps), step)
    with monkeypatch.context() as patch:
        patch.setattr(replay, "FORCED_OFF", True)
        expected = _trained(anew, range(steps), step)
    for number, ((gradients, rows), (others, other_rows)) in enumerate(zip(found, expected, strict=True)):
        assert rows == other_rows, number
        assert len(gradients) == len(others) > 0
        assert all(torch.equal(mine, other) for mine, other in zip(gradients, others, strict=True)), number
    del handles


@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__.lower())
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_what_is_done_again_is_what_would_be_decided(
    kind: type[Net], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    _same(kind(), monkeypatch, level=level)


@pytest.mark.parametrize("skips", ["the backward", "one reader", "none"])
def test_what_several_read_is_restored_once(skips: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In C as in Python: nobody is lent what others changed or what is not awaited, and nothing stays."""

    def step(model: nn.Module, number: int) -> Tensor:
        if skips == "the backward":
            _plain(model, number)
        if skips == "one reader":
            model.second.requires_grad_(number % 2 == 0)  # type: ignore[operator, union-attr]
        return _plain(model, number)

    class Reading(Net):
        def between(self, x: Tensor, step: int) -> Tensor:
            return self.first(x) * self.second(x) + self.first(x.t().contiguous().t())  # type: ignore[no-any-return]

    _same(Reading(), monkeypatch, step)


def test_after_an_exception_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        with monkeypatch.context() as patch:
            if number % 2:
                patch.setattr(model, "between", _raising)
                with pytest.raises(ZeroDivisionError):
                    model(input_of(number), number)
        return _plain(model, number)

    _same(Net(), monkeypatch, step)


def _raising(x: Tensor, step: int) -> Tensor:
    raise ZeroDivisionError


def test_batches_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same strides."""

    def step(model: nn.Module, number: int) -> Tensor:
        return model(input_of(number)[: 8 - number % 3], number).square().mean()  # type: ignore[no-any-return]

    _same(Repeating(), monkeypatch, step)


def test_gradients_off_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        for parameter in model.first.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(number % 2 == 0)
        return _plain(model, number)

    _same(Net(), monkeypatch, step)


def test_autocast_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 1):
            return _plain(model, number)

    _same(Alternating(), monkeypatch, step)


def test_several_forwards_before_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    _same(
        Alternating(),
        monkeypatch,
        lambda model, number: _plain(model, number) + _plain(model, number + 1) * (number + 1),
    )


def test_a_graph_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        loss = _plain(model, number)
        loss.backward(retain_graph=True)
        return loss

    _same(Repeating(), monkeypatch, step)


def test_double_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        x = input_of(number).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x, number).square().mean(), x, create_graph=True)
        return gradient.square().sum()

    _same(Swapping(), monkeypatch, step)


def test_two_threads_share_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes another way through the model at the same time, and has the gradients of its own."""
    torch.manual_seed(1)
    model = Alternating()
    plain = copy.deepcopy(model)
    integrations.compress_model(model, "L1", min_bytes=0)
    failures: list[str] = []

    def run(start: int) -> None:
        for number in range(start, start + 30):
            x = input_of(number).requires_grad_()
            y = input_of(number).requires_grad_()
            (found,) = torch.autograd.grad(model(x, number).square().mean(), x)
            (expected,) = torch.autograd.grad(plain(y, number).square().mean(), y)
            if not (found - expected).norm() < 0.5 * expected.norm():  # another function's is off by more than itself
                failures.append(f"{number}: {(found - expected).norm() / expected.norm()}")

    threads = [threading.Thread(target=run, args=(start,)) for start in (0, 1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_seeds_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    integrations.compress_model(model, "L1", min_bytes=0, seed=2**64 - 1)
    for number in range(3):
        model(input_of(number)).sum().backward()


class _Straying(nn.Module):
    """Does something that is not planned, in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        self.strays = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers[0](x)
        return self.layers[1:](x * 1.5 if self.strays else x)  # type: ignore[no-any-return]


@pytest.mark.filterwarnings("ignore:.*not the one that was")
def test_a_forward_that_leaves_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saves is of no value of the plan, whose stores are not for it; the next forward has them again."""
    torch.manual_seed(1)
    model = _Straying()
    anew = copy.deepcopy(model)
    x = torch.randn(64, WIDTH)
    plan = integrations.plan(model, (x,), memory=0.7, error=0.0)
    assert plan.segments  # so that each forward has a tape, which sees that
    found: list[list[object]] = []
    for twin, off in ((model, False), (anew, True)):
        integrations.apply(twin, plan)
        with monkeypatch.context() as patch:
            patch.setattr(replay, "FORCED_OFF", off)
            steps: list[object] = []
            for number in range(6):
                twin.zero_grad()
                twin.strays = number in (2, 3)
                twin(x + number).square().mean().backward()
                steps += [parameter.grad.sum().item() for parameter in twin.parameters()]  # type: ignore[union-attr]
                steps += integrations.compression(twin).report().rows
            found.append(steps)
    assert found[0] == found[1]


@pytest.mark.parametrize("error", [0.0, 0.1])
def test_a_plan(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """In both states of the gradients, of which each has a plan of its own."""
    torch.manual_seed(1)
    model = nn.Sequential(
        *(layer for _ in range(6) for layer in (nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU()))
    )
    anew = copy.deepcopy(model)
    x = torch.randn(64, WIDTH)
    plan = integrations.plan(model, (x,), memory=0.5, error=error)
    gradients: list[list[Tensor]] = []
    for twin, off in ((model, False), (anew, True)):
        integrations.apply(twin, plan)
        with monkeypatch.context() as patch:
            patch.setattr(replay, "FORCED_OFF", off)
            steps = []
            for number in range(6):
                if number % 3 == 0:
                    twin.zero_grad()
                twin(x + number).square().mean().backward()
                steps += [parameter.grad.clone() for parameter in twin.parameters()]  # type: ignore[union-attr]
            gradients.append(steps)
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
