"""If memory runs out in one of the first forwards of a plan, the forward runs again with a plan for 10 % less."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations import compress_model
from integrations._utils.torch_internals import FakeTensor
from integrations.checkpoint import plan_of

from .nets import normal

WIDTH = 32
X = normal(64, WIDTH)
RUNS_AGAIN = "this forward runs a second time"


class Failures:
    """How often to run out of memory. A model's second run does not restore it, as it does a module's attributes."""

    def __init__(self) -> None:
        self.left = 0
        self.kind: type[BaseException] = torch.OutOfMemoryError
        self.writes: Tensor | None = None
        self.seen: list[weakref.ref[Any]] = []
        self.alive = -1

    def meet(self, x: Tensor) -> None:
        if self.seen:
            self.alive = sum(one() is not None for one in self.seen)
        if self.left:
            self.left -= 1
            self.seen.append(weakref.ref(x.untyped_storage()))
            if self.writes is not None:
                self.writes.add_(1)
            raise self.kind("CUDA out of memory. Tried to allocate 2.00 GiB.")


class Fails(nn.Module):
    """Passes its input on, or runs out of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = Failures()

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(x, FakeTensor):  # a capture
            self.failures.meet(x)
        return x


def net(depth: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers[:-2], nn.Dropout(0.5), nn.BatchNorm1d(WIDTH), Fails(), *layers[-2:]).train()


def step(model: nn.Module, x: Tensor = X) -> list[Tensor]:
    """A step's gradients, and all that a forward may change."""
    torch.manual_seed(3)
    model.zero_grad()
    model(x).square().mean().backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return [*gradients, *map(torch.clone, model.buffers()), torch.get_rng_state()]


def failing(model: nn.Module) -> Failures:
    return next(module.failures for module in model.modules() if isinstance(module, Fails))


def assert_equal(ours: list[Tensor], others: list[Tensor]) -> None:
    assert len(ours) == len(others)
    assert all(torch.equal(one, other) for one, other in zip(ours, others, strict=True))


@pytest.mark.parametrize(("memory", "before"), [(0.8, 0), ("80%", 2), ("100 KiB", 2), (100 << 10, 0)])
def test_the_forward_runs_again_with_a_plan_for_less(memory: Any, before: int) -> None:
    plain = net()
    model = compress_model(copy.deepcopy(plain), memory=memory)
    for _ in range(before):
        assert_equal(step(model), step(plain))
    failing(model).left = 1
    twin = compress_model(copy.deepcopy(plain), memory=memory)
    step(twin)
    with pytest.warns(UserWarning, match=RUNS_AGAIN) as told:
        found = step(model)
    assert_equal(found, step(plain))
    planned, less = plan_of(twin), plan_of(model)
    assert less.peak <= 0.9 * planned.peak
    assert isinstance(less.memory, float) == (memory in (0.8, "80%"))
    assert less.accumulating.peak <= less.accumulating.uncompressed_peak
    assert integrations.compression(model).step == before + 1
    (message,) = [str(one.message) for one in told if RUNS_AGAIN in str(one.message)]
    assert "pass memory=" in message
    assert_equal(step(model), step(plain))
    assert plan_of(model) is less


def test_nothing_of_the_first_run_is_alive_in_the_second() -> None:
    model = compress_model(net(), memory=0.8)
    failing(model).left = 1
    with pytest.warns(UserWarning, match=RUNS_AGAIN):
        step(model)
    assert failing(model).alive == 0


@pytest.mark.parametrize("kind", [MemoryError, RuntimeError])
def test_other_allocators_raise_other_errors(kind: type[BaseException]) -> None:
    model = compress_model(net(), memory=0.8)
    failing(model).left, failing(model).kind = 1, kind
    with pytest.warns(UserWarning, match=RUNS_AGAIN):
        step(model)


def raised(model: nn.Module) -> Iterator[str]:
    """The notes of the error that a step raises because memory has run out."""
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory") as error:
        step(model)
    yield from error.value.__notes__


def test_it_is_planned_for_less_once() -> None:
    model = compress_model(net(), memory=0.8)
    failing(model).left = 2
    with pytest.warns(UserWarning, match=RUNS_AGAIN):
        notes = list(raised(model))
    assert any("since it was planned for less before. Pass memory=" in note for note in notes)
    assert any(note.startswith("Memory ran out") for note in notes)


def test_later_steps_raise() -> None:
    model = compress_model(net(), memory=0.8)
    for _ in range(3):
        step(model)
    failing(model).left = 1
    (note, _) = raised(model)
    assert "it is not one of the first steps" in note
    assert "which is 10 % less, or error=0.1 to allow rounding" in note


def test_a_forward_that_has_written_to_a_parameter_does_not_run_again() -> None:
    model = compress_model(net(), memory=0.8)
    failing(model).left, failing(model).writes = 1, model[0].weight.detach()
    (note, _) = raised(model)
    assert "it changed a parameter [32, 32] in place" in note
    assert plan_of(model).memory == 0.8


def test_a_plan_of_the_least_memory_cannot_take_less() -> None:
    model = compress_model(net(), memory="least")
    failing(model).left = 1
    (note, _) = raised(model)
    assert "Use a smaller batch" in note


def test_a_plan_within_a_time_has_no_memory_to_lower() -> None:
    model = compress_model(net(), time=1.2)
    failing(model).left = 1
    (note, _) = raised(model)
    assert "its plan has no memory budget that could be lowered. Pass a larger time=" in note


def test_a_budget_near_the_least_cannot_be_lowered() -> None:
    model = compress_model(net(), memory="least")
    step(model)
    least = plan_of(model).peak
    integrations.restore_model(model)
    compress_model(model, memory=least)
    failing(model).left = 1
    (note, _) = raised(model)
    assert "no plan takes 10 % less" in note


def test_without_a_plan_the_error_is_as_before() -> None:
    model = compress_model(net(), "L1")
    failing(model).left = 1
    (note,) = raised(model)
    assert note.startswith("Memory ran out")


def test_a_plan_that_rounds_says_that_it_was_not_measured() -> None:
    model = compress_model(net(), memory=0.8, error=0.1)
    step(model)
    failing(model).left = 1
    with pytest.warns(UserWarning, match=RUNS_AGAIN):
        step(model)
    less = plan_of(model)
    assert not less.choice.rounds or "memory had run out" in less.unmeasured


def test_a_compiled_forward_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    model = compress_model(net(4), memory=0.9)
    model.compile(backend="eager")
    monkeypatch.setattr("integrations.api.handle.forward._compiled_for", lambda *given: SimpleNamespace(run=fails))
    (note, _) = raised(model)
    assert "since torch compiles it. Pass memory=" in note


def test_errors_of_other_kinds_pass() -> None:
    model = compress_model(net(), memory=0.8)
    failing(model).left, failing(model).kind = 1, KeyError
    with pytest.raises(KeyError):
        step(model)
    gc.collect()
