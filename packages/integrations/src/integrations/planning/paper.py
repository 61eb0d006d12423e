"""``paper_segments``: the objective of the paper, on the paper's own accounting of a graph.

Feng & Huang, "Optimal gradient checkpoint search for arbitrary computation graphs" (CVPR 2021): what is kept plus the
largest segment. Every operator's result counts as kept by a plain step, whether backward needs it or not; what else an
operator makes (BatchNorm's statistics, dropout's masks, pooling's indices) counts nothing; an activation that works in
place changes no count, a sum in place counts like any other; the inputs and the result count nothing either.
"""

from __future__ import annotations

from dataclasses import dataclass

from actcore import CheckpointSegments, checkpoint_segments
from integrations.step.graphs.graph import Graph


@dataclass(frozen=True)
class PaperSegments:
    """What the paper's objective keeps.

    Attributes:
        kept: the graph's values that are kept.
        plain_bytes: of all results.
        found: the choice, with its bytes and the bound on what others take.
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
    nodes: list[int] = []  # the value that a result is, in the end, if it is changed in place
    node_of: dict[int, int] = {}  # of each value
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
