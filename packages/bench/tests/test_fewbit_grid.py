"""The part ``grid`` of ``python -m bench fewbit``: cells, what is taken up, what fails, and what is judged."""

import importlib.util
from dataclasses import asdict, replace
from itertools import pairwise

import pytest
import torch

from bench.cli import main, suites
from bench.cli.markdown import render_record
from bench.results.record import Record
from bench.suites.fewbit import cell as memory
from bench.suites.fewbit import command as measure
from bench.suites.fewbit import report
from bench.suites.fewbit.entries import GridCell, Times
from bench.suites.vision.cell import graph_bytes
from bench.ways import roberta
from bench.ways.roberta import RATIOS, WAYS, Exchange, Shape

from .rendering import MACHINE, words

TINY = Shape(layers=1, hidden=32, heads=2, vocabulary=50, length=16)
MIB = 2**20

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@needs_transformers
def test_fewer_bits_and_rows_keep_less():
    kept = {}
    for bits in memory.GRID_BITS:
        for ratio in RATIOS:
            torch.manual_seed(0)
            case = roberta.Case(TINY, Exchange(bits, ratio), 8, torch.device("cpu"))
            kept[bits, ratio] = graph_bytes(case.model, case.loss)
    for ratio in RATIOS:
        row = [kept[bits, ratio] for bits in (1, 2, 3, 4, None)]
        assert row == sorted(row)
        # Of each of the 8 x 16 x 4 x 32 elements between the two layers a bit more, and twice the levels in float32.
        steps = [later - earlier for earlier, later in pairwise(row[:4])]
        assert steps == [8 * 16 * 4 * 32 // 8 + 4 * 2**bits for bits in (1, 2, 3)]
    for bits in memory.GRID_BITS:
        assert kept[bits, 0.1] < kept[bits, 0.2] < kept[bits, 0.5] < kept[bits, None] * 1.2
    assert kept[3, 0.2] < kept[3, None]


def test_the_table_is_fewbits():
    assert {(way.bits, way.ratio) for way in WAYS.values()} == set(report.ROWS)
    vanilla = report.ROWS[None, None]
    for row in report.ROWS.values():
        # Both columns are rounded: to a hundredth of a GiB, and to a thousandth.
        assert row["saving"] == pytest.approx(1 - row["gib"] / vanilla["gib"], abs=0.01 / vanilla["gib"] + 0.0005)
    assert {(cell.bits, cell.ratio) for cell in memory.cells(Shape(), 16, quick=True)} == set(report.ROWS)
    assert len(memory.cells(Shape(), 16, quick=False)) == 20


def peak(activations, raw=2000):
    return {
        "kept_bytes": [900 * MIB],
        "peak_bytes": [(activations + 100) * MIB],
        "raw_bytes": [raw * MIB],
        "gradient_bytes": 100 * MIB,
    }


def cell(bits, ratio, found=None, **changes):
    return GridCell(bits, ratio, memory.grid_network(Shape()), 16, **(found or {}), **changes)


def text_of(*cells):
    return words(Record("fewbit", MACHINE, {"device": "cpu"}, list(cells)))


def test_what_is_judged():
    cells = [cell(None, None, peak(1000)), cell(3, None, peak(860)), cell(None, 0.2, peak(820)), cell(1, None, peak(1))]
    text = text_of(*cells)
    assert "…" not in text
    assert "12 layers, batch 16 exact exact 900.0 1,000.0 2,000.0 11.30" in text
    assert "3 bits exact 900.0 860.0 14.0 ✓ 2,000.0 0.0 9.75 13.8" in text
    assert "exact 20% of the rows 900.0 820.0 18.0 ✗ 2,000.0 0.0 9.20 18.6" in text
    assert "1 bit exact 900.0 1.0 99.9 2,000.0 0.0" in text  # nothing was published of it
    assert "published: FewBit's README" in text
    for small in (Shape(layers=2), Shape(vocabulary=1000)):  # --quick has fewer words
        assert "✓" not in text_of(*(replace(one, network=memory.grid_network(small)) for one in cells))
    assert "1 bit exact failed" in text_of(cells[0], cell(1, None, failure="it ended"))
    assert "1-bit GELU, exact linear, batch 16: failed: it ended." in text_of(cell(1, None, failure="it ended"))
    assert "14.0" not in text_of(*cells[1:])  # without the exact network nothing is compared


@needs_transformers
def test_a_run_is_taken_up_and_a_crash_is_recorded(monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    asked = []

    def measured(function, entry, *, way, shape, batch, **options):
        assert function is memory.measure_peak
        asked.append((way["bits"], way["ratio"]))
        if way["bits"] is None and way["ratio"] == 0.2:
            return replace(entry, failure="it ended")
        assert (shape["layers"], batch) == (1, 2)
        return replace(entry, **peak(1000 if way["bits"] is None else 800))

    monkeypatch.setattr(measure, "in_child", measured)
    command = ["fewbit", "--part", "grid", "--quick", "--layers", "1", "--batch", "2", "--threads", "1"]
    command += ["--json", str(file)]
    assert main.main(command) == 0
    assert asked == [(None, None), (3, None), (None, 0.2), (3, 0.2)]
    printed = capsys.readouterr().out
    assert "failed: it ended" in " ".join(printed.split())
    asked.clear()
    assert main.main(command) == 0
    assert asked == [(None, 0.2)]  # what failed is tried again
    found = suites.load(file)
    assert [(one.bits, one.ratio) for one in found.of(GridCell)] == [(None, None), (3, None), (None, 0.2), (3, 0.2)]
    assert all(one.commit for one in found.entries)
    assert "| 3 bits | exact |" in render_record(file.name, found)
    capsys.readouterr()
    # Another part goes into the same file, and takes nothing from it; another number of threads does not.
    monkeypatch.setattr(measure, "_RUN", {**measure._RUN, "time": lambda going, asked: going.add(TIMED)})
    assert main.main(["fewbit", "--part", "time", "--threads", "1", "--json", str(file)]) == 0
    assert (len(suites.load(file).of(GridCell)), len(suites.load(file).of(Times))) == (4, 1)
    assert main.main(["fewbit", "--part", "time", "--threads", "2", "--json", str(file)]) == 1
    assert "another number of threads" in capsys.readouterr().err


TIMED = Times("gelu", "activation", 8, [1.0], [1.0])


def test_what_cannot_be_counted_is_said(monkeypatch):
    monkeypatch.setattr(memory, "counters", lambda device: "needs Linux")
    [blank, *_] = memory.cells(TINY, 2, quick=True)
    found = memory.measure_peak(blank, way=asdict(Exchange()), shape=asdict(TINY), batch=2, steps=1, device="cpu")
    assert "exact GELU, exact linear, batch 2: needs Linux." in text_of(found)
    assert "exact exact not measured" in text_of(found)
