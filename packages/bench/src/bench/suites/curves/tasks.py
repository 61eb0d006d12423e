"""The tasks: a model, its data, and how it is trained, in three sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from bench.models.data import graphs, images, library_source
from bench.models.decoders import SHAPES, Sizes, decoder
from bench.models.graph_networks import gcn
from bench.models.resnet20 import CLASSES, resnet20
from bench.models.subject import Subject, entropy, needs, own_loss

QUICK = "quick"
_TESTED = 128  # rows of a text that are held out


@dataclass(frozen=True)
class Recipe:
    """AdamW, whose rate grows in the first tenth of the steps and then falls, both linearly.

    Attributes:
        steps: of the training.
        batch: rows or images of a step; 0 for all.
        rate: the most.
        decay: of the weights.
        sizes: of the model and the text, by name.
    """

    steps: int
    batch: int
    rate: float
    decay: float = 0.01
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        of = f" of {self.batch}" if self.batch else ""
        sizes = "".join(f", {name} {value:,}" for name, value in self.sizes.items())
        return f"{self.steps:,} steps{of}, rate {self.rate:g}, weight decay {self.decay:g}{sizes}"


@dataclass(frozen=True)
class Task:
    """A model, its data, and how it is trained.

    Attributes:
        title: model and data in words.
        build: makes the model on its device, in training mode, with weights from torch's generator.
        draw: the model with the next batch of a generator's.
        test: the model's logits and the classes of all that is held out:
            ``Float[Tensor, "rows classes"]``, ``Int64[Tensor, "rows"]``.
        recipe: of the training.
    """

    title: str
    build: Callable[[], nn.Module]
    draw: Callable[[nn.Module, torch.Generator], Subject]
    test: Callable[[nn.Module], tuple[Tensor, Tensor]]
    recipe: Recipe

    def __str__(self) -> str:
        count = sum(parameter.numel() for parameter in self.build().parameters())
        return f"{self.title}; {count:,} parameters; {self.recipe}"


def _llama(recipe: Recipe, root: Path | None, device: torch.device) -> Task:
    text, length = library_source.load(recipe.sizes["text"]), recipe.sizes["length"]
    width, layers, heads, inner = (recipe.sizes[name] for name in ("width", "layers", "heads", "inner"))
    sizes = Sizes(text.vocabulary, width, layers, heads, inner, torch.float32)
    rows, tests = text.train.unfold(0, length, 1), text.held_out.unfold(0, length, length)[:_TESTED].to(device)

    def draw(model: nn.Module, generator: torch.Generator) -> Subject:
        ids = rows[torch.randint(len(rows), (recipe.batch,), generator=generator)].to(device)
        return Subject(model, {"input_ids": ids, "labels": ids}, own_loss, text.what)

    def test(model: nn.Module) -> tuple[Tensor, Tensor]:
        logits = torch.cat([model(input_ids=ids).logits[:, :-1] for ids in tests.split(recipe.batch)])
        return logits.flatten(0, 1), tests[:, 1:].flatten()

    return Task(f"Llama, {text}", lambda: decoder(SHAPES["llama"], sizes).to(device), draw, test, recipe)


def _of_images(
    title: str,
    build: Callable[[Recipe, int, int], nn.Module],
    recipe: Recipe,
    root: Path | None,
    device: torch.device,
) -> Task:
    found = images.load("auto", root, tell=partial(print, file=sys.stderr))
    x, y, tests, classes = (some.to(device) for some in (found.x, found.y, found.test_x, found.test_y))
    _, channels, side, _ = x.shape

    def draw(model: nn.Module, generator: torch.Generator) -> Subject:
        places = torch.randint(len(x), (recipe.batch,), generator=generator).to(device)
        return Subject(model, (_channels_last(x[places]),), entropy(y[places]), found.name)

    def made() -> nn.Module:
        return build(recipe, channels, side).to(device).to(memory_format=torch.channels_last)

    def test(model: nn.Module) -> tuple[Tensor, Tensor]:
        return torch.cat([model(_channels_last(some)) for some in tests.split(recipe.batch)]), classes

    return Task(f"{title}, {found}", made, draw, test, recipe)


def _channels_last(x: Tensor) -> Tensor:
    """In the order in which convolutions are faster."""
    return x.to(memory_format=torch.channels_last)


def _vit(recipe: Recipe, channels: int, side: int) -> nn.Module:
    """64 patches, of images of any size."""
    model: nn.Module = needs("timm.models.vision_transformer").VisionTransformer(
        side,
        side // 8,
        channels,
        CLASSES,
        embed_dim=recipe.sizes["width"],
        depth=recipe.sizes["layers"],
        num_heads=recipe.sizes["heads"],
    )
    return model


def _resnet(recipe: Recipe, channels: int, side: int) -> nn.Module:
    return resnet20(channels, recipe.sizes["width"])


def _gcn(recipe: Recipe, root: Path | None, device: torch.device) -> Task:
    graph = graphs.load("auto", root, tell=partial(print, file=sys.stderr)).to(device)

    def loss(output: object) -> Tensor:
        assert isinstance(output, Tensor)
        return graph.loss(output)

    def draw(model: nn.Module, generator: torch.Generator) -> Subject:
        return Subject(model, (graph.x, graph.edge_index), loss, graph.name)

    @torch.no_grad()
    def test(model: nn.Module) -> tuple[Tensor, Tensor]:
        return model(graph.x, graph.edge_index)[graph.test], graph.y[graph.test]

    def build() -> nn.Module:
        model = gcn(graph.x.shape[1], graph.classes).to(device)
        test(model)  # which caches the graph's norm, so that all steps run the same operators
        return model

    return Task(f"GCN, {graph}", build, draw, test, recipe)


TASKS: Mapping[str, Callable[[Recipe, Path | None, torch.device], Task]] = MappingProxyType(
    {
        "llama": _llama,
        "vit": partial(_of_images, "ViT", _vit),
        "resnet": partial(_of_images, "ResNet-20", _resnet),
        "gcn": _gcn,
    }
)
"""By the name that the command line knows."""

_GRAPH = Recipe(60, 0, 1e-2, 0.1)
RECIPES: Mapping[str, Mapping[str, Recipe]] = MappingProxyType(
    {
        "cpu": {
            "llama": Recipe(
                160,
                4,
                2e-3,
                sizes={"width": 160, "layers": 4, "heads": 4, "inner": 448, "length": 128, "text": 2_000_000},
            ),
            "vit": Recipe(180, 16, 1e-3, sizes={"width": 96, "layers": 4, "heads": 3}),
            "resnet": Recipe(180, 16, 5e-3, sizes={"width": 16}),
            "gcn": _GRAPH,
        },
        "cuda": {
            "llama": Recipe(
                3000,
                32,
                1e-3,
                sizes={"width": 512, "layers": 6, "heads": 8, "inner": 1408, "length": 256, "text": 10_000_000},
            ),
            "vit": Recipe(3000, 128, 1e-3, sizes={"width": 192, "layers": 12, "heads": 3}),
            "resnet": Recipe(3000, 128, 5e-3, sizes={"width": 64}),
            "gcn": _GRAPH,
        },
        QUICK: {
            "llama": Recipe(
                20, 4, 2e-3, sizes={"width": 32, "layers": 2, "heads": 2, "inner": 64, "length": 32, "text": 100_000}
            ),
            "vit": Recipe(20, 16, 1e-3, sizes={"width": 32, "layers": 2, "heads": 2}),
            # With 4 channels, torch 2.14 corrupts the heap of a CPU that has AVX2 and no AVX-512.
            "resnet": Recipe(20, 16, 5e-3, sizes={"width": 8}),
            "gcn": Recipe(20, 0, 1e-2, 0.1),
        },
    }
)
"""By the size, which is the device's unless a run is quick, and the task."""


@cache  # for all ways and seeds that a process is asked for
def load(name: str, size: str, root: str | None, device: str) -> Task:
    """A task with its data.

    Args:
        name: of ``TASKS``.
        size: of ``RECIPES``.
        root: folder of data sets; default: ``ACTCORE_DATA``.
        device: of model and data.

    Raises:
        BenchError: data are damaged or too few.
    """
    return TASKS[name](RECIPES[size][name], Path(root) if root else None, torch.device(device))
