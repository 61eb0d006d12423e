"""AmoebaNet-A for CIFAR-10: Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI 2019,
figure 5.

With 36 channels it has 3.15 million parameters: 3.2 in the paper, 3.1 where Liu et al. (ICLR 2019) train it.
"""

from __future__ import annotations

from bench.checkpoint.cells import CellNetwork, Genotype

GENOTYPE = Genotype(
    normal=(
        (("average 3x3", 0), ("max 3x3", 1)),
        (("separable 3x3", 0), ("separable 5x5", 2)),
        (("separable 3x3", 0), ("average 3x3", 3)),
        (("separable 3x3", 1), ("identity", 1)),
        (("identity", 0), ("average 3x3", 1)),
    ),
    normal_outputs=(4, 5, 6),
    reduction=(
        (("average 3x3", 0), ("separable 3x3", 1)),
        (("max 3x3", 0), ("separable 7x7", 2)),
        (("separable 7x7", 0), ("average 3x3", 1)),
        (("max 3x3", 0), ("max 3x3", 1)),
        (("1x7 then 7x1", 0), ("separable 3x3", 5)),
    ),
    reduction_outputs=(3, 4, 6),
)


def amoebanet(channels: int = 36, cells: int = 20) -> CellNetwork:
    """The network, in training mode."""
    return CellNetwork(GENOTYPE, channels, cells)
