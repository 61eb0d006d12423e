"""NASNet-A for CIFAR-10: Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018,
figure 4.

Cells return what no state of theirs reads, as Liu et al. (ICLR 2019) have it, who train this network with 36 channels:
3.83 million parameters. In the paper's own NASNet-A (6 @ 768), of 32 channels and 3.3 million, a normal cell returns
state 0 as well, and a reduction cell state 3.
"""

from __future__ import annotations

from bench.checkpoint.cells import CellNetwork, Genotype

GENOTYPE = Genotype(
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
    """The network, in training mode."""
    return CellNetwork(GENOTYPE, channels, cells)
