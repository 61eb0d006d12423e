"""U-Net: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image Segmentation", MICCAI
2015."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

LEVELS = 5
DROPOUT = 0.5  # at the end of the contracting path; the paper gives no rate


def convolutions(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 x 3 convolutions without padding, each with a ReLU: height and width shrink by 4."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3), nn.ReLU(), nn.Conv2d(outputs, outputs, 3), nn.ReLU())


class UNet(nn.Module):
    """The network of figure 1, whose convolutions have no padding: what a level passes on is cropped.

    Args:
        width: channels of the first level; each further one has twice as many.
        channels: of the images.
        classes: of pixels.
    """

    def __init__(self, width: int = 64, channels: int = 1, classes: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(LEVELS)]
        levels = [convolutions(narrow, wide) for narrow, wide in pairwise([channels, *widths])]
        for level in levels[-2:]:
            level.append(nn.Dropout(DROPOUT))
        self.contracting = nn.ModuleList(levels)
        self.pool = nn.MaxPool2d(2)
        upwards = list(pairwise(reversed(widths)))
        self.doubling = nn.ModuleList(nn.ConvTranspose2d(wide, narrow, 2, 2) for wide, narrow in upwards)
        self.expanding = nn.ModuleList(convolutions(wide, narrow) for wide, narrow in upwards)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """``Float[Tensor, "batch channels size size"]`` to ``"batch classes size-184 size-184"``; size is 188 or
        larger by a multiple of 16."""
        skips: list[Tensor] = []
        for level in self.contracting:
            x = level(self.pool(x) if skips else x)
            skips.append(x)
        for doubling, level, skip in zip(self.doubling, self.expanding, skips[-2::-1], strict=True):
            x = doubling(x)
            height, width = x.shape[-2:]
            top, left = (skip.shape[-2] - height) // 2, (skip.shape[-1] - width) // 2
            x = level(torch.cat([skip[..., top : top + height, left : left + width], x], 1))
        scores: Tensor = self.head(x)
        return scores


def blocks(model: nn.Module) -> list[nn.Module]:
    """Its levels, down and up."""
    return [*model.get_submodule("contracting").children(), *model.get_submodule("expanding").children()]
