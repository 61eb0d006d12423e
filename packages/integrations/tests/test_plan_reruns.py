"""A forward that differs from its plan runs a second time if the plan has few bits: the step is as one forward."""

from __future__ import annotations

import copy
import random
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations._runtime import forward_state, replay
from integrations._step.capturing.capture import is_capturing
from integrations.checkpoint import plan_of

WIDTH, ERROR = 32, 0.1
TOLD = "is not the one that was captured"

pytestmark = pytest.mark.filterwarnings(f"ignore:.*{TOLD}")


class _Net(nn.Module):
    """A chain of linear layers. With ``exits``, it ends after the first layers, where few bits were planned: their
    gradient is the smallest one on the whole path."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.first, self.rest = self._chain(layers, 2), self._chain(layers, 4)
        self.exits = False

    def _chain(self, layers: tuple[nn.Module, ...], count: int) -> nn.Sequential:
        return nn.Sequential(*(copy.deepcopy(layer) for _ in range(count) for layer in layers))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        if self.exits:
            return self.on_exit(y)
        found: Tensor = self.rest(y)
        return found

    def on_exit(self, y: Tensor) -> Tensor:
        return y.sin()


Net = TypeVar("Net", bound=_Net)


def _input(seed: int = 0) -> Tensor:
    return torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(seed))


def _planned(model: Net, steps: int = 1, others: Callable[[], tuple[Any, ...]] = tuple) -> Net:
    integrations.compress_model(model.train(), error=ERROR, stores=("bits",), min_bytes=0)
    for seed in range(steps):
        model.zero_grad()
        model(_input(seed), *others()).square().mean().backward()
    assert not plan_of(model).choice.fits_any_path
    return model


def _plain(model: Net) -> Net:
    return integrations.restore_model(copy.deepcopy(model))


def _seed() -> None:
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002


def _gradient(model: nn.Module, *args: Any) -> Tensor:
    _seed()
    model.zero_grad()
    model(_input(9), *args).square().mean().backward()
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def _error(model: nn.Module, exact: nn.Module, *args: Any) -> float:
    expected = _gradient(exact, *args)
    return float((_gradient(model, *args) - expected).norm() / expected.norm())


def _runs(model: _Net) -> list[int]:
    """How often the first layer runs, as the length of a list."""
    found: list[int] = []
    model.first[0].register_forward_pre_hook(lambda *_: found.append(1))
    return found


class _Cache:
    """Keys by layer, as transformers has them."""

    def __init__(self) -> None:
        self.layers: list[dict[str, Any]] = [{"keys": None, "seen": 0}]
        self.count = torch.zeros(())

    def update(self, keys: Tensor) -> None:
        self.layers[0]["keys"] = keys.detach()
        self.layers[0]["seen"] += len(keys)
        self.layers.append({})
        self.count += 1


class _Stateful(_Net):
    """Draw from each generator, decide by what was drawn and counted, and change each kind of state."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
        self.calls = 0
        self.outputs: list[float] = []
        self.nested: dict[str, Any] = {"seen": {"shapes": []}, "names": {"a"}}
        self.average = torch.zeros(WIDTH)
        self.generator = torch.Generator().manual_seed(0)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("codes", torch.zeros(WIDTH))

    def forward(self, x: Tensor, cache: _Cache | None = None, log: list[int] | None = None) -> Tensor:
        self.calls += 1
        self.steps += 1
        self.codes += x.detach().mean(0)
        self.codes = self.codes.clone()  # the next forward changes another tensor
        self.average.data.mul_(0.5).add_(x.detach().mean(0))  # counts no version
        self.outputs.append(float(x.sum()))
        self.nested["seen"]["shapes"].append(x.shape)
        self.nested["names"].add(str(self.calls))
        if cache is not None:
            cache.update(x)
        if log is not None:
            log.append(self.calls)
        x = self.dropout(self.norm(x)) * (1 + torch.rand((), generator=self.generator))
        chosen = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
        return super().forward(x * (1 + self.calls) + int(self.steps) * chosen)


