"""The models of ``bench checkpoint``: the 18 of the table that Feng and Huang published, and five more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from bench.models import transformers, unet
from bench.models.cells import CellNetwork, amoebanet, darts, list_cells, nasnet
from bench.models.image_models import swin, swin_blocks, torchvision_blocks, torchvision_model
from bench.results.published import published

Inputs = tuple[Tensor, ...] | dict[str, Tensor]


@dataclass(frozen=True)
class Published:
    """A row of ``results/published/checkpoint.json``.

    Attributes:
        megabytes: of regular training: the peak less what weights and the CUDA context take.
        checkpointed_megabytes: with their checkpoints.
        overhead: the time added, as a part of a regular step's, to a hundredth.
    """

    megabytes: int
    checkpointed_megabytes: int
    overhead: float

    @property
    def cut(self) -> float:
        """The part of that memory that is saved; the table has it to a hundredth."""
        return 1 - self.checkpointed_megabytes / self.megabytes


@dataclass(frozen=True)
class Architecture:
    """A model that can be measured.

    Attributes:
        name: as the command line takes it.
        library: which has the model: "torchvision", "timm", "transformers", or "bench" for what is written here.
        build: makes it, in training mode, with random weights from torch's generator.
        inputs: makes random inputs for a batch size and a size, from torch's generator: a tuple of positional ones, or
            a dictionary of named ones.
        batch: the batch size of the table.
        size: the size of the table: height and width of the images, or the number of tokens.
        published: what was published of it with this batch and this size; None for models outside the table.
        blocks: lists the modules of a built model that are checkpointed one by one where that is done by hand. They do
            not contain each other.
    """

    name: str
    library: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int, int], Inputs]
    batch: int
    size: int
    published: Published | None
    blocks: Callable[[nn.Module], list[nn.Module]]


def images(batch: int, size: int, channels: int = 3) -> tuple[Tensor, ...]:
    """``Float[Tensor, "batch channels size size"]``, random."""
    return (torch.randn(batch, channels, size, size),)


def tokens(batch: int, size: int) -> dict[str, Tensor]:
    """``Int64[Tensor, "batch size"]``, random, of words that all models know."""
    return {"input_ids": torch.randint(30_000, (batch, size))}


def _published(name: str) -> Published:
    return Published(**published("checkpoint")["architectures"][name])


def _torchvision(name: str, batch: int, size: int = 224) -> Architecture:
    build, blocks = partial(torchvision_model, name), torchvision_blocks(name)
    return Architecture(name, "torchvision", build, images, batch, size, _published(name), blocks)


def _cells(build: Callable[[], CellNetwork]) -> Architecture:
    name = build.__name__
    return Architecture(name, "bench", build, images, 64, 32, _published(name), list_cells)


def _text(build: Callable[[], nn.Module]) -> Architecture:
    return Architecture(build.__name__, "transformers", build, tokens, 8, 256, None, transformers.layers)


_ALL = (
    _torchvision("alexnet", 1024),
    _torchvision("vgg11", 64),
    _torchvision("vgg13", 64),
    _torchvision("vgg16", 64),
    _torchvision("vgg19", 64),
    _torchvision("resnet18", 256),
    _torchvision("resnet34", 128),
    _torchvision("resnet50", 64),
    _torchvision("resnet101", 32),
    _torchvision("resnet152", 16),
    _torchvision("densenet121", 32),
    _torchvision("densenet161", 16),
    _torchvision("densenet169", 32),
    _torchvision("densenet201", 16),
    _torchvision("inception_v3", 32, size=300),
    _cells(nasnet),
    _cells(amoebanet),
    _cells(darts),
    _text(transformers.bert),
    _text(transformers.gpt2),
    _text(transformers.llama),
    Architecture("swin", "timm", swin, images, 32, 224, None, swin_blocks),
    Architecture("unet", "bench", unet.UNet, partial(images, channels=1), 4, 572, None, unet.blocks),
)

ARCHITECTURES = {architecture.name: architecture for architecture in _ALL}

# For a run that only shows that everything works: name -> batch and size.
QUICK = {"resnet18": (4, 64), "densenet121": (2, 64), "darts": (2, 16), "gpt2": (1, 64), "unet": (1, 188)}
