"""An answer as a table and a bar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from integrations._utils.rich_text import get_width, to_text
from integrations.report.words import format_bytes, format_share

if TYPE_CHECKING:
    from integrations.estimate.fit.answer import Fit, Way

_BAR = 60  # characters of the memory
_MARKS = "WGOALT"
_TWO_STATES = ("adam", "adamw", "adamw-fused")


def make_table(fit: Fit) -> str:
    """What takes the memory, the ways to train with what each takes, and what to do."""
    parts, ways = (to_text(table, get_width(without_terminal=120)) for table in (_parts(fit), _ways(fit)))
    return "\n".join((_title(fit), parts, _bar(fit), ways, *_sentences(fit)))


def _title(fit: Fit) -> str:
    mesh = ", ".join(f"{name} {getattr(fit, name)}" for name in ("fsdp", "tp", "pp") if getattr(fit, name) > 1)
    ranks = f" on each of {fit.ranks} ranks ({mesh})" if mesh else ""
    return (
        f"{fit.model}: {format_bytes(fit.memory)}{ranks}, of which {format_bytes(fit.memory - fit.available)} are "
        f"reserved for memory that is not counted; {fit.optimizer}; {fit.standing.parameters:,} parameters, "
        f"{fit.standing.trained:,} of them trained"
    )


def _count_parts(fit: Fit, way: Way) -> dict[str, int]:
    """What takes the memory at the highest moment of a way, in bytes."""
    stage = fit.stages[way.stage] if fit.stages else fit
    standing = stage.standing
    return {
        "weights": standing.weights + way.gathered,
        "gradients": way.gradients,
        "optimizer states": standing.states,
        "activations": way.activations + stage.inputs,
        "loss": way.loss,
        "temporaries": way.temporaries,
    }


def _shown(fit: Fit) -> list[Way]:
    """The ways whose parts are shown: plain, and the one that fits or takes the least."""
    plain = [way for way in fit.ways if way.name == "plain" and way.peak]
    return plain if plain and fit.best is plain[0] else [*plain, fit.best]


def _parts(fit: Fit) -> Table:
    table = Table()
    table.add_column("at the peak")
    shown = _shown(fit)
    for way in shown:
        table.add_column(way.name, justify="right")
        table.add_column("of the memory", justify="right")
    for name in _count_parts(fit, shown[0]):
        cells = [_count_parts(fit, way)[name] for way in shown]
        table.add_row(name, *(text for cell in cells for text in (format_bytes(cell), format_share(cell, fit.memory))))
    table.add_section()
    sums = (text for way in shown for text in (format_bytes(way.peak), format_share(way.peak, fit.memory)))
    table.add_row("in all", *sums)
    return table


def _bar(fit: Fit) -> str:
    lines = []
    for way in _shown(fit):
        bar, end, total = "", 0.0, fit.memory / _BAR
        for mark, nbytes in zip(_MARKS, _count_parts(fit, way).values(), strict=True):
            end += nbytes / total
            bar += mark * (round(end) - len(bar))
        inside, over = bar[:_BAR].ljust(_BAR), bar[_BAR : 2 * _BAR]
        more = "..." if len(bar) > 2 * _BAR else ""
        lines.append(f"|{inside}|{over}{more} {way.name}")
    return "\n".join((*lines, "W weights, G gradients, O optimizer, A activations, L loss, T temporaries"))


def _ways(fit: Fit) -> Table:
    table = Table()
    for heading in ("way", "peak", "fits", "time", "error"):
        table.add_column(heading, justify="left" if heading == "way" else "right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for way in fit.ways:
        table.add_row(
            way.name,
            format_bytes(way.peak) if way.peak else "",
            ("yes" if way.fits else "no") if way.peak else "",
            "" if way.time is None else f"{way.time:.2f}",
            "" if not way.peak else "rounds" if way.error is None else f"{way.error:g}",
            Text("; ".join(filter(None, (way.code, way.does, way.note)))),
        )
    return table


def _sentences(fit: Fit) -> Iterator[str]:
    if fit.fits:
        yield "It fits as it is."
    elif fit.answer is not None:
        yield f"It does not fit as it is. It fits with: {fit.code}" if fit.total else f"It fits with: {fit.code}"
        yield _way_in_words(fit, fit.answer)
    else:
        over = fit.best.peak - fit.available
        yield f"Nothing that was tried fits: {fit.best.name} takes {format_bytes(over)} too much. {_advice(fit)}"
    if fit.best.stages:
        peaks = ", ".join(map(format_bytes, fit.best.stages))
        yield f"By stage of the pipeline, {fit.best.name} takes {peaks}."
    if fit.largest_batch is not None:
        yield f"The largest batch that fits with {fit.grown} is {fit.largest_batch:,}."
    if fit.longest is not None:
        yield f"The longest sequences that fit with {fit.grown} have {fit.longest:,} tokens."
    yield from fit.notes


def _advice(fit: Fit) -> str:
    """Return what takes less, without what the training does already."""
    less = ["A smaller batch", "shorter sequences"] if fit.tokens is not None else ["A smaller batch"]
    if fit.standing.trained == fit.standing.parameters:
        less.append("adapters alone (lora=16)")
    if fit.optimizer in _TWO_STATES:
        less.append("an optimizer with fewer states (optimizer='adamw-8bit')")
    return f"{', '.join(less)} and more ranks (fsdp={max(8, 2 * fit.fsdp)}) take less."


def _way_in_words(fit: Fit, way: Way) -> str:
    """Return what the line of code of a way will do, in words."""
    if way.error is None:
        gradients = "gradients are rounded, without a bound on their error"
    else:
        gradients = f"gradients are within an error of {way.error:g}" if way.error else "gradients are exact"
    does = f"it {way.does}; " if way.does else ""
    time = "" if way.time is None else f" and {way.time:.2f} of the plain step's time"
    room = f"of the {format_bytes(fit.available)} that it may take"
    return f"With this line, {does}{gradients}. Predicted: {format_bytes(way.peak)} {room}{time}."
