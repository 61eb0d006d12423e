"""The image models that ActNN and GACT were measured on, at their full size, with random weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from torch import nn

from bench.checkpoint.image_models import torchvision_model
from bench.networks import needs

SIZE = 224  # of the images, in the papers and here by default
CLASSES = 1000

Build = Callable[[int, int], nn.Module]


@dataclass(frozen=True)
class ImageModel:
    """A model for images in three channels.

    Attributes:
        title: in words.
        library: which has it: ``"torchvision"`` or ``"timm"``.
        build: makes it, in training mode, from the number of classes and the images' size.
        batches: images of a step by type of device: on the CPU those whose saved tensors take about 1.5 GiB at most, on
            CUDA the originals'.
    """

    title: str
    library: str
    build: Build
    batches: Mapping[str, int]


def _of_torchvision(name: str, classes: int, size: int) -> nn.Module:
    return torchvision_model(name, num_classes=classes)


def _swin(name: str, classes: int, size: int) -> nn.Module:
    model: nn.Module = needs("timm").create_model(name, num_classes=classes, img_size=size)
    return model.train()


def _model(title: str, name: str, cpu: int, cuda: int) -> ImageModel:
    batches = MappingProxyType({"cpu": cpu, "cuda": cuda})
    if name.startswith("swin"):
        return ImageModel(title, "timm", partial(_swin, name), batches)
    return ImageModel(title, "torchvision", partial(_of_torchvision, name), batches)


MODELS: Mapping[str, ImageModel] = MappingProxyType(
    {
        "resnet50": _model("ResNet-50", "resnet50", 16, 128),
        "resnet152": _model("ResNet-152", "resnet152", 8, 64),
        "wide_resnet101_2": _model("WideResNet-101-2", "wide_resnet101_2", 8, 64),
        "densenet201": _model("DenseNet-201", "densenet201", 8, 64),
        "swin_tiny": _model("Swin-tiny", "swin_tiny_patch4_window7_224", 8, 64),
        "swin_small": _model("Swin-small", "swin_small_patch4_window7_224", 8, 64),
        "resnet18": _model("ResNet-18", "resnet18", 32, 128),
    }
)
"""By the name that the command line knows."""

ORIGINALS = tuple(name for name in MODELS if name != "resnet18")
"""Those of the papers; ResNet-18 is for short runs."""