@pytest.mark.parametrize("taped", [False, True], ids=["replayed", "taped"])
def test_each_kind_of_state_is_as_after_one_forward(taped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "FORCED_OFF", taped)
    torch.manual_seed(1)
    model = _planned(_Stateful(), 2, lambda: (_Cache(), [0]))
    model.exits = True
    exact = _plain(model)
    count, runs = model.calls, _runs(model)
    caches, logs = (_Cache(), _Cache()), ([0], [0])
    ends, states = [], []
    for one, cache, log in zip((exact, model), caches, logs, strict=True):
        ends.append(_gradient(one, cache, log))
        states.append((torch.get_rng_state(), random.getstate(), np.random.rand(), one.generator.get_state()))  # noqa: NPY002
    assert len(runs) == 2
    assert (ends[1] - ends[0]).norm() <= ERROR * ends[0].norm()
    for place in (0, 3):
        assert torch.equal(states[0][place], states[1][place])
    assert states[0][1:3] == states[1][1:3]
    assert model.calls == exact.calls == count + 1
    assert model.outputs == exact.outputs
    assert model.nested == exact.nested
    assert torch.equal(model.average, exact.average)
    for name, buffer in exact.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name)), name
    assert logs[0] == logs[1]
    assert len(caches[1].layers) == 2
    assert caches[1].layers[0]["seen"] == 64
    assert caches[1].count == 1


def test_a_module_that_was_replaced_is_part_of_the_state() -> None:
    model = _planned(_Net(), 2)
    model.first[1] = nn.Sequential(nn.BatchNorm1d(WIDTH), nn.SiLU())
    exact, runs = _plain(model), _runs(model)
    assert _error(model, exact) <= ERROR
    assert len(runs) == 2
    assert all(map(torch.equal, model.buffers(), exact.buffers()))


@pytest.mark.parametrize("way", ["accumulated", "autocast", "inside", "earlier"])
def test_where_the_forward_runs(way: str) -> None:
    """Where gradients are there already; under autocast; inside of another module; and while the backward of an
    earlier forward is still to come."""
    context = torch.autocast("cpu", torch.bfloat16) if way == "autocast" else nullcontext()
    torch.manual_seed(1)
    net = _Stateful()
    with context:
        model = _planned(net, 2)
        exact, runs = _plain(model), _runs(model)
        found = []
        for one in (exact, model):
            whole = nn.Sequential(nn.Dropout(0.5), one, nn.Dropout(0.5)) if way == "inside" else one
            one.exits = False
            one.zero_grad()
            _seed()
            earlier = one(_input()).square().mean()
            if way == "accumulated":
                earlier.backward()
            before = [None if each.grad is None else each.grad.clone() for each in one.parameters()]
            one.exits = True
            loss = whole(_input(9)).square().mean()
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


class _Changes(_Net):
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
    thread = threading.Thread(target=net, args=(_input(),))
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
    model = _planned(_Changes(change), 2)
    model.exits = True
    with pytest.raises(RuntimeError) as raised:
        model(_input())
    _HELD.clear()
    assert said in str(raised.value)
    assert "stores=('recompute', 'exact', '8 bits', 'host')" in str(raised.value)
    assert not integrations.compression(model).running
    model.change = lambda net, y: None
    assert _error(model, _plain(model)) <= ERROR  # from now on with 8 bits, in one run
    assert plan_of(model).choice.fits_any_path


@pytest.mark.parametrize("patched", ["in_cuda_graph", "collectives_started"])
def test_graphs_and_other_ranks_raise(patched: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = _planned(_Net())
    model.exits = True
    monkeypatch.setattr(forward_state, patched, lambda: object())  # no two of which are equal
    with pytest.raises(RuntimeError, match=r"a CUDA graph is captured|it communicates with other ranks"):
        model(_input())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["second run", "restoring"])
