"""Results of ``python -m bench text`` as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from bench.layout import columns, header, short
from bench.statistics import Difference, spread
from bench.systems.ways import PLAIN
from bench.text import beside
from bench.text.notes import notes
from bench.text.results import Cell, Facts, Run, TextResults
from bench.units import MIB


def render(results: TextResults) -> RenderableType:
    """Header, tables and notes."""
    top = header("BERT on GLUE's tasks, in every way", results.machine, results.seconds)
    return Group(top, *_tables(results), *beside.tables(results), Text("\n".join(notes(results)), style="dim"))


def trained(results: TextResults) -> list[tuple[str, str]]:
    """Networks and tasks of which there are runs, in order."""
    return list(dict.fromkeys((run.model, run.task) for run in results.runs))


def _tables(results: TextResults) -> Iterator[Table]:
    for model, task in trained(results):
        yield _accuracy(results, model, task)
    shapes = list(dict.fromkeys((cell.model, cell.batch, cell.length) for cell in results.cells))
    for shape in shapes:
        cells = [cell for cell in results.cells if (cell.model, cell.batch, cell.length) == shape]
        model, batch, length = shape
        if any(cell.live_bytes or cell.not_measured or not cell.seconds for cell in cells):
            yield _memory(f"memory of {model}, {batch} x {length} tokens", cells)
        if any(cell.seconds for cell in cells):
            yield _time(f"time of {model}, {batch} x {length} tokens", cells)


def _accuracy(results: TextResults, model: str, task: str) -> Table:
    runs = [run for run in results.runs if (run.model, run.task) == (model, task)]
    facts = results.of_task(task)
    names = list(facts.majority if facts else ())
    heads = (f"{name}\n%" for name in names)
    table = columns(
        f"{task}, {model}",
        "seeds",
        *heads,
        "difference\npoints",  # of the first metric, which the task is known by
        "held-out\nloss",
        "\ndifference",
        "times\nsmaller",
        "",
    )
    for way in dict.fromkeys(run.way for run in runs):
        done = results.finished(model, task, way)
        cells = [_mean([run.metrics[name] for run in done], 1) for name in names]
        cells.append(_interval(results.difference(model, task, way, _metric(names[0])), 2) if names else "")
        cells.append(_mean([run.held_out for run in done], 3))
        cells.append(_interval(results.difference(model, task, way, _held_out), 4))
        smaller = results.smaller(model, task, way)
        failed = [run for run in runs if run.way == way and not run.done]
        reasons = dict.fromkeys((run.failure and f"failed: {run.failure}") or run.does_not_apply for run in failed)
        table.add_row(
            way,
            str(len(done)),
            *cells,
            "" if smaller is None else f"{smaller:.1f}",
            Text(short("; ".join(reasons)), style="dim"),
        )
    for row in _yardsticks(facts, names):
        table.add_row(*row, style="dim")
    return table


def _yardsticks(facts: Facts | None, names: Sequence[str]) -> Iterator[list[str]]:
    """Rows of who was not trained."""
    if facts is None:
        return
    majority = [f"{facts.majority[name]:.1f}" for name in names]
    yield ["(one answer for all)", "", *majority, "", f"{facts.frequency_loss:.3f}", "", "", ""]
    if facts.ceiling is not None:
        yield ["(who knows the rule)", "", f"{facts.ceiling:.1f}", *[""] * len(names), "0.000", "", "", ""]


def _metric(name: str) -> Callable[[Run], float]:
    return lambda run: run.metrics[name]


def _held_out(run: Run) -> float:
    return run.held_out


def _mean(values: Sequence[float], places: int) -> str:
    if not values:
        return ""
    deviation = spread(values)
    return f"{fmean(values):.{places}f}" + ("" if deviation is None else f" ± {deviation:.{places}f}")


def _interval(found: Difference | None, places: int) -> str:
    if found is None:
        return ""
    mean = f"{found.mean:+.{places}f}"
    return mean if found.low is None else f"{mean} [{found.low:+.{places}f}, {found.high:+.{places}f}]"


def _memory(heading: str, cells: Sequence[Cell]) -> Table:
    peaks = ("peak\nMiB", "\nof plain's, %", "with gradients\nMiB", "\nof plain's, %")
    table = columns(heading, "kept\nMiB", "times\nsmaller", "live\nMiB", *peaks, "")
    plain = next((cell for cell in cells if cell.way == PLAIN), None)
    for cell in cells:
        kept = cell.original_bytes if cell.way == PLAIN else cell.stored_bytes
        original, peak, whole = (plain.original_bytes, plain.peak_bytes, plain.whole_bytes) if plain else (None,) * 3
        table.add_row(
            cell.way,
            _mib(kept),
            "" if not (original and cell.stored_bytes) else f"{original / cell.stored_bytes:.1f}",
            _mib(cell.live_bytes),
            _mib(cell.peak_bytes),
            _percent(cell.peak_bytes, peak),
            _mib(cell.whole_bytes),
            _percent(cell.whole_bytes, whole),
            Text(_reason(cell), style="dim"),
        )
    return table


def _percent(nbytes: int | None, plain: int | None) -> str:
    return f"{100 * nbytes / plain:.0f}" if nbytes and plain else ""


def _time(heading: str, cells: Sequence[Cell]) -> Table:
    table = columns(heading, "step\nms", "sentences\na second", "time over\nplain's", "")
    for cell in cells:
        table.add_row(
            cell.way,
            "" if not cell.seconds else f"{1e3 * median(cell.seconds):,.1f}",
            "" if cell.throughput is None else f"{cell.throughput:,.2f}",
            "" if cell.ratio is None else f"{cell.ratio:.2f}",
            Text(_reason(cell), style="dim"),
        )
    return table


def _mib(nbytes: int | None) -> str:
    return "" if nbytes is None else f"{nbytes / MIB:,.1f}"


def _reason(cell: Cell) -> str:
    return short((cell.failure and f"failed: {cell.failure}") or cell.does_not_apply or cell.not_measured)
