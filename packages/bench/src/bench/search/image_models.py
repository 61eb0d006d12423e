"""ResNets and Swin transformers, of timm's parts, at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.networks import needs
from bench.systems.subject import Subject

RESNET_50, RESNET_152 = (3, 4, 6, 3), (3, 8, 36, 3)
SWIN_TINY, SWIN_SMALL = (2, 2, 6, 2), (2, 2, 18, 2)

_BASE_WIDTH = 64  # that timm, as torchvision, counts a bottleneck's width by


@dataclass(frozen=True)
class Images:
    """Sizes of everything that is not searched.

    Attributes:
        batch: images in a step.
        size: height and width of an image.
        channels: of a ResNet's first stage, 64 in He et al.; the others have 2, 4 and 8 times as many.
        embedding: of a Swin transformer's first stage, 96 in Liu et al.; the others likewise.
        heads: of its attention in the first stage, 3 in Liu et al.
        window: of its attention; ``size / 4`` must be a multiple.
        classes: that images are told apart by.
    """

    batch: int
    size: int
    channels: int
    embedding: int
    heads: int
    window: int
    classes: int


def resnet(
    images: Images,
    stages: Sequence[int],
    *,
    batch: int | None = None,
    size: int | None = None,
    width: int = _BASE_WIDTH,
) -> Subject:
    """A bottleneck ResNet (He et al., CVPR 2016).

    Args:
        images: sizes of all that the others leave out.
        stages: blocks of each of the four stages.
        batch, size: of the images.
        width: of the bottlenecks, in parts of 1/64 of their stage's channels: 128 is a Wide ResNet's (Zagoruyko and
            Komodakis, BMVC 2016).

    Raises:
        MissingLibrary: timm is not installed.
    """
    resnets = needs("timm.models.resnet")
    model = resnets.ResNet(
        resnets.Bottleneck,
        tuple(stages),
        num_classes=images.classes,
        stem_width=images.channels,
        channels=tuple(images.channels * factor for factor in (1, 2, 4, 8)),
        base_width=width,
        # A branch that is multiplied by 0, as timm begins, has no gradient, and an adaptive level nothing to weigh.
        zero_init_last=False,
    )
    blocks = [block for stage in (model.layer1, model.layer2, model.layer3, model.layer4) for block in stage]
    return _classifier(model, images, batch or images.batch, size or images.size, blocks)


def scaled_stages(depth: int) -> tuple[int, ...]:
    """Blocks of each stage of a bottleneck ResNet of ``depth`` layers, in ResNet-152's proportions.

    Args:
        depth: three layers a block and two besides: 152 has 50 blocks. At least 14, which has one block a stage.
    """
    blocks, proportions = (depth - 2) // 3, [stage / sum(RESNET_152) for stage in RESNET_152]
    exact = [max(1.0, blocks * part) for part in proportions]
    stages = [int(one) for one in exact]
    # What is left goes to the stages that rounding down took most of; what is too much comes from the longest.
    for place in sorted(range(4), key=lambda one: stages[one] - exact[one])[: max(0, blocks - sum(stages))]:
        stages[place] += 1
    while sum(stages) > blocks:
        stages[stages.index(max(stages))] -= 1
    return tuple(stages)


def swin(images: Images, depths: Sequence[int], *, batch: int) -> Subject:
    """A Swin transformer (Liu et al., ICCV 2021), with stochastic depth as there.

    Args:
        images: sizes of all else.
        depths: blocks of each of the four stages.
        batch: images in a step.

    Raises:
        MissingLibrary: timm is not installed.
    """
    model = needs("timm.models.swin_transformer").SwinTransformer(
        img_size=images.size,
        embed_dim=images.embedding,
        depths=tuple(depths),
        num_heads=tuple(images.heads * factor for factor in (1, 2, 4, 8)),
        window_size=images.window,
        num_classes=images.classes,
    )
    return _classifier(model, images, batch, images.size, [block for stage in model.layers for block in stage.blocks])


def _classifier(model: nn.Module, images: Images, batch: int, size: int, blocks: list[nn.Module]) -> Subject:
    y = torch.randint(images.classes, (batch,))

    def loss(output: object) -> Tensor:
        assert isinstance(output, Tensor)
        return F.cross_entropy(output, y)

    what = f"{type(model).__name__}, {batch} at {size} x {size}"
    return Subject(model, (torch.randn(batch, 3, size, size),), loss, what, blocks)
