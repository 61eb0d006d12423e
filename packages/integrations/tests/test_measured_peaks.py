"""The peaks of a plan's first steps are measured beside the planned ones, where the device counts them."""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations import compress_model
from integrations.api.handle import first_steps
from integrations.checkpoint import plan_of

from .nets import normal
from .recompute_reference import LiveBytes

WIDTH = 32
X = normal(256, WIDTH)
MUCH = "at its peak"


def deep(depth: int = 6) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh()))).train()


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveBytes]:
    """Counts bytes as the CUDA allocator does, from here on."""
    with LiveBytes() as counter:
        monkeypatch.setattr(first_steps, "read_counters", lambda device: (counter.now, counter.peak))
        yield counter


def step(model: nn.Module, x: Tensor = X, late: bool = False, beside: int = 0) -> None:
    if not late:
        model.zero_grad()
    out = model(x).sum(dtype=torch.float64)
    if late:
        model.zero_grad()
    held = torch.zeros(beside)
    out.backward()
    del held


def report(model: nn.Module) -> integrations.Report:
    found: integrations.Report = integrations.compression(model).report()
    return found


def assert_measured(model: nn.Module) -> None:
    """The measured peak is the planned one: the plan also holds the model's output, which the step does not, and the
    step has the loss of 8 bytes."""
    planned, measured = plan_of(model).peak, report(model).measured_peak_bytes
    assert planned - X.nbytes <= measured <= planned + 8


def test_the_first_step_is_measured(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    step(model)
    assert_measured(model)
    title = report(model).title
    assert title.endswith(" measured")
    assert ", planned; " in title


def test_a_step_is_measured_if_the_counter_rises(live: LiveBytes) -> None:
    """Nothing resets the counter, which training may do."""
    model = compress_model(deep(), memory=0.8)
    live.peak = 1 << 30
    step(model)
    assert report(model).title.endswith(", planned; not measured")
    live.peak = live.now
    step(model)
    assert_measured(model)
    assert live.peak > live.now


@pytest.mark.filterwarnings("ignore:a step of Sequential took")
def test_gradients_in_buckets_were_there_before(live: LiveBytes) -> None:
    """As with DistributedDataParallel's gradient_as_bucket_view=True."""
    model = compress_model(deep(), memory=1.0)
    bucket = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    sizes = [parameter.numel() for parameter in model.parameters()]

    def into_bucket() -> None:
        with torch.no_grad():
            for parameter, part in zip(model.parameters(), bucket.split(sizes), strict=True):
                parameter.grad = part.view(parameter.shape)

    live.peak = before = live.now
    out = model(X).sum(dtype=torch.float64)
    into_bucket()  # before backward, which adds to them
    out.backward()
    assert report(model).measured_peak_bytes == live.peak - before


def test_only_the_first_steps_are_measured(live: LiveBytes, monkeypatch: pytest.MonkeyPatch) -> None:
    model = compress_model(deep(), memory=0.8)
    for _ in range(3):
        step(model)
    monkeypatch.setattr(first_steps, "read_counters", lambda device: pytest.fail("the counters are read"))
    step(model)


@pytest.mark.parametrize("late", [False, True])
def test_each_state_of_the_gradients_is_measured(live: LiveBytes, late: bool) -> None:
    model = compress_model(deep(), memory="least")
    for _ in range(5):
        live.peak = live.now
        step(model, late=late)
        assert_measured(model)
    assert plan_of(model).graph.clears == late


def test_a_step_that_takes_more_is_warned_of_once(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    step(model, beside=4 * X.numel())
    planned = plan_of(model)
    with pytest.warns(UserWarning, match=rf"took .* {MUCH}, .* times the .* of its plan") as told:
        step(model)
    (message,) = [str(one.message) for one in told if MUCH in str(one.message)]
    less = float(message.rpartition("memory=")[2])
    assert less < planned.peak / planned.uncompressed_peak
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, beside=8 * X.numel())
        step(model)


def test_a_budget_in_bytes_is_named_in_bytes(live: LiveBytes) -> None:
    model = compress_model(deep(), memory="200 KiB")
    step(model, beside=4 * X.numel())
    with pytest.warns(UserWarning, match=r"pass memory='\d+\.\d KiB'"):
        report(model)


def test_a_plan_of_the_least_memory_has_no_lower_budget(live: LiveBytes) -> None:
    model = compress_model(deep(), memory="least")
    step(model, beside=4 * X.numel())
    with pytest.warns(UserWarning, match=r"workspaces of unknown size$"):
        step(model)


def test_steps_with_smaller_inputs_are_not_measured(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    step(model)
    assert_measured(model)
    step(model, X[:64])
    assert report(model).measured_peak_bytes == 0
    assert report(model).title.endswith("planned for larger inputs (256x32)")
    assert "By a plan for inputs 256x32" in report(model).caption


def test_without_a_backward_nothing_is_measured(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    model(X)
    step(model)
    assert_measured(model)


def test_the_cpu_has_no_counter() -> None:
    model = compress_model(deep(), memory=0.8)
    step(model)
    assert report(model).title.endswith(", planned; not measured on the CPU")


def test_a_copy_measures_its_own_steps(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    step(model)
    for made in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert integrations.compression(made)._plan_manager.first_steps.measured(plan_of(made)) == 0


def test_the_measurement_keeps_nothing_alive(live: LiveBytes) -> None:
    model = compress_model(deep(), memory=0.8)
    out = model(X).sum()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None
    out.backward()
