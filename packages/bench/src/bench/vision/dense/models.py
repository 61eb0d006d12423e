"""The models of ActNN's README for detection, segmentation and self-supervised learning, with random weights.

All norms are ``BatchNorm2d`` in training mode and nothing is frozen, so that every layer keeps what it would keep in
training from scratch. Images and targets are generated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.networks import Case, needs
from bench.vision.dense.moco import MoCo
from bench.vision.dense.segmenter import Segmenter

COCO, CITYSCAPES = 91, 19  # classes; torchvision counts COCO's gaps and the background
QUEUES = MappingProxyType({"cpu": 4096, "cuda": 65536})  # keys of MoCo; on CUDA the paper's

_BOXES = 4  # an image

Batch = Callable[[nn.Module, int, int, torch.device], Callable[[], Tensor]]


@dataclass(frozen=True)
class DenseModel:
    """A model, and what it is trained on.

    Attributes:
        title: in words.
        build: makes it, in training mode, from the images' size and the type of device.
        batch: the loss of a step, from the model, the number of images, their size and the device.
        batches, sizes: images of a step and their height and width, by type of device.
    """

    title: str
    build: Callable[[int, str], nn.Module]
    batch: Batch
    batches: Mapping[str, int]
    sizes: Mapping[str, int]

    def case(self, model: nn.Module, batch: int, size: int, device: torch.device, seed: int) -> Case:
        """A model and its loss. Each call of the loss draws the same: images, the sample of anchors, dropout.

        Args:
            model: as ``build`` made it, on the device, compressed or not.
            batch, size: images, and their height and width.
            device: of the images.
            seed: of what is drawn.
        """
        torch.manual_seed(seed)
        step = self.batch(model, batch, size, device)

        def loss() -> Tensor:
            torch.manual_seed(seed)
            return step()

        return Case(model, loss, f"batch {batch} at {size} x {size}")


def _detector(name: str, size: int, device: str) -> nn.Module:
    models = needs("torchvision.models.detection")
    # Without weights torchvision trains all layers and takes BatchNorm2d. Images are made no larger than they are.
    model: nn.Module = getattr(models, name)(
        weights=None, weights_backbone=None, num_classes=COCO, min_size=size, max_size=size
    )
    return model.train()


def _boxes(model: nn.Module, batch: int, size: int, device: torch.device) -> Callable[[], Tensor]:
    images = list(torch.rand(batch, 3, size, size).to(device))
    corners = torch.rand(batch, _BOXES, 2) * size / 2
    extents = size / 8 + torch.rand(batch, _BOXES, 2) * size * 3 / 8  # so that a box stays within the image
    boxes = torch.cat([corners, corners + extents], dim=2).to(device)
    labels = torch.randint(1, COCO, (batch, _BOXES)).to(device)
    targets = [{"boxes": some, "labels": kinds} for some, kinds in zip(boxes, labels, strict=True)]

    def loss() -> Tensor:
        return torch.stack(list(model(images, targets).values())).sum()

    return loss


def _fcn(size: int, device: str) -> nn.Module:
    models = needs("torchvision.models.segmentation")
    model: nn.Module = models.fcn_resnet50(weights=None, weights_backbone=None, num_classes=CITYSCAPES)
    return model.train()


def _segmenter(size: int, device: str) -> nn.Module:
    return Segmenter("resnet50", CITYSCAPES).train()


def _masks(model: nn.Module, batch: int, size: int, device: torch.device) -> Callable[[], Tensor]:
    images = torch.randn(batch, 3, size, size).to(device)
    masks = torch.randint(CITYSCAPES, (batch, size, size)).to(device)

    def loss() -> Tensor:
        found = model(images)
        return F.cross_entropy(found if isinstance(found, Tensor) else found["out"], masks)

    return loss


def _moco(size: int, device: str) -> nn.Module:
    return MoCo(needs("torchvision.models").resnet50(weights=None), QUEUES[device]).train()


def _crops(model: nn.Module, batch: int, size: int, device: torch.device) -> Callable[[], Tensor]:
    images = torch.randn(batch, 3, size + size // 8, size + size // 8).to(device)
    queries, keys = images[..., :size, :size].contiguous(), images[..., -size:, -size:].contiguous()
    return lambda: model(queries, keys)


def _model(title: str, build: Callable[[int, str], nn.Module], batch: Batch, images: int, size: int) -> DenseModel:
    batches, sizes = ({"cpu": small, "cuda": full} for small, full in ((2, images), (160, size)))
    return DenseModel(title, build, batch, MappingProxyType(batches), MappingProxyType(sizes))


DENSE: Mapping[str, DenseModel] = MappingProxyType(
    {
        "fasterrcnn_resnet50_fpn": _model(
            "Faster R-CNN R50-FPN", partial(_detector, "fasterrcnn_resnet50_fpn"), _boxes, 2, 800
        ),
        "retinanet_resnet50_fpn": _model(
            "RetinaNet R50-FPN", partial(_detector, "retinanet_resnet50_fpn"), _boxes, 2, 800
        ),
        "fcn_resnet50": _model("FCN-R50", _fcn, _masks, 2, 768),
        "fpn_resnet50": _model("FPN-R50", _segmenter, _masks, 2, 768),
        "moco_v2_resnet50": _model("MoCo v2 ResNet-50", _moco, _crops, 32, 224),
    }
)
"""By the name that the command line knows."""
