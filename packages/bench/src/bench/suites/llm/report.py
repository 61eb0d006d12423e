"""The tables and the chart of ``python -m bench llm``."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.models.decoders import SHAPES
from bench.results.charts import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILION, Panel, Series
from bench.results.record import Record, match_seeds, paired
from bench.results.report import Report
from bench.results.statistics import spread
from bench.results.tables import Column, bounded, interval, marked, mean, mib, number, table
from bench.suites.llm.entries import Learned, Trained, fallen
from bench.suites.llm.subjects import LOSS, MODEL, SUBJECTS
from bench.units import MIB
from bench.ways.decoders import CHECKPOINTS, CHUNKED, beside, label, planned_beside
from bench.ways.general import PLAIN

COLOURS = {
    PLAIN: INK,
    CHECKPOINTS: VERMILION,
    CHUNKED: ORANGE,
    beside("lean"): BLUE,
    planned_beside(0.0): PURPLE,
    beside(CHECKPOINTS): GREEN,
}
"""Of the ways that are drawn."""

_OF = "-tokens"  # how subjects are called that differ from another in tokens alone
_BASE = "-32k"


def _lines(record: Record, shape: str) -> dict[str, list[Trained]]:
    """Of a shape, those of each way that were measured with several numbers of tokens."""
    names = [name for name, one in SUBJECTS.items() if one.shape == shape and name.endswith((_OF, shape + _BASE))]
    names.sort(key=lambda name: SUBJECTS[name].tokens)
    lines = {way: [cell for name in names for cell in record.of(Trained, subject=name, way=way)] for way in COLOURS}
    measured = {way: [cell for cell in cells if cell.beside] for way, cells in lines.items()}
    return {way: cells for way, cells in measured.items() if len(cells) > 1}


# Of the loss of 4,096 rows of 512 features with 32,000 classes in float32: asked for, at most.
_PEAK, _LOSS_ERROR, _TIME = 90 * MIB, 1e-6, 1.1
_ASKED = ("loss-32k", CHUNKED)
_FALLEN = 0.5


def tables(record: Record) -> Iterator[Table]:
    """One of losses, one of each model, and one of trainings."""
    subjects = record.values(Trained, "subject")
    losses = [name for name in subjects if SUBJECTS[name].kind == LOSS]
    if losses:
        yield _losses([cell for name in losses for cell in record.of(Trained, subject=name)])
    for name in subjects:
        if SUBJECTS[name].kind == MODEL:
            yield _model(record.of(Trained, subject=name))
    if record.of(Learned):
        yield _trainings(record)


def _losses(cells: list[Trained]) -> Table:
    first: dict[str, Trained] = {}
    for cell in cells:
        first.setdefault(cell.subject, cell)
    return table(
        cells,
        ("loss of", lambda cell: SUBJECTS[cell.subject].what if cell is first[cell.subject] else ""),
        ("way", lambda cell: label(cell.way)),
        *_BYTES,
        ("of the loss", _loss_error),
        ("time", _time),
        labels=2,
        instead=lambda cell: _instead(cell, 5),
    )


def _model(cells: list[Trained]) -> Table:
    return table(
        cells,
        (SUBJECTS[cells[0].subject].what, lambda cell: label(cell.way)),
        *_BYTES,
        ("time", _time),
        instead=lambda cell: _instead(cell, 4),
    )


def _instead(cell: Trained, columns: int) -> list[RenderableType] | None:
    return [cell.outcome, *[""] * (columns - 1)] if cell.peak is None else None


def _peak(cell: Trained) -> Text:
    return marked(mib(cell.peak), (cell.peak or 0) <= _PEAK if _asked(cell) else None)


def _asked(cell: Trained) -> bool:
    return (cell.subject, cell.way) == _ASKED


def _loss_error(cell: Trained) -> Text:
    return marked(f"{cell.loss_error:.1e}", cell.loss_error <= _LOSS_ERROR if _asked(cell) else None)


def _time(cell: Trained) -> RenderableType:
    ratio = cell.ratio
    if ratio is None:
        return Text("")
    if cell.way == SUBJECTS[cell.subject].ways[0]:
        return Text(f"1 ({1000 * min(cell.seconds):,.0f} ms)  ")
    judged = cell.way == CHUNKED and SUBJECTS[cell.subject].kind == LOSS
    return bounded(ratio, ".2f", most=_TIME if judged else None)


_BYTES: tuple[Column[Trained], ...] = (
    ("peak of a step\nMiB", _peak),
    ("without gradients\nMiB", lambda cell: mib(cell.beside)),
    ("error of\nthe gradient", lambda cell: f"{cell.error:.1e}" if cell.error else "0"),
)


def _trainings(record: Record) -> Table:
    def differences(way: str, value: str) -> str:
        found = paired(_done(record, way), _done(record, PLAIN), lambda one: getattr(one, value))
        return "" if way == PLAIN else interval(found, 4)

    def scatter(way: str) -> str:
        pairs = match_seeds(_done(record, way), _done(record, PLAIN))
        return (
            "" if way == PLAIN else number(spread([(one.end or 0) - (other.end or 0) for one, other in pairs]), ".4f")
        )

    return table(
        record.values(Learned, "way"),
        ("training", label),
        ("loss at the end\nby seed", lambda way: ", ".join(number(one.end, ".3f") for one in _done(record, way))),
        ("difference\nfrom plain", lambda way: differences(way, "end")),
        ("scatter\nof it", scatter),
        ("fallen\n%", lambda way: _fallen(record, way)),
        ("held out", lambda way: mean([one.held_out or 0.0 for one in _done(record, way)], 3)),
        ("difference\nfrom plain ", lambda way: differences(way, "held_out")),
    )


def _done(record: Record, way: str) -> list[Learned]:
    return [one for one in record.of(Learned, way=way) if one.end is not None]


def _fallen(record: Record, way: str) -> Text:
    found = fallen(record, way)
    return Text("") if found is None else marked(f"{100 * found:.0f}", found >= _FALLEN)


def panels(record: Record) -> list[Panel]:
    """What a step takes beside gradients against its tokens, a panel for each kind of training."""
    found = []
    for shape, kind in SHAPES.items():
        series = []
        for way, cells in _lines(record, shape).items():
            tokens = [SUBJECTS[cell.subject].tokens for cell in cells]
            series.append(Series(tokens, [(cell.beside or 0) / MIB for cell in cells], way, COLOURS[way], "o-"))
        if series:
            found.append(Panel(kind.what, "tokens", "MiB beside gradients", series=series, log="xy"))
    return found


CAPTION = "The peak of a step beside its gradients, by the tokens of a forward."
REPORT = Report("Language models", tables, panels=panels, caption=lambda record: CAPTION)
