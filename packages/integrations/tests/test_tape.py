"""``Tape``: its step from one operator to the next in C numbers the same memory as its methods in Python do."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations.capture.capture import capture
from integrations.capture.dispatch.operators import get_traits
from integrations.capture.graphs.graph import Graph
from integrations.capture.graphs.schedule import Schedule
from integrations.runtime.repeating.tape import Tape

from .nets import Net, normal
from .recompute_nets import NETS, net, random_net
from .recompute_run import run


def _in_python(self: Tape, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
    traits = get_traits(func)
    return func(*args, **(kwargs or {})) if traits.view else self.follow(func, traits, args, kwargs or {})


def _tape_of(
    graph: Graph, kept: Collection[int], model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Tape:
    """The tape of a forward that keeps these values, which it may have left."""
    forward = run(model, graph, kept)
    forward.handle._plan_manager.made = made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forward(*args, **kwargs)
    tape: Tape = made[0]._following
    return tape


def _followed(
    schedule: Schedule, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[int, str, list[int]]:
    torch.manual_seed(0)
    tape = _tape_of(schedule.graph, schedule.kept, model, args, kwargs)
    return tape.next, tape.mismatch, sorted(tape.values.values())


def _assert_alike(
    monkeypatch: pytest.MonkeyPatch, schedule: Schedule, model: nn.Module, args: Any, kwargs: Any = None
) -> str:
    found = _followed(schedule, model, args, kwargs or {})
    with monkeypatch.context() as patch:
        patch.setattr(Tape, "__torch_dispatch__", _in_python)
        assert _followed(schedule, model, args, kwargs or {}) == found
    return found[1]


@pytest.mark.parametrize("keeps", ["all", "half", "none"])
@pytest.mark.parametrize("name", [*NETS, *range(6)])
def test_numbers(name: str | int, keeps: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, args, *named = random_net(name) if isinstance(name, int) else net(name)
    kwargs = named[0] if named else {}
    graph = capture(model, args, kwargs)
    count = len(graph.values)
    schedule = Schedule.of(graph, {"all": range(count), "half": range(0, count, 2), "none": ()}[keeps])
    assert _assert_alike(monkeypatch, schedule, model, args, kwargs) == ""


def test_numbers_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose casts are operators with named arguments."""
    model, args, kwargs = net("transformer")
    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, args, kwargs)
        schedule = Schedule.of(graph, range(len(graph.values)))
        assert _assert_alike(monkeypatch, schedule, model, args, kwargs) == ""


def _split(x: Tensor) -> Tensor:
    return torch.cat([part * 2 for part in x.split(2)])


CHANGED: dict[str, Callable[[Tensor], Tensor]] = {
    "another operator": F.silu,
    "other shapes": lambda x: F.relu(x[:2]).repeat(2, 1),
    "more results": _split,
    "none": lambda x: x,
    "in place": lambda x: x.mul_(2.0),
    "a view": lambda x: x.t().t(),
    "another kind of tensor": lambda x: F.relu(x.to_sparse()).to_dense(),
    "another dtype": lambda x: F.relu(x.double()).float(),
}


@pytest.mark.parametrize("change", CHANGED)
def test_where_a_forward_differs(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same words, and what follows has no numbers."""

    def forward(model: Any, x: Tensor) -> Tensor:
        y: Tensor = (CHANGED[change] if model.changed else F.relu)(x * model.weight)
        return (y * model.weight).sum()

    model = Net(forward, weight=normal(6)).train()
    model.changed = False
    args = (normal(4, 6),)
    graph = capture(model, args)
    schedule = Schedule.of(graph, range(len(graph.values)))
    assert _assert_alike(monkeypatch, schedule, model, args) == ""
    model.changed = True
    assert "the plan has" in _assert_alike(monkeypatch, schedule, model, args)


def test_an_operator_that_fails_is_not_followed() -> None:
    def forward(model: Any, x: Tensor) -> Tensor:
        y: Tensor = x * model.weight
        if model.fails:
            with pytest.raises(RuntimeError, match="size"):
                torch.add(y, x[:, :5])
        return y.sum()

    model = Net(forward, weight=normal(6)).train()
    model.fails = False
    args = (normal(4, 6),)
    graph = capture(model, args)
    model.fails = True
    tape = _tape_of(graph, range(len(graph.values)), model, args, {})
    assert tape.mismatch == ""
    assert tape.next == len(graph.ops)


# ---- kernels that read conjugates ----


def test_linear_algebra_of_complex_numbers_is_that_of_no_mode() -> None:
    """Torch runs a mode with the keys off by which a kernel reads a conjugate: ``pinv`` was off by more than 1."""
    torch.manual_seed(0)
    matrix = torch.randn(5, 5, dtype=torch.complex64, requires_grad=True)
    model = Net(lambda self, x: sum(torch.linalg.pinv(x * scale).sin() for scale in (1, 2, 3, 4))).train()
    expected = model(matrix)
    gradient = torch.autograd.grad(expected.abs().sum(), matrix)[0]
    integrations.compress_model(model, error=0.0, stores=("recompute",))
    for _ in range(2):
        found = model(matrix)
        assert torch.equal(found, expected)
        assert torch.equal(torch.autograd.grad(found.abs().sum(), matrix)[0], gradient)
    rows = integrations.compression(model).report().rows
    assert any(row.operator == "linalg_pinv" and row.codec == "recomputed" for row in rows)
