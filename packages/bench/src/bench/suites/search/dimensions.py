"""What is searched: one number of one model, at a device's sizes.

On CUDA the sizes are those of GACT's and ActNN's searches, for 16 GiB. On the CPU everything is narrower and the
images are smaller, so that a step within the limit takes a fraction of a second on one core. ResNets have a larger
limit there: oneDNN reserves some 60 MiB for the code of a ResNet-50's kernels, which Linux counts, written or not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType

from bench.models.decoders import Sizes as Decoder
from bench.models.sized import (
    RESNET_50,
    RESNET_152,
    SWIN_SMALL,
    SWIN_TINY,
    Bert,
    Graph,
    Images,
    bert,
    gcn,
    llama,
    resnet,
    scaled_stages,
    swin,
)
from bench.models.subject import Subject
from bench.units import GIB, MIB


@dataclass(frozen=True)
class Dimension:
    """One number of a model, of which the largest is searched.

    Attributes:
        family: ``"resnet"``, ``"swin"``, ``"bert"``, ``"gcn"`` or ``"llama"``.
        title: the model and what stays the same, and the number's name.
        make: a subject with that number.
        first: where the search begins.
        least, most, step: the numbers that there are: from ``least`` to ``most`` by ``step``.
        items: what a step is counted by, in the plural: images, sentences, nodes or tokens.
        item_count: how many a step has, of the number.
        optimizer: ``"sgd"``, with momentum, or ``"adam"``.
    """

    family: str
    title: str
    make: Callable[[int], Subject]
    first: int
    least: int
    most: int
    step: int
    items: str
    item_count: Callable[[int], int]
    optimizer: str = "sgd"


@dataclass(frozen=True)
class Sizes:
    """The models' sizes on a device.

    Attributes:
        images: of the image models; ``deep`` for those that are searched by depth, width or resolution.
        base, large: BERTs; ``batch`` is that of searches for other numbers.
        graph: the GCN; its ``layers`` are those of the search for ``hidden``, and the other way round.
        widest: stages of the ResNet whose width and resolution are searched.
        decoder: the Llama.
    """

    images: Images
    deep: Images
    base: Bert
    large: Bert
    graph: Graph
    widest: tuple[int, ...]
    decoder: Decoder


SIZES: Mapping[str, Sizes] = MappingProxyType(
    {
        "cpu": Sizes(
            images=Images(batch=8, size=64, channels=16, embedding=16, heads=1, window=4, classes=10),
            deep=Images(batch=32, size=64, channels=8, embedding=16, heads=1, window=4, classes=10),
            base=Bert(4, 64, heads=4, intermediate=256, batch=8, length=32, vocabulary=1000),
            large=Bert(8, 64, heads=4, intermediate=256, batch=8, length=32, vocabulary=1000),
            graph=Graph(layers=3, hidden=64, nodes=1000, edges=7000, features=64, classes=10),
            widest=RESNET_50,
            decoder=Decoder(32_000),
        ),
        "cuda": Sizes(
            images=Images(batch=64, size=224, channels=64, embedding=96, heads=3, window=7, classes=1000),
            deep=Images(batch=64, size=224, channels=64, embedding=96, heads=3, window=7, classes=1000),
            base=Bert(12, 768, heads=12, intermediate=3072, batch=16, length=128, vocabulary=28_996),
            large=Bert(24, 1024, heads=16, intermediate=4096, batch=16, length=128, vocabulary=28_996),
            graph=Graph(layers=3, hidden=256, nodes=169_343, edges=1_166_243, features=128, classes=40),
            widest=RESNET_152,
            decoder=Decoder(128_256, 2048, 16, 32, 8192),
        ),
    }
)

_ON_CPU = {"resnet": 128 * MIB, "swin": 64 * MIB, "bert": 48 * MIB, "gcn": 24 * MIB, "llama": 320 * MIB}

MEMORY_LIMITS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {"cpu": _ON_CPU, "cuda": dict.fromkeys(_ON_CPU, 16 * GIB)}
)
"""Bytes that training may take by default, by device and family."""

QUICK_LIMITS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "cpu": {"resnet": 112 * MIB, "swin": 32 * MIB, "bert": 24 * MIB, "gcn": 16 * MIB, "llama": 288 * MIB},
        "cuda": dict.fromkeys(_ON_CPU, 2 * GIB),
    }
)


def dimensions(device: str) -> dict[str, Dimension]:
    """All that can be searched, by the name that the command line knows; the same names on each device.

    Args:
        device: ``"cpu"`` or ``"cuda"``.
    """
    sizes = SIZES[device]
    first = {name: firsts[device == "cuda"] for name, firsts in _FIRST.items()}
    return {
        name: replace(dimension, first=first[name])
        for name, dimension in {**_images(sizes), **_texts(sizes), **_graphs(sizes), **_decoders(sizes)}.items()
    }


_FIRST: Mapping[str, tuple[int, int]] = MappingProxyType(
    {  # about what trains plainly within the default limit: on the CPU, and in the originals' 16 GiB
        "resnet50-batch": (24, 160),
        "resnet152-batch": (8, 64),
        "resnet-depth": (101, 161),
        "resnet-width": (128, 88),
        "resnet-resolution": (72, 232),
        "swin-tiny-batch": (20, 112),
        "swin-small-batch": (8, 64),
        "bert-base-batch": (45, 104),
        "bert-large-batch": (20, 24),
        "bert-layers": (18, 32),
        "bert-hidden": (144, 1280),
        "bert-intermediate": (1024, 8192),
        "bert-length": (64, 192),
        "gcn-layers": (20, 24),
        "gcn-hidden": (480, 2464),
        "llama-tokens": (256, 2048),
    }
)

NAMES = tuple(_FIRST)
"""Of what can be searched, in the order of the report."""

FAMILIES = ("resnet", "swin", "bert", "gcn", "llama")

DEFAULT = (
    "resnet50-batch",
    "resnet-depth",
    "resnet-width",
    "resnet-resolution",
    "swin-tiny-batch",
    "bert-large-batch",
    "bert-layers",
    "gcn-layers",
    "gcn-hidden",
)
"""What is searched on the CPU where nothing is named."""

QUICK = ("resnet50-batch", "swin-tiny-batch", "bert-layers", "gcn-layers", "llama-tokens")


def _images(sizes: Sizes) -> dict[str, Dimension]:
    images, deep, widest = sizes.images, sizes.deep, sizes.widest

    def batch(family: str, title: str, make: Callable[[int], Subject]) -> Dimension:
        whole = f"{title}, {images.size} x {images.size}: batch"
        # A batch of one leaves batch norm nothing to normalise where images have become single pixels.
        return Dimension(family, whole, make, 0, 2, 8192, 1, "images", int)

    def size(title: str, make: Callable[[int], Subject], least: int, most: int, step: int) -> Dimension:
        return Dimension("resnet", title, make, 0, least, most, step, "images", lambda value: deep.batch)

    name, still = f"ResNet-{sum(widest) * 3 + 2}", f"{deep.batch} images"
    at = f"{still} at {deep.size} x {deep.size}"
    # The width is of each 64 channels: a stage that has fewer changes by whole channels.
    wider = max(4, 64 // deep.channels)
    return {
        "resnet50-batch": batch("resnet", "ResNet-50", lambda value: resnet(images, RESNET_50, batch=value)),
        "resnet152-batch": batch("resnet", "ResNet-152", lambda value: resnet(images, RESNET_152, batch=value)),
        "resnet-depth": size(f"ResNet, {at}: depth", lambda value: resnet(deep, scaled_stages(value)), 14, 6002, 3),
        "resnet-width": size(
            f"{name}, {at}: width", lambda value: resnet(deep, widest, width=value), 4 * wider, 1024 * wider, wider
        ),
        "resnet-resolution": size(
            f"{name}, {still}: resolution", lambda value: resnet(deep, widest, size=value), 32, 4096, 4
        ),
        "swin-tiny-batch": batch("swin", "Swin-tiny", lambda value: swin(images, SWIN_TINY, batch=value)),
        "swin-small-batch": batch("swin", "Swin-small", lambda value: swin(images, SWIN_SMALL, batch=value)),
    }


def _texts(sizes: Sizes) -> dict[str, Dimension]:
    def adam(number: str, of: Bert, title: str, least: int, most: int, step: int) -> Dimension:
        return Dimension(
            "bert",
            f"{title}: {number}",
            lambda value: bert(replace(of, **{number: value})),
            first=0,
            least=least,
            most=most,
            step=step,
            items="sentences",
            item_count=int if number == "batch" else lambda value: of.batch,
            optimizer="adam",
        )

    base, large = sizes.base, sizes.large
    tokens, still = f"{large.length} tokens", f"{large.batch} x {large.length} tokens"
    return {
        "bert-base-batch": adam("batch", base, f"BERT-base, {base.length} tokens", 1, 8192, 1),
        "bert-large-batch": adam("batch", large, f"BERT-large, {tokens}", 1, 8192, 1),
        "bert-layers": adam("layers", large, f"BERT-large, {still}", 1, 2048, 1),
        "bert-hidden": adam("hidden", large, f"BERT-large, {still}", large.heads, 16_384, large.heads),
        "bert-intermediate": adam("intermediate", large, f"BERT-large, {still}", 64, 131_072, 64),
        "bert-length": adam("length", large, f"BERT-large, {large.batch} sentences", 4, 16_384, 4),
    }


def _graphs(sizes: Sizes) -> dict[str, Dimension]:
    graph = sizes.graph

    def of(number: str, title: str, least: int, most: int, step: int) -> Dimension:
        return Dimension(
            "gcn",
            f"{title}, {graph.nodes:,} nodes: {number}",
            lambda value: gcn(replace(graph, **{number: value})),
            first=0,
            least=least,
            most=most,
            step=step,
            items="nodes",
            item_count=lambda value: graph.nodes,
            # As GACT trains it. Without residual connections the gradient grows by half with each layer, and a step of
            # SGD would throw the weights away.
            optimizer="adam",
        )

    return {
        "gcn-layers": of("layers", f"GCN of {graph.hidden}", 2, 4096, 1),
        "gcn-hidden": of("hidden", f"GCN of {graph.layers} layers", 4, 65_536, 4),
    }


def _decoders(sizes: Sizes) -> dict[str, Dimension]:
    title = f"Llama, {sizes.decoder}: tokens"
    make = partial(llama, sizes.decoder)
    return {"llama-tokens": Dimension("llama", title, make, 0, 128, 65_536, 128, "tokens", int)}
