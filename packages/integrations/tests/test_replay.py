"""A forward that does again what the one before decided gives what deciding anew gives: bit for bit, row for row.

The models of ``replay_nets`` differ from one forward to the next in something that a decision follows from.
"""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from actcore import replay as native
from integrations import checkpoint
from integrations._runtime import replay
from integrations._runtime import session as sessions

from .replay_nets import NETS, WIDTH, Alternating, Net, Repeating, Swapping, Thinning

Step = Callable[[nn.Module, int], Tensor]


def _input(step: int) -> Tensor:
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


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


@pytest.mark.parametrize("kind", NETS, ids=lambda kind: kind.__name__.lower())
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_what_is_done_again_is_what_would_be_decided(
    kind: type[Net], level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    _same(kind(), monkeypatch, level=level)


class Leaking(nn.Module):
    """A mask of bools, and a pooling that asks for a shape alone."""

    def __init__(self, size: int) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.avg_pool1d(torch.where(x > 0, x, x * 0.1), 1)


class Normed(nn.Module):
    """Norms whose inputs are stored as they are normalised."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(-1, 4, 4, WIDTH // 16)
        return self.group(self.batch(images)).view(x.shape)  # type: ignore[no-any-return]


class Attending(nn.Module):
    """Attention of what one product makes, indices, an exponent that a rule follows from, and a mask of numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.three = nn.Linear(size, 3 * size)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.three(x).view(1, len(x), 3, 2, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(x.shape)
        y = nn.functional.dropout(y, 0.25) + y.index_select(0, torch.arange(len(y)))
        return y * y.pow(2).mean(-1, keepdim=True)


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Grows by each saved tensor that is decided, or stored, by Python."""
    monkeypatch.setattr(replay, "FORCED_OFF", False)
    found: list[str] = []
    anew, store = sessions.Session._pack_anew, sessions.Session.store
    monkeypatch.setattr(
        sessions.Session,
        "_pack_anew",
        lambda self, tensor, *rest: (found.append("anew"), anew(self, tensor, *rest))[1],
    )
    monkeypatch.setattr(
        sessions.Session, "store", lambda self, tensor, *rest: (found.append("stored"), store(self, tensor, *rest))[1]
    )
    return found


def test_a_second_forward_decides_nothing(decided: list[str]) -> None:
    """Else nothing above would be asked of what is done again."""
    layers = (
        *(nn.LayerNorm, lambda size: nn.Linear(size, size), lambda _: nn.ReLU(), lambda _: nn.GELU()),
        *(Leaking, Normed, Attending),
    )
    model = nn.Sequential(*(layer(WIDTH) for _ in range(3) for layer in layers))
    integrations.compress_model(model, "L1", min_bytes=0)
    model(_input(0)).sum().backward()
    assert decided
    decided.clear()
    model(_input(1)).sum().backward()
    assert decided == []


def test_what_has_changed_for_good_is_decided_once(decided: list[str]) -> None:
    """Also where only the stored form tells, as that of a mask with another value: the next forward decides anew."""
    model = Thinning()
    model.norm = nn.Identity()  # type: ignore[assignment]
    integrations.compress_model(model, "L1", min_bytes=0)
    for number in (0, 3, 1, 2, 4):  # the rates are 0.1, 0.1, 0.5, 0.5, 0.5
        decided.clear()
        model(_input(number), number).sum().backward()
        assert bool(decided) == (number in (0, 1, 2)), number


def test_what_a_plan_recomputes_is_decided_once(decided: list[str]) -> None:
    """What the repetition reads is stored by Python in each forward; nothing else is."""
    model = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU()))).train()
    made = checkpoint.plan(model, _input(0).repeat(64, 1))
    assert made.segments
    checkpoint.apply(model, made)
    for number in range(3):
        decided.clear()
        model(_input(number).repeat(64, 1)).sum().backward()
    assert 0 < decided.count("stored") <= decided.count("anew") < 8


def test_a_mode_and_a_profiler_see_the_codec() -> None:
    """It is called without torch's dispatcher where neither is."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    integrations.compress_model(model, "L1", min_bytes=0)
    for number in range(3):
        model(_input(number)).sum().backward()
    seen: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noted():
        model(_input(3)).sum().backward()
    assert "actcore.group_affine_compress.default" in seen
    assert "actcore.group_affine_decompress.default" in seen
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        model(_input(4)).sum().backward()
    names = {event.key for event in profiled.key_averages()}
    assert {"actcore::group_affine_compress", "actcore::group_affine_decompress"} <= names


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


class _Wrapped(Tensor):
    """Counts what is asked of it."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        _Wrapped.seen += 1
        return super().__torch_function__(func, types, args, kwargs)


def test_another_class_of_tensors_sees_nothing_of_it(decided: list[str]) -> None:
    model = Net()
    wrapped = torch.rand(8, WIDTH).as_subclass(_Wrapped)
    model.between = lambda x, step: torch.mul(x, wrapped).as_subclass(Tensor)  # type: ignore[method-assign, assignment]
    integrations.compress_model(model, "L1", min_bytes=0)
    asked = []
    for number in range(4):
        before = _Wrapped.seen
        model(_input(number), number).sum().backward()
        asked.append(_Wrapped.seen - before)
    assert len(set(asked)) == 1, asked


def test_a_session_that_cannot_be_entered_is_let_go() -> None:
    model = nn.Linear(WIDTH, WIDTH)
    integrations.compress_model(model, "L1", min_bytes=0)
    left: list[weakref.ref[sessions.Session]] = []
    enter = sessions.Session.__enter__

    def noting(self: sessions.Session) -> sessions.Session:
        left.append(weakref.ref(self))
        return enter(self)

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch, torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            patch.setattr(sessions.Session, "__enter__", noting)
            with pytest.raises(RuntimeError, match="not here"):
                model(_input(0))
        assert [reference() for reference in left] == [None]
    finally:
        gc.enable()


def test_a_hook_takes_no_other_replay() -> None:
    hook = native.Pack(lambda tensor: "whole", lambda tensor: "anew")
    hook.replay = object()  # type: ignore[assignment]
    assert hook(torch.ones(2)) == "whole"


def test_after_an_exception_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(model: nn.Module, number: int) -> Tensor:
        with monkeypatch.context() as patch:
            if number % 2:
                patch.setattr(model, "between", _raising)
                with pytest.raises(ZeroDivisionError):
                    model(_input(number), number)
        return _plain(model, number)

    _same(Net(), monkeypatch, step)


def _raising(x: Tensor, step: int) -> Tensor:
    raise ZeroDivisionError


def test_batches_of_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same strides."""

    def step(model: nn.Module, number: int) -> Tensor:
        return model(_input(number)[: 8 - number % 3], number).square().mean()  # type: ignore[no-any-return]

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
        x = _input(number).requires_grad_()
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
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    integrations.compress_model(model, "L1", min_bytes=0, seed=2**64 - 1)
    for number in range(3):
        model(_input(number)).sum().backward()


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
