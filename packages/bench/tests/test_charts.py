"""Charts: every recorded file that has one is drawn, and its panels hold numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from bench.cli import suites
from bench.errors import BenchError
from bench.results.charts import Bar, Panel, Series, save_panels
from bench.results.record import Record

from .rendering import MACHINE, draw, panels

RESULTS = Path(__file__).parents[1] / "results"
CHARTED = (
    "activations-cpu",
    "checkpoint-cpu",
    "curves-cpu",
    "fewbit-grid-cpu",
    "fewbit-memory-cpu",
    "fewbit-time-cpu",
    "fewbit-training-cpu",
    "gnn-cpu",
    "kernels-cpu",
    "llm-cpu",
    "search-cpu",
    "sensitivity-cpu",
    "systems-cpu",
    "text-cpu",
    "vision-variance-cpu",
)
WITHOUT = {"fewbit-grid-cpu"}


@pytest.mark.parametrize("name", CHARTED)
def test_each_panel_has_numbers(name):
    found = panels(suites.load(RESULTS / f"{name}.json"))
    assert bool(found) == (name not in WITHOUT)
    for panel in found:
        numbers = [bar.value for bar in panel.bars] + [y for series in panel.series for y in series.y]
        assert numbers
        assert all(map(math.isfinite, numbers)), panel.title
        assert all(len(series.x) == len(series.y) for series in panel.series)
        assert all(0 <= y < len(panel.rows) for series in panel.series for y in series.y) or not panel.rows


@pytest.mark.parametrize("name", ["gnn-cpu", "kernels-cpu", "systems-cpu"])
def test_a_record_is_drawn(name, tmp_path):
    draw(suites.load(RESULTS / f"{name}.json"), tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_panel_has_all_that_it_is_told(tmp_path):
    bars = [Bar("one", 2.0, whole=4.0, interval=(1.5, 2.5), mark=3.0, words="half"), Bar("two", 1.0)]
    points = Series([1, 10], [0, 1], "ours", names=["a", "b"], intervals=[(0, 1), (0.5, 2)], hollow=True)
    drawn = [Panel("Bars", "MiB", bars=bars, line=1), Panel("Rows", "s", rows=["a", "b"], series=[points], log="x")]
    save_panels(drawn, "Said below.", MACHINE, tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    for part in ("half", "Said below.", "a processor, 2 threads, torch 2.15.0", "Rows", "ours"):
        assert f"<!-- {part}" in text, part


def test_a_chart_needs_numbers_and_a_known_type(tmp_path):
    empty = Record("activations", MACHINE)
    with pytest.raises(BenchError, match="there is nothing to draw"):
        draw(empty, tmp_path / "chart.png")
    with pytest.raises(BenchError, match=r"must end in \.png, \.svg or \.pdf, got .*chart\.xyz"):
        draw(empty, tmp_path / "chart.xyz")
    with pytest.raises(BenchError, match="there is no chart"):
        draw(Record("sweep", MACHINE), tmp_path / "chart.png")
