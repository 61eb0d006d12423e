"""``paper_segments``: the paper's objective, on the paper's own accounting of a graph.

Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation graphs" (CVPR 2021), minimise what is kept
plus the largest segment. A plain step counts as keeping every operator's result, whether backward needs it or not. What
else an operator makes (BatchNorm's statistics, dropout's masks, pooling's indices) does not count, nor do the inputs
and the result. An activation that works in place changes no count; a sum in place counts like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from actcore import CheckpointSegments, checkpoint_segments
from integrations.capture.graphs.graph import Graph


@dataclass(frozen=True)
class PaperSegments:
    """What the paper's objective keeps.

    Attributes:
        kept: the graph's values that are kept.
        plain_bytes: bytes of all results.
        found: the choice, with its bytes and a lower bound on those of all choices.
    """

    kept: frozenset[int]
    plain_bytes: int
    found: CheckpointSegments

    @property
    def cut(self) -> float:
        """The predicted saving, as a fraction of all results' bytes."""
        return 1 - self.found.total / self.plain_bytes if self.plain_bytes else 0.0


def paper_segments(graph: Graph) -> PaperSegments:
    """Picks the results to keep.

    Args:
        graph: of the model.
    """
    nodes: list[int] = []  # by result: the value that it is in the end, if it is changed in place
    node_of: dict[int, int] = {}  # by value: its result
    sizes: list[int] = []
    edges: set[tuple[int, int]] = set()
    for op in graph.ops:
        reads = {node_of[value] for value in op.reads}
        main = op.makes[0]
        old = graph.values[main].reuses
        if old >= 0 and len(reads) == 1:
            node = node_of[old]
            nodes[node] = main
        else:
            node = len(nodes)
            nodes.append(main)
            sizes.append(graph.values[main].nbytes)
        for value in op.makes:
            node_of[value] = node
        edges |= {(read, node) for read in reads if read != node}
    for value in graph.outputs:
        sizes[node_of[value]] = 0
    found = checkpoint_segments(sizes, sorted(edges))
    kept = {nodes[node] for node, is_kept in enumerate(found.kept) if is_kept}
    return PaperSegments(frozenset(kept), sum(sizes), found)
