"""What the searches of GACT's and ActNN's authors have found within a GPU of 16 GiB, by dimension.

GACT: Liu et al., "GACT: Activation Compressed Training for Generic Network Architectures", ICML 2022: the recorded
results in the history of its repository (``speed_results.json``, ``max_*_results.json``). ActNN: Chen et al., "ActNN:
Reducing Training Memory Footprint via 2-Bit Activation Compressed Training", ICML 2021: ResNet-50 from the throughput
figure of its repository, read to about 3 %, and ResNet-152 from a later recording (``speed_results_v1.json``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Figure:
    """The largest number that a system has reached.

    Attributes:
        system: the system, and how it was set.
        value: the number.
        plain: the number at full precision, of the same source.
        way: the way of ours that does the same; empty where none does.
    """

    system: str
    value: int
    plain: int
    way: str = ""

    @property
    def ratio(self) -> float:
        """Over full precision's."""
        return self.value / self.plain

    def __str__(self) -> str:
        return f"{self.system}: {self.plain:,} -> {self.value:,}"


_CHECKPOINT = "each block (torch)"


def _of(plain: int, *figures: tuple[str, int] | tuple[str, int, str]) -> tuple[Figure, ...]:
    return tuple(Figure(system, value, plain, *way) for system, value, *way in figures)


def _berts(plain: int, least: int, swap: int, both: int, attention: int, checkpoint: int) -> tuple[Figure, ...]:
    return _of(
        plain,
        ("GACT, 4 bits", least, "L2"),  # adaptive bits there, fixed ones in the image models
        ("GACT, 4 bits, swap", swap, "L4bit-swap"),
        ("GACT, 4 bits, swap, checkpoints", both),
        ("the same, attention in chunks", attention),
        ("checkpoints alone", checkpoint, _CHECKPOINT),
    )


def _sizes(plain: int, four: int, two: int) -> tuple[Figure, ...]:
    return _of(plain, ("GACT, 4 bits", four, "L2"), ("GACT, 2 bits", two, "L2.2"))


PUBLISHED: Mapping[str, tuple[Figure, ...]] = MappingProxyType(
    {
        "resnet50-batch": _of(
            160,
            ("GACT, 4 bits", 448, "L1"),
            ("GACT, 4 bits, swap", 672, "L4bit-swap"),
            ("ActNN L1", 256),
            ("ActNN L2", 416),
            ("ActNN L3", 608, "Q-layers"),
            ("ActNN L4", 768),
            ("ActNN L5", 1056),
        ),
        "resnet152-batch": _of(
            64,
            ("GACT, 4 bits", 384, "L1"),
            ("GACT, 4 bits, swap", 640, "L4bit-swap"),
            ("ActNN L1", 128),
            ("ActNN L2", 352),
            ("ActNN L3", 480, "Q-layers"),
            ("ActNN L4", 736),
        ),
        "resnet-depth": _sizes(160, 368, 528),
        "resnet-width": _sizes(88, 284, 316),
        "resnet-resolution": _sizes(232, 492, 576),
        "swin-tiny-batch": _of(112, ("GACT, 4 bits", 384, "L1"), ("GACT, 4 bits, swap", 632, "L4bit-swap")),
        "swin-small-batch": _of(64, ("GACT, 4 bits", 336, "L1")),
        "bert-base-batch": _berts(104, 456, 992, 1152, 1344, 744),
        "bert-large-batch": _berts(24, 128, 352, 560, 592, 308),
        "bert-layers": _sizes(32, 56, 60),
        "bert-hidden": _sizes(1280, 1920, 1936),
        "gcn-layers": _sizes(24, 152, 240),
        "gcn-hidden": _sizes(2464, 3948, 4244),
    }
)
"""By the name of the search; searches that the originals did not make are not here."""


def published(dimension: str, way: str) -> Iterator[Figure]:
    """The figures of a dimension that belong beside a way; those of no way with ``""``."""
    return (figure for figure in PUBLISHED.get(dimension, ()) if figure.way == way)
