"""What is measured: the loss of hidden states, and of whole models, and the ways of training them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import integrations
from bench.errors import MissingLibrary
from bench.llm.models import SHAPES, decoder
from bench.networks import Case
from integrations.losses import linear_cross_entropy

LOSS, MODEL = "loss", "model"
DENSE, CHUNKED, TORCH = "dense", "chunked", "torch's F.linear_cross_entropy"
PLAIN, CHECKPOINTS = "plain", "gradient_checkpointing_enable()"
LEVELS: Mapping[str, str] = MappingProxyType({'level="L1"': "L1", 'level="lean"': "lean"})
"""The ways that have a level."""


class Hidden(nn.Module):
    """Hidden states and the weight of the layer that makes logits of them, both as parameters."""

    labels: Tensor

    def __init__(self, rows: int, features: int, classes: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.hidden = nn.Parameter(torch.randn(rows, features).to(dtype))
        self.weight = nn.Parameter((torch.randn(classes, features) / features**0.5).to(dtype))
        self.register_buffer("labels", torch.randint(classes, (rows,)))


@dataclass(frozen=True)
class Subject:
    """What is measured.

    Args:
        kind: ``LOSS`` or ``MODEL``.
        what: in words.
        make: makes it; weights and batch are random, and the same at each call after the same seed.
        ways: its names of ways.
    """

    kind: str
    what: str
    make: Callable[[], Case]
    ways: tuple[str, ...]


def _loss(rows: int, features: int, classes: int, dtype: torch.dtype) -> Subject:
    what = f"{rows:,} rows of {features}, {classes:,} classes, {str(dtype).removeprefix('torch.')}"

    def make() -> Case:
        model = Hidden(rows, features, classes, dtype)
        return Case(model, partial(dense, model), what)

    return Subject(LOSS, what, make, (DENSE, CHUNKED, TORCH))


def _model(shape: str, tokens: int, vocabulary: int) -> Subject:
    what = f"{SHAPES[shape].what}, 6 layers of 384, {tokens:,} tokens, {vocabulary:,} classes, bfloat16"

    def make() -> Case:
        model = decoder(SHAPES[shape], vocabulary)
        ids = torch.randint(vocabulary, (1, tokens))
        return Case(model, lambda: model(input_ids=ids, labels=ids).loss, what)

    both = tuple(f"{way} + {CHUNKED}" for way in (CHECKPOINTS, *LEVELS))
    return Subject(MODEL, what, make, (PLAIN, CHECKPOINTS, *LEVELS, CHUNKED, *both))


SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "loss-32k": _loss(4096, 512, 32_000, torch.float32),
        "loss-32k-bf16": _loss(4096, 512, 32_000, torch.bfloat16),
        "loss-128k": _loss(1024, 512, 128_000, torch.float32),
        "loss-128k-bf16": _loss(1024, 512, 128_000, torch.bfloat16),
        "llama-32k": _model("llama", 1024, 32_000),
        "llama-128k": _model("llama", 512, 128_000),
        "llama-4k-tokens": _model("llama", 4096, 32_000),
        "lora-32k": _model("lora", 1024, 32_000),
        "qwen3-32k": _model("qwen3", 1024, 32_000),
        "gemma2-32k": _model("gemma2", 1024, 32_000),
        "mixtral-32k": _model("mixtral", 1024, 32_000),
        "loss-small": _loss(512, 64, 2_000, torch.float32),
        "llama-small": _model("llama", 128, 1_000),
    }
)
"""By the name that the command line knows; the small ones show that it works."""
QUICK = ("loss-small", "llama-small")


def dense(model: Hidden) -> Tensor:
    """The loss of all logits at once, in float32, as libraries compute it."""
    return F.cross_entropy(F.linear(model.hidden, model.weight).float(), model.labels)


def in_way(subject: Subject, case: Case, way: str) -> Callable[[], Tensor]:
    """What computes the loss in a way; a model is changed in place.

    Raises:
        MissingLibrary: this torch has not what the way takes.
    """
    if subject.kind == LOSS:
        return _loss_in(case, way)
    level = next((level for name, level in LEVELS.items() if name in way), "L0")
    options: dict[str, Any] = {"level": level}
    model: Any = case.model
    if CHECKPOINTS in way:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if CHUNKED in way:
        options["loss"] = CHUNKED
    if CHUNKED in way or level != "L0":
        integrations.compress_model(case.model, **options)
    return case.loss


def _loss_in(case: Case, way: str) -> Callable[[], Tensor]:
    model = case.model
    assert isinstance(model, Hidden)
    if way == CHUNKED:
        return lambda: linear_cross_entropy(model.hidden, model.weight, model.labels)
    if way == TORCH:
        theirs = getattr(F, "linear_cross_entropy", None)
        if theirs is None:
            raise MissingLibrary("torch.nn.functional.linear_cross_entropy is not there; it needs torch 2.13 or later")
        options = torch.nn.LinearCrossEntropyOptions()
        return lambda: theirs(model.hidden, model.weight, model.labels, options=options)
    return case.loss
