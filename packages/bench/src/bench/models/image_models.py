"""Image models of torchvision and timm with random weights, their blocks, and those of ActNN's and GACT's papers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from torch import nn

from bench.models.subject import needs


def torchvision_model(name: str, **options: Any) -> nn.Module:
    """A model of torchvision in training mode.

    Inception v3 comes without its auxiliary head. AlexNet and VGG have their convolutions in one sequence; here each
    stage, up to its pooling, is a sequence of its own, which changes the names of parameters and nothing else. The
    layers of DenseNet get a list to which their block appends later; here each gets a copy, so that it can run again.

    Args:
        name: torchvision's.
        options: of the model, such as ``num_classes``.

    Raises:
        MissingLibrary: torchvision is not installed.
    """
    models = needs("torchvision").models
    extra = {"aux_logits": False, "init_weights": False} if name == "inception_v3" else {}
    model: nn.Module = models.get_model(name, weights=None, **extra, **options)
    if name == "alexnet" or name.startswith("vgg"):
        model.features = _in_stages(model.get_submodule("features"))
    for layer in modules_called(model, "_DenseLayer"):
        layer.register_forward_pre_hook(_with_a_list_of_its_own)
    return model.train()


def torchvision_blocks(name: str) -> Callable[[nn.Module], list[nn.Module]]:
    """What lists the blocks of such a model: stages up to their pooling, residual blocks, the layers of dense blocks,
    or Inception modules."""
    if name == "alexnet" or name.startswith("vgg"):
        return lambda model: list(model.get_submodule("features").children())
    kinds = {
        "resnet": ("BasicBlock", "Bottleneck"),
        "densenet": ("_DenseLayer",),
        "inception": ("InceptionA", "InceptionB", "InceptionC", "InceptionD", "InceptionE"),
    }
    return lambda model: modules_called(model, *kinds[name.rstrip("0123456789").removesuffix("_v")])


def swin() -> nn.Module:
    """timm's Swin-T for images of 224 x 224, with its stochastic depth, in training mode.

    Raises:
        MissingLibrary: timm is not installed.
    """
    model: nn.Module = needs("timm").create_model("swin_tiny_patch4_window7_224", drop_path_rate=0.2)
    return model.train()


def swin_blocks(model: nn.Module) -> list[nn.Module]:
    """Its attention blocks."""
    return modules_called(model, "SwinTransformerBlock")


def modules_called(model: nn.Module, *names: str) -> list[nn.Module]:
    """The modules of some classes, in the order in which they are registered."""
    return [module for module in model.modules() if type(module).__name__ in names]


def _with_a_list_of_its_own(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    (features,) = args
    return ([*features],)


def _in_stages(layers: nn.Module) -> nn.Sequential:
    """A sequence, cut behind each max pooling."""
    stages: list[list[nn.Module]] = [[]]
    for layer in layers.children():
        stages[-1].append(layer)
        if isinstance(layer, nn.MaxPool2d):
            stages.append([])
    return nn.Sequential(*(nn.Sequential(*stage) for stage in stages if stage))


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