def test_errors_leave_the_model_as_it_was(
    error: type[BaseException], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    model = _planned(_Stateful())
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
        model(_input())
    assert model.calls == calls + (where == "second run")  # as after any forward that fails
    assert model.calls == int(model.steps) == len(model.outputs)
    assert not integrations.compression(model).running
    exact = _plain(model)
    assert _error(model, exact) <= ERROR
    assert all(map(torch.equal, model.buffers(), exact.buffers()))


def test_what_is_said_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step has one number, and its report is that of the second run."""
    model = _planned(_Net(), 2)
    hooks: list[int] = []
    model.register_forward_hook(lambda *_: hooks.append(1))
    model.exits, handle, runs = True, integrations.compression(model), _runs(model)
    step = handle.step
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in range(3):
            model(_input(seed)).square().mean().backward()
    assert len(told) == 1
    assert "It runs a second time from its start" in str(told[0].message)
    assert "From now on no step rounds to fewer than 8 bits" in str(told[0].message)
    assert len(hooks) == 3
    assert len(runs) == 4
    assert handle.step == step + 3
    assert {row.module for row in handle.report().rows} <= {"", "first.0", "first.1", "first.2", "first.3"}


def test_a_plan_of_8_bits_keeps_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(forward_state, "random_states")
    model = _Net()
    integrations.compress_model(model, error=ERROR, stores=("recompute", "exact", "8 bits", "host"), min_bytes=0)
    for exits in (False, False, True):
        model.exits = exits
        model(_input()).square().mean().backward()


@pytest.mark.parametrize("form", ["overlapping", "quantized", "resized"])
def test_buffers_of_every_form_stay_as_they_are(form: str) -> None:
    model = _Net()
    if form == "overlapping":
        model.register_buffer("mask", torch.ones(1).expand(8))
    else:
        codes = [torch.quantize_per_tensor(torch.arange(8.0), scale, 0, torch.qint8) for scale in (0.1, 0.5)]
        for name, code in zip("ab", codes if form == "quantized" else (torch.zeros(4), torch.ones(4)), strict=True):
            model.register_buffer(name, code)
    _planned(model)
    if form == "resized":
        model.a.data = torch.arange(8.0)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.exits = True
    with pytest.warns(UserWarning, match="runs a second time"):
        model(_input()).square().mean().backward()
    assert all(torch.equal(before[name], buffer) for name, buffer in model.named_buffers())


def test_a_list_from_before_the_modules_own_attributes_is_restored() -> None:
    class Early(_Net):
        def __init__(self) -> None:
            self.log: list[int] = []
            super().__init__()

        def forward(self, x: Tensor) -> Tensor:
            self.log.append(1)
            return super().forward(x)

    model = _planned(Early())
    before = len(model.log)
    model.exits = True
    with pytest.warns(UserWarning, match="runs a second time"):
        model(_input()).square().mean().backward()
    assert len(model.log) == before + 1


def test_tensors_beyond_a_limit_in_all_are_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_state, "_MOST_BYTES_IN_ALL", 100)

    class Counts(_Net):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("counts", torch.zeros(64))

        def forward(self, x: Tensor) -> Tensor:
            self.counts += 1
            return super().forward(x)

    model = _planned(Counts())
    model.exits = True
    with pytest.raises(RuntimeError, match=r"it changed a buffer \[64\] in place"):
        model(_input())


def test_compiled_parts_run_once_and_are_stored_for_any_path(fresh_compiler: None) -> None:
    model = _Net()
    model.rest[2] = torch.compile(model.rest[2], backend="aot_eager")
    integrations.compress_model(model.train(), error=ERROR, stores=("bits",), min_bytes=0)
    runs = _runs(model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "_Net's forward")
        for seed in range(4):
            model(_input(seed)).square().mean().backward()
    assert len(runs) == 4
    assert plan_of(model).choice.fits_any_path


def test_models_that_do_not_vary_run_once() -> None:
    torch.manual_seed(1)
    model = _planned(_Stateful(), 1)
    runs = _runs(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(4):
            model(_input(seed)).square().mean().backward()
    assert len(runs) == 4
