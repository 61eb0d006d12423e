"""The second-order cells of DARTS for CIFAR-10: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019,
figures 4 and 5, whose authors call them DARTS_V2. With 36 channels, 3.35 million parameters: 3.3 in the paper.
"""

from __future__ import annotations

from bench.checkpoint.cells import CellNetwork, Genotype

GENOTYPE = Genotype(
    normal=(
        (("separable 3x3", 0), ("separable 3x3", 1)),
        (("separable 3x3", 0), ("separable 3x3", 1)),
        (("separable 3x3", 1), ("identity", 0)),
        (("identity", 0), ("dilated 3x3", 2)),
    ),
    normal_outputs=(2, 3, 4, 5),
    reduction=(
        (("max 3x3", 0), ("max 3x3", 1)),
        (("identity", 2), ("max 3x3", 1)),
        (("max 3x3", 0), ("identity", 2)),
        (("identity", 2), ("max 3x3", 1)),
    ),
    reduction_outputs=(2, 3, 4, 5),
)


def darts(channels: int = 36, cells: int = 20) -> CellNetwork:
    """The network, in training mode."""
    return CellNetwork(GENOTYPE, channels, cells)
