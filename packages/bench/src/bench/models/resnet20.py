"""ResNet-20 for small images (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, section 4.2)."""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CLASSES = 10
BLOCKS = 3  # of each width: 6 n + 2 layers


class Block(nn.Module):
    """Two convolutions and what goes around them: the input, or its projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if stride != 1 or inputs != outputs
            else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """``Float[Tensor, "batch inputs height width"]`` to ``"batch outputs height/stride width/stride"``."""
        inner = self.relu1(self.norm1(self.conv1(x)))
        result: Tensor = self.relu2(self.norm2(self.conv2(inner)) + self.shortcut(x))
        return result


def resnet20(channels: int = 3, width: int = 16) -> nn.Sequential:
    """The network, with projections as shortcuts where the shape changes (the paper's option B).

    Args:
        channels: of the images.
        width: channels of the first third; the others have twice and four times as many.
    """
    blocks: list[nn.Module] = []
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        for number in range(BLOCKS):
            blocks.append(Block(inputs, outputs, stride if number == 0 else 1))
            inputs = outputs
    return nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(channels, width, 3, 1, 1, bias=False),
            norm=nn.BatchNorm2d(width),
            relu=nn.ReLU(),
            blocks=nn.Sequential(*blocks),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            linear=nn.Linear(inputs, CLASSES),
        )
    )


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy."""
    return F.cross_entropy(model(x), y)


def backward(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One step's gradients, and nothing of an optimizer."""
    model.zero_grad()
    loss(model, x, y).backward()


def draw_batch(x: Tensor, y: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """A batch that is always the same: the places of its images, images and classes."""
    places = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:size]
    return places, x[places], y[places]
