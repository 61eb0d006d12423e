"""A report says whose plan it tells of, and forwards that take a larger path than the planned one are warned of."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor, nn

import integrations
from integrations import compress_model
from integrations.checkpoint import plan_of

from .nets import normal
from .recompute_reference import LiveBytes

WIDTH, BUDGET = 32, "200 KiB"
X = normal(256, WIDTH)
NO_MORE = "No other capture is made for these inputs"


class Depths(nn.Module):
    """Runs its first blocks, as many as an attribute or an argument says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(8))
        self.depth = 8

    def forward(self, x: Tensor, depth: int | None = None) -> Tensor:
        for block in self.blocks[: self.depth if depth is None else depth]:
            x = block(x)
        return x


def steps(model: nn.Module, depths: Sequence[int], as_argument: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield the peak of each step and its warnings."""
    with LiveBytes() as live:
        for depth in depths:
            model.zero_grad()
            model.depth = depth
            live.peak = live.now
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                out = model(X, depth) if as_argument else model(X)
                out.sum(dtype=torch.float64).backward()
            del out
            yield live.peak - live.now, [str(one.message) for one in told]


@pytest.mark.parametrize("depths", [[8, 2] * 4, [2, 8] * 4, [8, 2, 2, 2, 8, 8, 8, 2]])
def test_a_budget_that_a_larger_path_may_exceed_is_warned_of_once(depths: list[int]) -> None:
    """The plan of two blocks keeps everything, so that its forwards run without a tape, and in the end without
    hooks."""
    model = compress_model(Depths(), memory=BUDGET)
    found = list(steps(model, depths))
    (told,) = [message for _, messages in found for message in messages if NO_MORE in message]
    assert f"may take more than memory={BUDGET!r}. Pass the value that chooses the path as an argument" in told
    over = [place for place, (peak, _) in enumerate(found) if peak > 200 << 10]
    first = next(place for place, (_, messages) in enumerate(found) if messages)
    assert all(place >= first for place in over)


def test_paths_that_an_argument_chooses_have_plans_of_their_own() -> None:
    model = compress_model(Depths(), memory=BUDGET)
    for peak, told in steps(model, [2, 8] * 4, as_argument=True):
        assert peak <= 200 << 10
        assert not told


def test_a_larger_path_for_good_is_planned_for() -> None:
    model = compress_model(Depths(), memory=BUDGET)
    found = list(steps(model, [2, 2, 2, 2, 2, 8, 8, 8]))
    assert "it ran more operators" in found[5][1][0]
    assert all(peak <= 200 << 10 and not told for peak, told in found[6:])


def test_casts_that_autocast_keeps_are_no_other_path() -> None:
    model = compress_model(Depths(), memory=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = model(X).sum() + model(X).sum()
            out.backward()
            model.zero_grad()


def report(model: nn.Module) -> integrations.Report:
    found: integrations.Report = integrations.compression(model).report()
    return found


def test_a_report_says_that_the_plan_was_left() -> None:
    model = compress_model(Depths(), memory=BUDGET)
    list(steps(model, [8]))
    planned = plan_of(model).peak
    assert report(model).peak_bytes == planned
    list(steps(model, [2]))
    left = report(model)
    assert left.title.endswith(", estimated for the path of the last forward, which left its plan")
    assert left.peak_bytes < planned
    assert "By a plan that the last forward left (at operator 4 the plan has" in left.caption
    assert "), on the captured path: activation peak " in left.caption  # of another plain step than the title's
    list(steps(model, [8]))
    assert report(model).peak_bytes == planned
    assert "left" not in report(model).caption


def test_a_handle_shows_its_bounds() -> None:
    model = compress_model(Depths(), memory=BUDGET)
    list(steps(model, [8]))
    assert repr(integrations.compression(model)) == f"Compression(Depths, plan(memory={BUDGET!r}, error=0), step=1)"
    model = compress_model(Depths(), "L1", checkpoint="optimal")
    shown = "Compression(Depths, level='L1', checkpoint='optimal', step=0)"
    assert repr(integrations.compression(model)) == shown
    assert repr(integrations.compression(compress_model(Depths()))) == "Compression(Depths, level='L1', step=0)"


class Scaled(nn.Module):
    """Has an operator of its own after a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = Depths(), nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return (inner * self.scale).sin()


def test_a_report_of_compiled_code_does_not_say_that_nothing_was_saved() -> None:
    """What the partitioner recomputes has no row, so that the rows are as large before as after."""
    model = Scaled()
    model.inner.depth = 2
    compress_model(model, memory=1.0).compile(backend="aot_eager")
    model(X).sum().backward()
    found = report(model)
    assert "KiB in compiled regions; step peak " in found.title
    assert "x)" not in found.title
    assert "Tensors that compiled regions recompute have no rows" in found.caption
    assert all(not row.module.startswith("[") for row in found.rows)
