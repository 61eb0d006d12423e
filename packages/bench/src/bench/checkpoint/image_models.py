"""Image models of torchvision and timm with random weights, and the blocks that they consist of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from bench.networks import needs


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
