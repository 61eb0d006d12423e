"""What is measured: the loss of hidden states, and of whole models, and the ways of training them.

The Llama of 1,024 tokens and 32,000 classes is trained in every way. What differs from it in one thing, which is the
number of tokens, adapters, the kind of decoder, the vocabulary or accumulation, is trained in those that are each the
best of a kind, and in four beside the plain one where a step takes many seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.errors import MissingLibrary
from bench.models import decoders as models
from bench.models.decoders import SHAPES, Sizes
from bench.models.subject import needs
from bench.ways.decoders import CHUNKED, CUT, FEW, MAIN, WAYS, cut_cross_entropy
from integrations.losses import linear_cross_entropy

LOSS, MODEL = "loss", "model"
DENSE, TORCH = "dense", "torch's F.linear_cross_entropy"

_SIZES = Sizes(32_000)

Step = Callable[[], Tensor]
"""Forward and backward, after which gradients are there; returns the loss."""


class Hidden(nn.Module):
    """Hidden states and the weight of the layer that makes logits of them, both as parameters."""

    labels: Tensor

    def __init__(self, rows: int, features: int, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(rows, features).to(dtype))
        self.weight = nn.Parameter((torch.randn(classes, features) / features**0.5).to(dtype))
        self.register_buffer("labels", torch.randint(classes, (rows,)))


@dataclass(frozen=True)
class Task:
    """A model, and what trains it.

    Attributes:
        model: whose parameters have the gradients.
        step: of a way, whose model it may change.
    """

    model: nn.Module
    step: Callable[[str], Step]


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Attributes:
        kind: ``LOSS`` or ``MODEL``.
        what: in words.
        make: makes it; weights and batch are random, and the same at each call after the same seed.
        ways: its names of ways, of which the first is what others are compared with.
        shape: of a model, a name in ``SHAPES``.
        tokens: of a model, in a forward.
    """

    kind: str
    what: str
    make: Callable[[], Task]
    ways: tuple[str, ...]
    shape: str = ""
    tokens: int = 0


def _loss(rows: int, features: int, classes: int, dtype: torch.dtype) -> Subject:
    what = f"{rows:,} rows of {features}, {classes:,} classes, {str(dtype).removeprefix('torch.')}"

    def make() -> Task:
        model = Hidden(rows, features, classes, dtype)
        return Task(model, lambda way: _backward([_loss_in(model, way)]))

    return Subject(LOSS, what, make, (DENSE, CHUNKED, TORCH, CUT))


def _model(shape: str, tokens: int, ways: tuple[str, ...] = MAIN, sizes: Sizes = _SIZES, batches: int = 1) -> Subject:
    times = f"{batches} x " if batches > 1 else ""
    what = f"{SHAPES[shape].what}, {times}{tokens:,} tokens, {sizes}"

    def make() -> Task:
        made = models.subject(shape, tokens, sizes)
        inputs = [made.inputs, *(models.batch(tokens, sizes.vocab_size) for _ in range(batches - 1))]

        def step(way: str) -> Step:
            forward, _ = WAYS[way].ready(made)

            def loss(given: Any) -> Tensor:
                return made.loss(forward(**given))

            return _backward([partial(loss, given) for given in inputs])

        return Task(made.model, step)

    return Subject(MODEL, what, make, ways, shape, tokens)


def _backward(losses: list[Callable[[], Tensor]]) -> Step:
    """A step of one loss, or of the mean of several, one after another."""

    def step() -> Tensor:
        total = torch.zeros(())
        for one in losses:
            loss = one() / len(losses)
            loss.backward()
            total += loss.detach()
        return total

    return step


SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "loss-32k": _loss(4096, 512, 32_000, torch.float32),
        "loss-32k-bf16": _loss(4096, 512, 32_000, torch.bfloat16),
        "loss-128k": _loss(1024, 512, 128_000, torch.float32),
        "loss-128k-bf16": _loss(1024, 512, 128_000, torch.bfloat16),
        "llama-32k": _model("llama", 1024, tuple(WAYS)),
        "llama-512-tokens": _model("llama", 512),
        "llama-2k-tokens": _model("llama", 2048),
        "llama-8k-tokens": _model("llama", 8192, FEW),
        "lora-32k": _model("lora", 1024),
        "lora-512-tokens": _model("lora", 512),
        "lora-2k-tokens": _model("lora", 2048),
        "lora-8k-tokens": _model("lora", 8192, FEW),
        "qwen3-32k": _model("qwen3", 1024),
        "gemma2-32k": _model("gemma2", 1024),
        "mixtral-32k": _model("mixtral", 1024),
        "llama-128k": _model("llama", 512, sizes=Sizes(128_000)),
        "llama-accumulated": _model("llama", 512, batches=4),
        "loss-small": _loss(512, 64, 2_000, torch.float32),
        "llama-small": _model("llama", 128, sizes=Sizes(1_000, 64, 2, 2, 128), batches=2),
    }
)
"""By the name that the command line knows; the small ones show that it works."""
QUICK = ("loss-small", "llama-small")


def dense(model: Hidden) -> Tensor:
    """The loss of all logits at once, in float32, as libraries compute it."""
    return F.cross_entropy(F.linear(model.hidden, model.weight).float(), model.labels)


def _loss_in(model: Hidden, way: str) -> Callable[[], Tensor]:
    """What computes the loss in a way."""
    if way == DENSE:
        return partial(dense, model)
    if way == CHUNKED:
        return lambda: linear_cross_entropy(model.hidden, model.weight, model.labels)
    if way == CUT:
        cut = cut_cross_entropy()
        return lambda: cut(model.hidden, model.weight, model.labels)
    theirs, options = _of_torch(), torch.nn.LinearCrossEntropyOptions()
    return lambda: theirs(model.hidden, model.weight, model.labels, options=options)


def _of_torch() -> Callable[..., Tensor]:
    theirs: Callable[..., Tensor] | None = getattr(F, "linear_cross_entropy", None)
    if theirs is None:
        raise MissingLibrary("torch.nn.functional.linear_cross_entropy is missing; it needs torch 2.13 or later")
    return theirs


def require(way: str) -> None:
    """Raises ``MissingLibrary`` where a way takes a library, or a torch, that is not there."""
    if way == TORCH:
        _of_torch()
    elif way in WAYS and WAYS[way].library:
        needs(WAYS[way].library, "rivals")
