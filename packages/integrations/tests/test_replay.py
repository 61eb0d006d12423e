"""A forward that does again what the one before decided gives what deciding anew gives: bit for bit, row for row.

Each model here differs from one forward to the next in something that a decision follows from.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.saved import replay
from integrations.saved import session as sessions

_WIDTH = 64
Step = Callable[[nn.Module, int], Tensor]


def _input(step: int) -> Tensor:
    return torch.randn(8, _WIDTH, generator=torch.Generator().manual_seed(step))


def _plain(model: nn.Module, step: int) -> Tensor:
    return model(_input(step), step).square().mean()  # type: ignore[no-any-return]


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


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.norm = nn.LayerNorm(_WIDTH)

    def between(self, x: Tensor, step: int) -> Tensor:
        return x

    def forward(self, x: Tensor, step: int) -> Tensor:
        return self.second(self.between(self.norm(self.first(x)), step))  # type: ignore[no-any-return]


class _Alternating(_Net):
    """Another function of the same shapes."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return (F.relu, F.silu, torch.sigmoid)[step % 3](x)


class _Branching(_Net):
    """A branch that follows from the data."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return F.gelu(x) if bool(x.sum() > 0) else x.tanh() * x


class _Repeating(_Net):
    """A module that is called another number of times, with the same weights."""

    def between(self, x: Tensor, step: int) -> Tensor:
        for _ in range(1 + step % 3):
            x = self.first(x).relu()
        return x


class _Swapping(_Net):
    """Modules without parameters, in another order: what they save has noise of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.GELU(), nn.GELU()

    def between(self, x: Tensor, step: int) -> Tensor:
        one, other = (self.left, self.right) if step % 2 else (self.right, self.left)
        return other(self.second(one(x)))  # type: ignore[no-any-return]


class _Crossing(_Net):
    """The same functions of the same shapes, of which other arguments are given."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = x.sigmoid()
        z = y.tanh()
        return y * z if step % 2 else z * (z if step % 4 else y)


class _Narrowing(_Net):
    """A view of the same shape that lies elsewhere in the memory that was saved."""

    def between(self, x: Tensor, step: int) -> Tensor:
        wide = torch.cat([x, x * 2], 1)
        start = _WIDTH * (step % 2)
        return self.second(wide[:, :_WIDTH]) + self.first(wide[:, start : start + _WIDTH])  # type: ignore[no-any-return]


class _Detaching(_Net):
    """What needs a gradient in one step and none in the next; what somebody else keeps, and nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.rand(8, _WIDTH))

    def between(self, x: Tensor, step: int) -> Tensor:
        other = self.mask if step % 2 else torch.rand(8, _WIDTH)
        return x * other + (x.detach() if step % 3 else x) * x


class _InPlace(_Net):
    """A tensor that is changed between two that save it, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        y = x.sigmoid().detach()
        z = x * y
        if step % 2:
            y = y.add_(1)
            return z.sum() + x.detach() * self.first(y)
        return z + x * y


class _Overwriting(_Net):
    """Memory that is changed in place between two that save it, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        h = x.detach().clone()
        y = self.first(h)
        if step % 2:
            h.add_(1)
        return x + y * self.second(h)  # type: ignore[no-any-return]


class _Exposing(_Net):
    """The same, where its version does not move."""

    def between(self, x: Tensor, step: int) -> Tensor:
        h = x.detach().clone()
        y = self.first(h)
        if step % 2:
            h.data.add_(1)
        return x + y * self.second(h)  # type: ignore[no-any-return]


class _Sliding(_Net):
    """Rows that lie elsewhere in the memory that was saved."""

    def between(self, x: Tensor, step: int) -> Tensor:
        rows = torch.cat([x, x * 2])
        start = len(x) * (step % 2)
        return self.second(rows[: len(x)]) + self.first(rows[start : start + len(x)])  # type: ignore[no-any-return]


class _Cutting(_Net):
    """A part of a large memory in the place of a whole one."""

    def between(self, x: Tensor, step: int) -> Tensor:
        large = torch.cat([x * 2] * (16 if step % 2 else 1)).exp()
        return x * large[: len(x)].log()


class _Powers(_Net):
    """An argument by which the rule of a function holds, or not."""

    def between(self, x: Tensor, step: int) -> Tensor:
        x = x.pow(2 + step % 2)
        return F.elu(x, 1.0 if step % 3 else 0.1)


class _Casting(_Net):
    """A dtype that changes."""

    def between(self, x: Tensor, step: int) -> Tensor:
        kind = torch.bfloat16 if step % 2 else torch.float32
        return F.silu(x.to(kind)).float()


