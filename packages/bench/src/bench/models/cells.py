"""Networks of cells for images of 32 x 32: the operations, a cell, and the network.

Of Zoph et al., "Learning Transferable Architectures for Scalable Image Recognition", CVPR 2018. Sizes are those with
which Liu et al., "DARTS: Differentiable Architecture Search", ICLR 2019, train such cells, whoever found them, and so
does the table of Feng and Huang: 20 cells of 36 channels, without the auxiliary head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Edge = tuple[str, int]  # the name of an operation, and the state that it reads


@dataclass(frozen=True)
class Genotype:
    """What a network's cells compute.

    A cell has states: 0 and 1 are the outputs of the two cells before it, the older one first, and each further one is
    the sum of two operations on states before it.

    Attributes:
        normal: the two operations of each further state, of a cell that keeps height and width.
        normal_outputs: states whose concatenation such a cell returns.
        reduction: of a cell that halves height and width and doubles the channels: there, operations on states 0 and 1
            have stride 2.
        reduction_outputs: states whose concatenation that one returns.
    """

    normal: tuple[tuple[Edge, Edge], ...]
    normal_outputs: tuple[int, ...]
    reduction: tuple[tuple[Edge, Edge], ...]
    reduction_outputs: tuple[int, ...]


class FactorizedReduction(nn.Module):
    """ReLU, two 1 x 1 convolutions with stride 2, of which one sees the image shifted by a pixel, and BatchNorm."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, 2, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """``Float[Tensor, "batch inputs height width"]`` to ``"batch outputs height/2 width/2"``, both even."""
        x = self.relu(x)
        joined: Tensor = self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], 1))
        return joined


def relu_conv_norm(inputs: int, outputs: int) -> nn.Sequential:
    """ReLU, a 1 x 1 convolution, BatchNorm."""
    return nn.Sequential(nn.ReLU(), nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


def separable(channels: int, kernel: int, stride: int) -> nn.Sequential:
    """A separable convolution, twice; the first has the stride."""
    return nn.Sequential(*_separable(channels, kernel, stride), *_separable(channels, kernel, 1))


def dilated(channels: int, kernel: int, stride: int) -> nn.Sequential:
    """A separable convolution with dilation 2, once."""
    return nn.Sequential(*_separable(channels, kernel, stride, dilation=2))


def _separable(channels: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (kernel // 2)
    return [
        nn.ReLU(),
        nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False),
        nn.Conv2d(channels, channels, 1, bias=False),
        nn.BatchNorm2d(channels),
    ]


def row_then_column(channels: int, stride: int) -> nn.Sequential:
    """ReLU, a convolution of 1 x 7, one of 7 x 1, BatchNorm; each has the stride along its own axis."""
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(channels, channels, (1, 7), (1, stride), (0, 3), bias=False),
        nn.Conv2d(channels, channels, (7, 1), (stride, 1), (3, 0), bias=False),
        nn.BatchNorm2d(channels),
    )


def skip(channels: int, stride: int) -> nn.Module:
    """The input itself, or where height and width are halved a factorized reduction of it."""
    return nn.Identity() if stride == 1 else FactorizedReduction(channels, channels)


# By name, from channels and stride.
OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "identity": skip,
    "average 3x3": lambda channels, stride: nn.AvgPool2d(3, stride, 1, count_include_pad=False),
    "max 3x3": lambda channels, stride: nn.MaxPool2d(3, stride, 1),
    "separable 3x3": lambda channels, stride: separable(channels, 3, stride),
    "separable 5x5": lambda channels, stride: separable(channels, 5, stride),
    "separable 7x7": lambda channels, stride: separable(channels, 7, stride),
    "dilated 3x3": lambda channels, stride: dilated(channels, 3, stride),
    "1x7 then 7x1": row_then_column,
}


class Cell(nn.Module):
    """A cell.

    Args:
        genotype: which operations.
        older: channels of the output of the cell before the previous one.
        previous: channels of the output of the previous cell.
        channels: of each of its states.
        reduction: whether it halves height and width.
        reduced: whether the previous cell did, so that state 0 has to be halved first.
    """

    def __init__(
        self, genotype: Genotype, older: int, previous: int, channels: int, *, reduction: bool, reduced: bool
    ) -> None:
        super().__init__()
        nodes = genotype.reduction if reduction else genotype.normal
        self.outputs = genotype.reduction_outputs if reduction else genotype.normal_outputs
        self.channels = channels * len(self.outputs)
        self.older = FactorizedReduction(older, channels) if reduced else relu_conv_norm(older, channels)
        self.previous = relu_conv_norm(previous, channels)
        self.reads = [source for node in nodes for _, source in node]
        self.operations = nn.ModuleList(
            OPERATIONS[name](channels, 2 if reduction and source < 2 else 1) for node in nodes for name, source in node
        )

    def forward(self, older: Tensor, previous: Tensor) -> Tensor:
        """Of the outputs of two cells, ``Float[Tensor, "batch channels height width"]`` each, the cell's own."""
        states = [self.older(older), self.previous(previous)]
        for first in range(0, len(self.reads), 2):
            left, right = (self.operations[at](states[self.reads[at]]) for at in (first, first + 1))
            states.append(left + right)
        return torch.cat([states[state] for state in self.outputs], 1)


class CellNetwork(nn.Module):
    """A stem, cells of which those after a third and two thirds reduce, average pooling, and a linear layer.

    Args:
        genotype: of the cells.
        channels: of the states of the first cells.
        cells: how many.
        classes: of images.
    """

    def __init__(self, genotype: Genotype, channels: int = 36, cells: int = 20, classes: int = 10) -> None:
        super().__init__()
        older = previous = 3 * channels
        self.stem = nn.Sequential(nn.Conv2d(3, previous, 3, padding=1, bias=False), nn.BatchNorm2d(previous))
        self.cells = nn.ModuleList()
        reduced = False
        for number in range(cells):
            reduction = number in (cells // 3, 2 * cells // 3)
            channels *= 2 if reduction else 1
            cell = Cell(genotype, older, previous, channels, reduction=reduction, reduced=reduced)
            self.cells.append(cell)
            older, previous, reduced = previous, cell.channels, reduction
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(previous, classes)

    def forward(self, x: Tensor) -> Tensor:
        """``Float[Tensor, "batch 3 height width"]`` to ``"batch classes"``; height and width are multiples of 4."""
        older = previous = self.stem(x)
        for cell in self.cells:
            older, previous = previous, cell(older, previous)
        scores: Tensor = self.linear(self.pool(previous).flatten(1))
        return scores


def list_cells(model: nn.Module) -> list[nn.Module]:
    """The cells of a network."""
    return list(model.get_submodule("cells").children())


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
