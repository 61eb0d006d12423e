"""A forward that differs from its plan runs a second time if the plan has few bits: the step is as one forward."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations.capture.capture import is_capturing
from integrations.checkpoint import plan_of
from integrations.runtime import forward_state

from .rerun_nets import (
    ERROR,
    TOLD,
    ExitingNet,
    StatefulNet,
    count_runs,
    make_input,
    measure_error,
    plain,
    planned,
    seed_all,
)

pytestmark = pytest.mark.filterwarnings(f"ignore:.*{TOLD}")


@pytest.mark.parametrize("way", ["accumulated", "autocast", "inside", "earlier"])
def test_where_the_forward_runs(way: str) -> None:
    """Where gradients are there already; under autocast; inside of another module; and while the backward of an
    earlier forward is still to come."""
    context = torch.autocast("cpu", torch.bfloat16) if way == "autocast" else nullcontext()
    torch.manual_seed(1)
    net = StatefulNet()
    with context:
        model = planned(net, 2)
        exact, runs = plain(model), count_runs(model)
        found = []
        for one in (exact, model):
            whole = nn.Sequential(nn.Dropout(0.5), one, nn.Dropout(0.5)) if way == "inside" else one
            one.exits = False
            one.zero_grad()
            seed_all()
            earlier = one(make_input()).square().mean()
            if way == "accumulated":
                earlier.backward()
            before = [None if each.grad is None else each.grad.clone() for each in one.parameters()]
            one.exits = True
            loss = whole(make_input(9)).square().mean()
            if way == "earlier":
                loss = loss + earlier
            loss.backward()
            found.append(
                torch.cat(
                    [
                        (each.grad if old is None else each.grad - old).flatten()
                        for each, old in zip(one.parameters(), before, strict=True)
                        if each.grad is not None
                    ]
                )
            )
            found[-1] = torch.cat([found[-1], torch.rand(3)])  # the generators end alike
    assert len(runs) == 3
    assert torch.equal(found[0][-3:], found[1][-3:])
    assert (found[0] - found[1]).norm() <= ERROR * found[0][:-3].norm()


class _Changes(ExitingNet):
    """Do something on exit that cannot be taken back."""

    def __init__(self, change: Callable[[_Changes, Tensor], object]) -> None:
        super().__init__()
        self.change = change
        self.register_buffer("large", torch.zeros(1 << 17))  # 512 KiB

    def on_exit(self, y: Tensor) -> Tensor:
        self.change(self, y)
        return super().on_exit(y)


def _change_parameter(net: _Changes, y: Tensor) -> None:
    with torch.no_grad():
        net.rest[0].bias.add_(1)


def _step_aside(net: _Changes, y: Tensor) -> None:
    net.rest[0].bias.sum().backward()


def _in_another_thread(net: _Changes, y: Tensor) -> None:
    net.exits = False
    thread = threading.Thread(target=net, args=(make_input(),))
    thread.start()
    thread.join()
    net.exits = True


_HELD: list[Tensor] = []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_change_parameter, "since it changed a parameter [32] in place"),
        (_step_aside, "since it changed a gradient [32] in place"),
        (lambda net, y: net.large.add_(1), "since it changed a buffer [131072] in place"),
        (_in_another_thread, "since another thread has run the model"),
        (lambda net, y: _HELD.append(y), "still holds a tensor of the first run"),
    ],
    ids=["parameter", "backward", "buffer", "thread", "held"],
)
def test_what_cannot_be_taken_back_raises(change: Callable[..., object], said: str) -> None:
    model = planned(_Changes(change), 2)
    model.exits = True
    with pytest.raises(RuntimeError) as raised:
        model(make_input())
    _HELD.clear()
    assert said in str(raised.value)
    assert "stores=('recompute', 'exact', '8 bits', 'host')" in str(raised.value)
    assert not integrations.compression(model).running
    model.change = lambda net, y: None
    assert measure_error(model, plain(model)) <= ERROR  # from now on with 8 bits, in one run
    assert plan_of(model).choice.fits_any_path


@pytest.mark.parametrize("patched", ["in_cuda_graph", "collectives_started"])
def test_graphs_and_other_ranks_raise(patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = planned(ExitingNet())
    model.exits = True
    monkeypatch.setattr(forward_state, patched, lambda: object())  # no two of which are equal
    with pytest.raises(RuntimeError, match=r"a CUDA graph is being captured|it communicates with other ranks"):
        model(make_input())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["second run", "restoring"])
def test_errors_leave_the_model_as_it_was(
    error: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = planned(StatefulNet())
    model.exits, calls, left = True, model.calls, [1] if where == "second run" else [0, 1]

    def fail(*_: object) -> None:
        if is_capturing() or (left and left.pop()):
            return
        monkeypatch.undo()
        handle.remove()
        raise error

    handle = model.first[0].register_forward_pre_hook(fail if where == "second run" else lambda *_: None)
    if where == "restoring":
        restore = forward_state.Mapping.restore

        def failing(mapping: forward_state.Mapping) -> None:
            restore(mapping)
            fail()

        monkeypatch.setattr(forward_state.Mapping, "restore", failing)
    with pytest.raises(error):
        model(make_input())
    assert model.calls == calls + (where == "second run")  # as after any forward that fails
    assert model.calls == int(model.steps) == len(model.outputs)
    assert not integrations.compression(model).running
    exact = plain(model)
    assert measure_error(model, exact) <= ERROR
    assert all(map(torch.equal, model.buffers(), exact.buffers()))


def test_what_is_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has one number, and its report is that of the second run."""
    model = planned(ExitingNet(), 2)
    hooks: list[int] = []
    model.register_forward_hook(lambda *_: hooks.append(1))
    model.exits, handle, runs = True, integrations.compression(model), count_runs(model)
    step = handle.step
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(3):
            model(make_input(seed)).square().mean().backward()
    assert len(told) == 1
    assert "It runs a second time from its start" in str(told[0].message)
    assert "From now on no step rounds to fewer than 8 bits" in str(told[0].message)
    assert len(hooks) == 3
    assert len(runs) == 4
    assert handle.step == step + 3
    assert {row.module for row in handle.report().rows} <= {"", "first.0", "first.1", "first.2", "first.3"}


def test_a_plan_of_8_bits_keeps_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(forward_state, "random_states")
    model = ExitingNet()
    integrations.compress_model(model, error=ERROR, stores=("recompute", "exact", "8 bits", "host"), min_bytes=0)
    for exits in (False, False, True):
        model.exits = exits
        model(make_input()).square().mean().backward()


def test_compiled_parts_run_once_and_are_stored_for_any_path(fresh_compiler: None) -> None:
    model = ExitingNet()
    model.rest[2] = torch.compile(model.rest[2], backend="aot_eager")
    integrations.compress_model(model.train(), error=ERROR, stores=("bits",), min_bytes=0)
    runs = count_runs(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "ExitingNet's forward")
        for seed in range(4):
            model(make_input(seed)).square().mean().backward()
    assert len(runs) == 4
    assert plan_of(model).choice.fits_any_path


def test_models_that_do_not_vary_run_once() -> None:
    torch.manual_seed(1)
    model = planned(StatefulNet(), 1)
    runs = count_runs(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(4):
            model(make_input(seed)).square().mean().backward()
    assert len(runs) == 4
