"""OptimalGradCheckpointing's table: the activation peaks of 18 architectures, plain and checkpointed, on a GPU."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from bench.models.architectures import ARCHITECTURES, Architecture
from bench.readmes.made import NOT_MEASURED, Made, recorded
from bench.results.record import Record
from bench.results.tables import columns, marked
from bench.suites.memory.checkpoint.results import Peak
from bench.suites.memory.checkpoint.results import cut as cut_of
from bench.suites.memory.checkpoint.targets import at_own_size, published_cut
from bench.units import MIB
from bench.ways.checkpoints import LEAST, LEAST_MASKS, PLAIN

CHANNELS_LAST, USUAL = "checkpoint-channels-last-cpu.json", "checkpoint-cpu.json"


def table(folder: Path) -> Made:
    """A row for each of the 18.

    Args:
        folder: of the results.

    Raises:
        BenchError: a file holds something else.
    """
    last, usual = (recorded(folder, file, "checkpoint") for file in (CHANNELS_LAST, USUAL))
    made = columns(
        "architecture",
        "inputs",
        "plain, MB\npublished",
        "least, MB\npublished",
        "cut, %\npublished",
        "time, +%\npublished",
        "plain, MiB\nmeasured",
        "least, MiB\nmeasured",
        "cut, %\nmeasured",
        "time, +%\nmodelled",
        "python -m bench checkpoint --part memory",
        labels=2,
    )
    made.columns[-1].justify = "left"
    for architecture in ARCHITECTURES.values():
        if architecture.published is not None:
            made.add_row(*_published(architecture), *_measured(architecture, LEAST, last, usual))
            with_masks = _measured(architecture, LEAST_MASKS, last, usual)
            if with_masks[0] != NOT_MEASURED:
                made.add_row("the same, 1-bit ReLUs", *[""] * 5, *with_masks)
    return Made(made, [found for found in (last, usual) if found is not None])


def _published(architecture: Architecture) -> list[str]:
    published = architecture.published
    assert published is not None
    return [
        architecture.name,
        f"{architecture.batch} at {architecture.size}",
        f"{published.megabytes:,}",
        f"{published.checkpointed_megabytes:,}",
        f"{100 * published.cut:.0f}",
        f"{100 * published.overhead:.0f}",
    ]


def _measured(architecture: Architecture, way: str, last: Record | None, usual: Record | None) -> list[Text | str]:
    """In channels last, where the model has been measured so; otherwise in torch's usual order."""
    plan = at_own_size(usual, architecture.name) if usual is not None and way == LEAST else None
    time = "" if plan is None else f"{100 * plan.overheads[0]:.0f}"
    for results, option in ((last, " --channels-last"), (usual, "")):
        peaks = _peaks(results, architecture, way) if results is not None else None
        if results is None or peaks is None:
            continue
        plain, least = peaks
        cut = cut_of(results, least) or 0.0
        return [
            f"{(plain.peak_bytes or 0) / MIB:,.0f}",
            f"{(least.peak_bytes or 0) / MIB:,.0f}",
            marked(f"{100 * cut:.1f}", published_cut(results, least)),
            time,
            f"--model {architecture.name}{option}",
        ]
    return [NOT_MEASURED, "", "", time, f"--model {architecture.name} --channels-last"]


def _peaks(results: Record, architecture: Architecture, way: str) -> tuple[Peak, Peak] | None:
    """The plain one and that of a way, at the table's own size."""
    at = {"model": architecture.name, "batch": architecture.batch, "size": architecture.size}
    plain, least = (results.find(Peak, way=one, **at) for one in (PLAIN, way))
    if plain is None or least is None or plain.peak_bytes is None or least.peak_bytes is None:
        return None
    return plain, least
