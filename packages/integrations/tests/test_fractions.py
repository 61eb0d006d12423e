"""A fraction as a budget where the forward takes other paths or gets other inputs: that of the largest plain step.

On the second path of the model there is no dropout, so the plain step is smaller, and the least plan is not.
"""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes

WIDTH = 32
OTHER_PATH = pytest.mark.filterwarnings("ignore:.*is not the one that was captured")


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, rate: float) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), rate)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_Block() for _ in range(4))
        self.rate = 0.1

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.rate)
        return x


def _compressed(memory: float) -> _Net:
    torch.manual_seed(0)
    model: _Net = integrations.compress_model(_Net().train(), memory=memory)
    return model


def _step(model: nn.Module, rows: int = 256, adds: bool = False) -> Plan:
    """Take a step, and return the plan that it followed."""
    if not adds:
        model.zero_grad()
    model(torch.ones(rows, WIDTH).cumsum(0).sin()).square().sum().backward()
    plan: Plan = integrations.compression(model).plan
    return plan


def _named(adds: bool = False) -> float:
    """Return the fraction that the error of a first step names as possible, or that of a step that accumulates."""
    model = _compressed(0.01)
    with pytest.raises(ValueError, match="pass memory=") as caught:
        _step(model)
    found = float(re.findall(r"pass memory=([\d.]+)", str(caught.value))[0])
    if adds:
        model = _compressed(found)
        _step(model)
        _step(model, adds=True)  # it might still clear its gradients
        with pytest.raises(ValueError, match="pass memory=") as caught:
            _step(model, adds=True)
        found = float(re.findall(r"pass memory=([\d.]+)", str(caught.value))[0])
    return found


@OTHER_PATH
def test_a_fraction_that_an_error_names_holds_for_a_path_with_a_smaller_plain_step() -> None:
    model = _compressed(_named())
    first = _step(model)
    model.rate = 0.0
    _step(model)
    second = _step(model)
    assert second.graph != first.graph
    assert second.uncompressed_peak < first.uncompressed_peak
    assert second.peak <= first.allowed(first.memory) == second.allowed(second.memory)
    assert second.front[0].peak > second.memory * second.uncompressed_peak  # it would have raised
    whole = format_bytes(first.uncompressed_peak)
    assert f"(memory={first.memory} is of {whole}, the largest plain step so far)" in str(
        integrations.compression(model).report()
    )


@OTHER_PATH
@pytest.mark.filterwarnings("ignore:no plan of .* in steps that add to gradients")
def test_so_does_one_for_steps_that_accumulate() -> None:
    model = _compressed(_named(adds=True))
    _step(model)
    for _ in range(2):
        first = _step(model, adds=True)
    model.rate = 0.0
    for _ in range(3):
        second = _step(model, adds=True)
    assert second.graph.accumulates
    assert second.uncompressed_peak < first.uncompressed_peak
    assert second.peak <= first.allowed(first.memory) == second.allowed(second.memory)
    assert second.front[0].peak > second.memory * second.uncompressed_peak


def test_the_bytes_that_a_warning_names_for_steps_that_accumulate_hold() -> None:
    model = _compressed(_named())
    _step(model)
    with pytest.warns(UserWarning, match=r"the next such step raises an error: pass memory=\d+ or ") as caught:
        _step(model, adds=True)
    named = int(re.findall(r"raises an error: pass memory=(\d+)", str(caught[0].message))[0])
    model = _compressed(named)
    _step(model)
    for _ in range(3):
        assert _step(model, adds=True).peak <= named


@OTHER_PATH
def test_a_saved_plan_and_a_resumed_run_know_the_largest_plain_step() -> None:
    model = _compressed(0.5)
    first = _step(model)
    model.rate = 0.0
    for _ in range(2):
        second = _step(model)
    assert Plan.from_json(second.to_json()).wholes == second.wholes == first.wholes
    resumed = _compressed(0.5)
    resumed.rate = 0.0
    integrations.compression(resumed).load_state_dict(integrations.compression(model).state_dict())
    assert _step(resumed).whole == first.uncompressed_peak


def test_larger_inputs_have_a_fraction_of_their_own_plain_step_and_smaller_ones_no_less() -> None:
    model = _compressed(0.4)
    small, large = _step(model, 64), _step(model, 256)
    assert large.whole == large.uncompressed_peak > small.uncompressed_peak
    assert large.allowed(0.4) == int(0.4 * large.uncompressed_peak)
    assert _step(model, 128) is large


@OTHER_PATH
def test_a_path_that_is_refused_names_the_least_fraction_of_the_largest_plain_step() -> None:
    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow = nn.Sequential(*(one for _ in range(6) for one in (nn.Linear(32, 32), nn.GELU())))
            self.wide = nn.Linear(32, 275)

        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            return self.narrow(x).sum() if y is None else self.wide(y).sigmoid().sum()

    def refused(memory: float) -> str:
        torch.manual_seed(0)
        model = integrations.compress_model(Wide(), memory=memory)
        model(torch.randn(256, 32)).backward()
        model.zero_grad()
        try:
            for _ in range(2):
                model(torch.randn(2, 32), torch.randn(163, 32)).backward()
                model.zero_grad()
        except ValueError as error:
            return str(error)
        return ""

    told = refused(0.5)
    share, fraction = re.findall(r"([\d.]+) of the largest plain step's .* pass memory=([\d.]+)", told)[0]
    assert share == fraction != "1.0"
    assert not refused(float(fraction))
    assert f"memory={fraction}" in refused(float(fraction) - 0.01)
