"""What the abstracts and READMEs of GACT and ActNN claim in words: how much less is kept, how much more fits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType

from bench.readmes.made import NOT_MEASURED, Made, recorded
from bench.results.record import Record
from bench.results.tables import columns, marked
from bench.suites.search.results import find_search, times_plain
from bench.suites.vision.compression.results import Cell
from bench.suites.vision.published import PEAK
from bench.ways.conversions import PLAIN

COMPRESSION, SEARCH = "vision-compression-cpu.json", "search-cpu.json"


@dataclass(frozen=True)
class Claim:
    """A claim, and what is measured beside it.

    Attributes:
        system, what: whose and which, in words.
        published: times, the highest where there are two.
        said: the same as it is said.
        measured: ``"kept"`` or ``"peak"`` of the part ``compression`` of ``vision``, or a dimension of ``search``.
        way: of theirs.
    """

    system: str
    what: str
    published: float
    said: str
    measured: str
    way: str

    @property
    def command(self) -> str:
        """That measures it."""
        if self.measured in ("kept", "peak"):
            return f"vision --part compression --channels-last --model resnet50 --way '{self.way}'"
        return f"search --search {self.measured} --way '{self.way}'"


CLAIMS = (
    Claim("GACT", "activations, up to", 8.1, "8.1", "kept", "L2.2"),
    Claim("GACT", "activations of ResNet-50, 4 bits", 6.7, "6.7", "kept", "L2"),
    Claim("GACT", "activations of ResNet-50, 2 bits", 11.3, "11.3", "kept", "L2.2"),
    Claim("GACT", "peak of ResNet-50, 2 bits", PEAK, f"{PEAK:g}", "peak", "L2.2"),
    Claim("GACT", "larger batch, least (ResNet-50; here of 16 channels)", 4.2, "4.2", "resnet50-batch", "L2.2"),
    Claim(
        "GACT",
        "larger batch, most (BERT-large; here 8 layers of 64)",
        24.7,
        "24.7",
        "bert-large-batch",
        "L1 + checkpoint",
    ),
    Claim("ActNN", "activations, 2 bits", 12.0, "12", "kept", "Q-layers L3"),
    Claim("ActNN", "larger batch, least (ResNet-50; here of 16 channels)", 6.6, "6.6", "resnet50-batch", "Q-layers"),
    Claim("ActNN", "larger batch, most", 14.0, "14", "resnet152-batch", "Q-layers"),
)


def table(folder: Path) -> Made:
    """A row for each claim.

    Args:
        folder: of the results.

    Raises:
        BenchError: a file holds something else.
    """
    compression, search = (
        recorded(folder, COMPRESSION, "vision"),
        recorded(folder, SEARCH, "search"),
    )
    made = columns("claim", "", "times\npublished", "times\nmeasured", "way", "python -m bench", labels=2)
    made.columns[-2].justify = made.columns[-1].justify = "left"
    for claim in CLAIMS:
        found = _measured(claim, compression, search)
        cell: RenderableType = NOT_MEASURED if found is None else marked(f"{found:.2f}", found >= claim.published)
        made.add_row(claim.system, claim.what, claim.said, cell, claim.way, claim.command)
    return Made(made, [found for found in (compression, search) if found is not None])


def _measured(claim: Claim, compression: Record | None, search: Record | None) -> float | None:
    if claim.measured in ("kept", "peak"):
        return None if compression is None else _smaller(compression, claim)
    found = None if search is None else find_search(search, claim.measured, claim.way)
    return None if search is None or found is None else times_plain(search, found)


def _smaller(record: Record, claim: Claim) -> float | None:
    """How many times less ResNet-50 keeps in channels last, or how much lower its peak is, by the lesser count."""
    cells = record.of(Cell, model="resnet50", channels_last=True)
    cell = next((one for one in cells if one.way == claim.way), None)
    plain = next((one for one in cells if one.way == PLAIN), None)
    if cell is None or plain is None or cell.inputs != plain.inputs:
        return None
    if claim.measured == "kept":
        return cell.ratio(plain)
    peaks = cell.peak_ratios(plain)
    return None if peaks is None else min(peaks)
