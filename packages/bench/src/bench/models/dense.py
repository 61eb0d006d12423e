"""The models of ActNN's README for detection, segmentation and self-supervised learning, with random weights.

All norms are ``BatchNorm2d`` in training mode and nothing is frozen, so that every layer keeps what it would keep in
training from scratch. Images and targets are generated.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.subject import Case, needs

COCO, CITYSCAPES = 91, 19  # classes; torchvision counts COCO's gaps and the background
QUEUES = MappingProxyType({"cpu": 4096, "cuda": 65536})  # keys of MoCo; on CUDA the paper's

_BOXES = 4  # an image
MOMENTUM, TEMPERATURE, FEATURES = 0.999, 0.2, 128  # of MoCo v2
_LEVELS, _PYRAMID, _WIDTH = 4, 256, 128  # of the feature pyramid


class MoCo(nn.Module):
    """The loss of MoCo v2: two crops of the same images are told apart from a queue of earlier keys.

    He et al., "Momentum Contrast for Unsupervised Visual Representation Learning", CVPR 2020; Chen et al., "Improved
    Baselines with Momentum Contrastive Learning", arXiv 2003.04297.

    Key encoder and queue are brought up to date when a step begins, not when one ends: the queue is a saved tensor of
    the step, and is not to be copied for that.

    Args:
        encoder: with a linear layer ``fc`` at its end, in whose place the head of two layers comes.
        queue: keys in it, at least as many as there are images in a step.
    """

    queue: Tensor
    pending: Tensor

    def __init__(self, encoder: nn.Module, queue: int) -> None:
        super().__init__()
        width = encoder.get_submodule("fc").in_features
        assert isinstance(width, int)
        encoder.fc = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, FEATURES))
        self.encoder = encoder
        self.key_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(queue, FEATURES), dim=1))
        self.register_buffer("pending", torch.empty(0, FEATURES))
        self._place = 0  # of the oldest key

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """The mean loss of two crops of each image, both ``(batch, 3, height, width)``."""
        with torch.no_grad():
            self._begin()
            key = F.normalize(self.key_encoder(keys), dim=1)
        query = F.normalize(self.encoder(queries), dim=1)
        positive = (query * key).sum(dim=1, keepdim=True)
        logits = torch.cat([positive, query @ self.queue.T], dim=1) / TEMPERATURE
        self.pending = key
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))

    def _begin(self) -> None:
        """Moves the key encoder towards the other, and the last step's keys into the queue."""
        for own, other in zip(self.key_encoder.parameters(), self.encoder.parameters(), strict=True):
            own.lerp_(other, 1 - MOMENTUM)
        count = len(self.pending)
        places = (self._place + torch.arange(count, device=self.queue.device)) % len(self.queue)
        self.queue[places] = self.pending
        self._place = (self._place + count) % len(self.queue)


class Segmenter(nn.Module):
    """Classes of pixels, of a pyramid over a ResNet's four stages.

    Kirillov et al., "Panoptic Feature Pyramid Networks", CVPR 2019: each level of the pyramid is brought to a quarter
    of the image's size in steps of two, and their sum is classified.

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
