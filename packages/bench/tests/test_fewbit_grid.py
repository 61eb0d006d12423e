"""The part ``grid`` of ``python -m bench fewbit``: cells, what is taken up, what fails, and what is judged."""

import importlib.util
import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from bench import cli, records
from bench.errors import BenchError
from bench.fewbit import grid, measure, memory, published, roberta
from bench.fewbit.report import render
from bench.fewbit.results import FewBitResults, GridCell, Peak, Times
from bench.fewbit.roberta import WAYS, Shape, Way
from bench.layout import console
from bench.machine import Machine
from bench.pages import rendered
from bench.vision.memory import graph_bytes

MACHINE = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123", False, "python", "today")
TINY = Shape(layers=1, hidden=32, heads=2, vocabulary=50, length=16)
MIB = 2**20

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


@needs_transformers
def test_fewer_bits_and_rows_keep_less():
    kept = {}
    for bits in grid.BITS:
        for ratio in grid.RATIOS:
            torch.manual_seed(0)
            case = roberta.Case(TINY, Way(bits, ratio), 8, torch.device("cpu"))
            kept[bits, ratio] = graph_bytes(case.model, case.loss)
    for ratio in grid.RATIOS:
        row = [kept[bits, ratio] for bits in (1, 2, 3, 4, None)]
        assert row == sorted(row)
        # Of each of the 8 x 16 x 4 x 32 elements between the two layers a bit more, and twice the levels in float32.
        steps = [later - earlier for earlier, later in pairwise(row[:4])]
        assert steps == [8 * 16 * 4 * 32 // 8 + 4 * 2**bits for bits in (1, 2, 3)]
    for bits in grid.BITS:
        assert kept[bits, 0.1] < kept[bits, 0.2] < kept[bits, 0.5] < kept[bits, None] * 1.2
    assert kept[3, 0.2] < kept[3, None]


def test_the_table_is_fewbits():
    assert {(way.bits, way.ratio) for way in WAYS.values()} == set(published.ROWS)
    vanilla = published.ROWS[None, None]
    for row in published.ROWS.values():
        # Both columns are rounded: to a hundredth of a GiB, and to a thousandth.
        assert row.saving == pytest.approx(1 - row.gib / vanilla.gib, abs=0.005 / vanilla.gib * 2 + 0.0005)
    assert {(cell.bits, cell.ratio) for cell in grid.cells(Shape(), 16, quick=True)} == set(published.ROWS)
    assert len(grid.cells(Shape(), 16, quick=False)) == 20


def peak(activations, raw=2000):
    return Peak("", [900 * MIB], [(activations + 100) * MIB], [raw * MIB], 100 * MIB)


def cell(bits, ratio, found=None, **changes):
    return replace(GridCell(bits, ratio, grid.network(Shape()), 16, found), **changes)


def text_of(*cells):
    output = console()
    with output.capture() as captured:
        output.print(render(FewBitResults(MACHINE, "cpu", grid=list(cells))))
    return " ".join(captured.get().split())


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
        assert "✓" not in text_of(*(replace(one, network=grid.network(small)) for one in cells))
    assert "1 bit exact failed" in text_of(cells[0], cell(1, None, failure="it ended"))
    assert "1-bit GELU, exact linear, batch 16: failed: it ended." in text_of(cell(1, None, failure="it ended"))
    assert "14.0" not in text_of(*cells[1:])  # without the exact network nothing is compared


@needs_transformers
def test_a_run_is_taken_up_and_a_crash_is_recorded(monkeypatch, tmp_path, capsys):
    file = tmp_path / "out.json"
    asked = []

    def answer(module, request):
        assert module == memory.MODULE
        way = Way(**request["way"])
        asked.append((way.bits, way.ratio))
        if way.bits is None and way.ratio == 0.2:
            raise BenchError("it ended")
        assert (request["shape"]["layers"], request["batch"]) == (1, 2)
        return json.loads(json.dumps(vars(peak(1000 if way.bits is None else 800))))

    monkeypatch.setattr(grid, "child_answer", answer)
    command = ["fewbit", "--part", "grid", "--quick", "--layers", "1", "--batch", "2", "--threads", "1"]
    command += ["--json", str(file)]
    assert cli.main(command) == 0
    assert asked == [(None, None), (3, None), (None, 0.2), (3, 0.2)]
    printed = capsys.readouterr().out
    assert "failed: it ended" in " ".join(printed.split())
    asked.clear()
    assert cli.main(command) == 0
    assert asked == [(None, 0.2)]  # what failed is tried again
    found = records.load(file)
    assert [(one.bits, one.ratio) for one in found.grid] == [(None, None), (3, None), (None, 0.2), (3, 0.2)]
    assert all(one.commit for one in found.grid)
    assert isinstance(found.grid[0].peak, Peak)
    page = "<!-- table out.json: grid -->\n<!-- /table -->\n"
    assert "| 3 bits | exact |" in rendered(page, tmp_path).text
    capsys.readouterr()
    # Another part goes into the same file, and takes nothing from it; another number of threads does not.
    monkeypatch.setattr(measure, "_RUN", {**measure._RUN, "time": lambda options, results, advance: timed(results)})
    assert cli.main(["fewbit", "--part", "time", "--threads", "1", "--json", str(file)]) == 0
    assert (len(records.load(file).grid), len(records.load(file).times)) == (4, 1)
    assert cli.main(["fewbit", "--part", "time", "--threads", "2", "--json", str(file)]) == 1
    assert "holds other results" in capsys.readouterr().err


def timed(results):
    return replace(results, times=[Times("gelu", "activation", 8, [1.0], [1.0])])


def test_what_cannot_be_counted_is_a_failure(monkeypatch):
    monkeypatch.setattr(grid, "child_answer", lambda module, request: vars(Peak("", not_measured="needs Linux")))
    kept = []
    wanted = grid.cells(TINY, 2, quick=True)[:1]
    grid.measure(TINY, wanted, 1, torch.device("cpu"), [], "0123", lambda cells, what: kept.append((cells, what)))
    [(cells, what)] = kept
    assert cells[0].failure == "needs Linux"
    assert what == "grid, exact GELU, exact linear"
