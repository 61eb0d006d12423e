"""Networks of cells that were found by search, in training mode: DARTS, AmoebaNet-A and NASNet-A."""

from __future__ import annotations

from bench.models.cells import CellNetwork, Genotype

DARTS = Genotype(
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
    """The second-order cells of DARTS for CIFAR-10: Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019,
    figures 4 and 5, whose authors call them DARTS_V2. With 36 channels, 3.35 million parameters: 3.3 in the paper."""
    return CellNetwork(DARTS, channels, cells)


AMOEBANET = Genotype(
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
    """AmoebaNet-A for CIFAR-10: Real et al., "Regularized Evolution for Image Classifier Architecture Search", AAAI
    2019, figure 5.

    With 36 channels it has 3.15 million parameters: 3.2 in the paper, 3.1 where Liu et al. (ICLR 2019) train it.
    """
    return CellNetwork(AMOEBANET, channels, cells)


NASNET = Genotype(
    normal=(
        (("separable 5x5", 1), ("separable 3x3", 0)),
        (("separable 5x5", 0), ("separable 3x3", 0)),
        (("average 3x3", 1), ("identity", 0)),
        (("average 3x3", 0), ("average 3x3", 0)),
        (("separable 3x3", 1), ("identity", 1)),
    ),
    normal_outputs=(2, 3, 4, 5, 6),
    reduction=(
        (("separable 5x5", 1), ("separable 7x7", 0)),
        (("max 3x3", 1), ("separable 7x7", 0)),
        (("average 3x3", 1), ("separable 5x5", 0)),
        (("identity", 3), ("average 3x3", 2)),
        (("separable 3x3", 2), ("max 3x3", 1)),
    ),
    reduction_outputs=(4, 5, 6),
)


def nasnet(channels: int = 36, cells: int = 20) -> CellNetwork:
    """NASNet-A for CIFAR-10: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", CVPR
    2018, figure 4.

    Cells return what no state of theirs reads, as Liu et al. (ICLR 2019) have it, who train this network with 36
    channels: 3.83 million parameters. In the paper's own NASNet-A (6 @ 768), of 32 channels and 3.3 million, a normal
    cell returns state 0 as well, and a reduction cell state 3.
    """
    return CellNetwork(NASNET, channels, cells)
