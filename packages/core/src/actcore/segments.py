"""``checkpoint_segments``: which tensors of a graph to keep, so that they and the largest segment take least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import actcore._native as _native
from actcore.forms import require_bytes, require_int
from actcore.plans import require_steps

_STEPS = 2_000_000
_STEPS_A_TENSOR = 4_000


@dataclass(frozen=True)
class CheckpointSegments:
    """The kept tensors, and the segments into which the others fall.

    Attributes:
        kept: for each tensor, whether it is kept.
        segments: the connected components of the other tensors, each in ascending order.
        kept_bytes: the bytes of the kept tensors.
        largest: the bytes of the largest segment.
        lower_bound: no choice has a smaller ``total``. Equal to ``total`` if the choice is proven optimal.
        steps: the number of partial solutions that were examined.
    """

    kept: tuple[bool, ...]
    segments: tuple[tuple[int, ...], ...]
    kept_bytes: int
    largest: int
    lower_bound: int
    steps: int

    @property
    def total(self) -> int:
        """The bytes of the kept tensors and of the largest segment."""
        return self.kept_bytes + self.largest

    @property
    def gap(self) -> float:
        """``total`` is at most ``1 + gap`` times the optimum: 0 if it is proven optimal."""
        if self.total == self.lower_bound:
            return 0.0
        return self.total / self.lower_bound - 1 if self.lower_bound else math.inf


def checkpoint_segments(
    nbytes: Sequence[int], edges: Sequence[tuple[int, int]], *, max_steps: int | None = None
) -> CheckpointSegments:
    """Pick the tensors of a computation graph to keep, so that they and the largest segment take the fewest bytes.

    The objective is that of Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation graphs" (CVPR
    2021): the bytes of the kept tensors plus those of the largest segment. Segments are the connected components of the
    other tensors. In the paper segments have one tensor at each end. Here any set may be kept, so a segment may have
    several boundary tensors, and the optimum is at least as good. For a bound on the largest segment, dynamic
    programming along the graph finds the cheapest set; a bisection over the bounds finds the best one. The result is
    proven optimal for chains and for graphs as narrow as ResNet or DenseNet; if ``max_steps`` ends the search early,
    ``gap`` bounds the distance to the optimum.

    Tensors of 0 bytes are kept. Give this size to tensors that cost nothing to keep, such as the graph's input and
    result.

    Args:
        nbytes: bytes of each tensor, in an order in which they can be computed; the search is fast along that order.
        edges: pairs of tensors; an operator makes the second from the first. Several edges between two tensors count
            once.
        max_steps: bounds the time (100 to 200 ns a step). ``None``: 2 million, and 4,000 for each tensor.

    Raises:
        TypeError: a size or an end of an edge is not an int.
        ValueError: a size is negative, an edge is not a pair of two tensors, or ``max_steps`` is out of range. The
            message says which.
    """
    for name, value in (("nbytes", nbytes), ("edges", edges)):
        if not isinstance(value, Sequence):
            raise TypeError(f"{name} must be a sequence, got {value!r}")
    require_bytes("nbytes", nbytes)
    pairs = []
    for i, edge in enumerate(edges):
        if not isinstance(edge, Sequence) or len(edge) != 2:
            raise ValueError(f"edges[{i}] must be a pair of tensors, got {edge!r}")
        for tensor in edge:
            require_int(f"each end of edges[{i}]", tensor)
            if not 0 <= tensor < len(nbytes):
                raise ValueError(f"edges[{i}] must join tensors from 0 to {len(nbytes) - 1}, got {tensor}")
        if edge[0] == edge[1]:
            raise ValueError(f"edges[{i}] must join two tensors, got {edge[0]} twice; leave it out")
        pairs.append((edge[0], edge[1]))
    if max_steps is None:
        max_steps = _STEPS + _STEPS_A_TENSOR * len(nbytes)
    require_steps(max_steps)
    found, kept_bytes, largest, lower_bound, steps = _native.find_segments(list(nbytes), pairs, max_steps)
    kept = tuple(map(bool, found))
    return CheckpointSegments(kept, _pieces(kept, pairs), kept_bytes, largest, lower_bound, steps)


def _pieces(kept: Sequence[bool], edges: Sequence[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    neighbours: list[list[int]] = [[] for _ in kept]
    for a, b in edges:
        if not kept[a] and not kept[b]:
            neighbours[a].append(b)
            neighbours[b].append(a)
    seen = list(kept)
    pieces = []
    for start in range(len(kept)):
        if seen[start]:
            continue
        seen[start] = True
        piece = [start]
        for tensor in piece:
            for other in neighbours[tensor]:
                if not seen[other]:
                    seen[other] = True
                    piece.append(other)
        pieces.append(tuple(sorted(piece)))
    return tuple(pieces)
