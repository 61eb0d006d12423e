"""A segmentation network on a feature pyramid.

Kirillov et al., "Panoptic Feature Pyramid Networks", CVPR 2019: each level of the pyramid is brought to a quarter of
the image's size in steps of two, and their sum is classified.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from bench.networks import needs

_LEVELS, _PYRAMID, _WIDTH = 4, 256, 128


class Segmenter(nn.Module):
    """Classes of pixels, of a pyramid over a ResNet's four stages.

    Args:
        backbone: a ResNet of torchvision, by name.
        classes: of pixels.

    Raises:
        MissingLibrary: torchvision is not installed.
    """

    def __init__(self, backbone: str, classes: int) -> None:
        super().__init__()
        utils = needs("torchvision.models.detection.backbone_utils")
        # Its norm is a frozen one by default, for pretrained weights.
        self.pyramid = utils.resnet_fpn_backbone(
            backbone_name=backbone, weights=None, norm_layer=nn.BatchNorm2d, trainable_layers=5
        )
        self.heads = nn.ModuleList(nn.Sequential(*_head(level)) for level in range(_LEVELS))
        self.classifier = nn.Conv2d(_WIDTH, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Scores ``(batch, classes, height, width)`` of images ``(batch, 3, height, width)``."""
        levels = list(self.pyramid(images).values())  # a fifth is for detection alone
        first, *others = (head(level) for head, level in zip(self.heads, levels, strict=False))
        for other in others:
            first = first + F.interpolate(other, first.shape[-2:], mode="bilinear")  # a size that is odd is rounded up
        return F.interpolate(self.classifier(first), images.shape[-2:], mode="bilinear")


def _head(level: int) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for step in range(max(1, level)):
        layers += [
            nn.Conv2d(_WIDTH if step else _PYRAMID, _WIDTH, 3, padding=1, bias=False),
            nn.BatchNorm2d(_WIDTH),
            nn.ReLU(inplace=True),
        ]
        if level:
            layers.append(nn.Upsample(scale_factor=2, mode="bilinear"))
    return layers