class _Dropping(_Net):
    """Dropout that is switched off in between."""

    def between(self, x: Tensor, step: int) -> Tensor:
        return F.dropout(x, 0.5, self.training and step % 3 != 1)


class _Checkpointing(_Net):
    """A checkpoint inside, in some steps."""

    def between(self, x: Tensor, step: int) -> Tensor:
        if step % 2:
            return checkpoint(lambda given: self.second(F.gelu(given)), x, use_reentrant=False)  # type: ignore[no-any-return]
        return self.second(F.gelu(x))  # type: ignore[no-any-return]


class _Hooking(_Net):
    """Saved-tensor hooks of others that come and go."""

    def between(self, x: Tensor, step: int) -> Tensor:
        if step % 2:
            with saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
                x = F.gelu(self.first(x))
        return F.gelu(self.second(x))


_NETS = [
    _Net, _Alternating, _Branching, _Repeating, _Swapping, _Crossing, _Narrowing, _Detaching, _InPlace, _Casting,
    _Dropping, _Checkpointing, _Hooking, _Overwriting, _Exposing, _Sliding, _Cutting, _Powers,
]  # fmt: skip


@pytest.mark.parametrize("kind", _NETS, ids=lambda kind: kind.__name__.strip("_").lower())
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_what_is_done_again_is_what_would_be_decided(
    kind: type[_Net], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    _same(kind(), monkeypatch, level=level)


def test_a_second_forward_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing above would be asked of what is done again."""
    model = nn.Sequential(*(layer for _ in range(3) for layer in (nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH))))
    integrations.compress_model(model, "L1", min_bytes=0)
    decided: list[str] = []
    anew, store = sessions.Session._pack_anew, sessions.Session.store
    monkeypatch.setattr(
        sessions.Session,
        "_pack_anew",
        lambda self, tensor, *rest: (decided.append("anew"), anew(self, tensor, *rest))[1],
    )
    monkeypatch.setattr(
        sessions.Session, "store", lambda self, tensor, *rest: (decided.append("stored"), store(self, tensor, *rest))[1]
    )
    model(_input(0)).sum().backward()
    assert decided
    decided.clear()
    model(_input(1)).sum().backward()
    assert decided == []


def test_after_an_exception_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        with monkeypatch.context() as patch:
            if number % 2:
                patch.setattr(model, "between", _raising)
                with pytest.raises(ZeroDivisionError):
                    model(_input(number), number)
        return _plain(model, number)

    _same(_Net(), monkeypatch, step)


def _raising(x: Tensor, step: int) -> Tensor:
    raise ZeroDivisionError


def test_batches_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same strides."""

    def step(model: nn.Module, number: int) -> Tensor:
        return model(_input(number)[: 8 - number % 3], number).square().mean()  # type: ignore[no-any-return]

    _same(_Repeating(), monkeypatch, step)


def test_gradients_off_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        for parameter in model.first.parameters():  # type: ignore[union-attr]
            parameter.requires_grad_(number % 2 == 0)
        return _plain(model, number)

    _same(_Net(), monkeypatch, step)


def test_autocast_that_comes_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 1):
            return _plain(model, number)

    _same(_Alternating(), monkeypatch, step)


def test_several_forwards_before_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    _same(
        _Alternating(),
        monkeypatch,
        lambda model, number: _plain(model, number) + _plain(model, number + 1) * (number + 1),
    )


def test_a_graph_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        loss = _plain(model, number)
        loss.backward(retain_graph=True)
        return loss

    _same(_Repeating(), monkeypatch, step)


def test_double_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        x = _input(number).requires_grad_()
        (gradient,) = torch.autograd.grad(model(x, number).square().mean(), x, create_graph=True)
        return gradient.square().sum()

    _same(_Swapping(), monkeypatch, step)


def test_two_threads_share_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each goes another way through the model at the same time, and has the gradients of its own."""
    torch.manual_seed(1)
    model = _Alternating()
    plain = copy.deepcopy(model)
    integrations.compress_model(model, "L1", min_bytes=0)
    failures: list[str] = []

    def run(start: int) -> None:
        for number in range(start, start + 30):
            x = _input(number).requires_grad_()
            y = _input(number).requires_grad_()
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
    model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH))
    integrations.compress_model(model, "L1", min_bytes=0, seed=2**64 - 1)
    for number in range(3):
        model(_input(number)).sum().backward()


class _Straying(nn.Module):
    """Does something that is not planned, in some steps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.GELU())))
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
    x = torch.randn(64, _WIDTH)
    plan = integrations.plan(model, (x,), memory=0.7, error=0.1)
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
        *(layer for _ in range(6) for layer in (nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.GELU()))
    )
    anew = copy.deepcopy(model)
    x = torch.randn(64, _WIDTH)
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
