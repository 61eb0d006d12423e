"""A network with RoBERTa-base's shape, and the four ways to train it that FewBit's table compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.transformers import transformer
from integrations import fewbit
from integrations.fewbit import RandomizedLinear
from integrations.fewbit.util import convert_linear, map_module

BITS, RATIO = 3, 0.2
RATIOS = (None, 0.5, 0.2, 0.1)  # of the rows that linear layers keep; None is all, exactly
DROPOUT = 0.1
ATTENTION = "sdpa"  # torch's scaled_dot_product_attention


@dataclass(frozen=True)
class Shape:
    """What a RoBERTa is made of. The defaults are RoBERTa-base's (Liu et al., 2019).

    Attributes:
        layers, hidden, heads: of the encoder; the inner features are 4 times ``hidden``.
        vocabulary: words.
        length: of a sequence, in tokens, padding included.
    """

    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 50_265
    length: int = 128

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.hidden}, {self.heads} heads, {self.length} tokens"


@dataclass(frozen=True)
class Exchange:
    """What is exchanged in the network.

    Attributes:
        bits: that GELU keeps of an element for backward; ``None``: the exact GELU.
        ratio: of their inputs' rows, of which the linear layers of the encoder keep so many in a sketch; ``None``:
            exact layers.
    """

    bits: int | None = None
    ratio: float | None = None


WAYS: Mapping[str, Exchange] = MappingProxyType(
    {
        "vanilla": Exchange(),
        f"{BITS}-bit GELU": Exchange(bits=BITS),
        "randomized linear": Exchange(ratio=RATIO),
        "both": Exchange(BITS, RATIO),
    }
)
"""FewBit's rows, by the name that tables have."""


class Case:
    """A network in training mode and a batch for it.

    Attributes:
        model: a ``RobertaForSequenceClassification`` of two classes with random weights.
    """

    def __init__(self, shape: Shape, way: Exchange, batch: int, device: torch.device) -> None:
        """Draws weights and batch from torch's generator.

        Raises:
            MissingLibrary: transformers is not installed.
        """
        network = transformer(
            "RobertaForSequenceClassification",
            shape.layers,
            shape.hidden,
            shape.heads,
            shape.vocabulary,
            dropout=DROPOUT,
            max_position_embeddings=shape.length + 2,  # RoBERTa counts positions from 2
            type_vocab_size=1,
            num_labels=2,
            attn_implementation=ATTENTION,
        )
        self.model: nn.Module = network.to(device).train()
        exchange(self.model, way)
        tokens, mask = padded(batch, shape, network.config.pad_token_id)
        self._batch: dict[str, Any] = {
            "input_ids": tokens.to(device),
            "attention_mask": mask.to(device),
            "labels": torch.randint(2, (batch,)).to(device),
        }

    def loss(self) -> Tensor:
        """The cross-entropy of the batch."""
        loss: Tensor = self.model(**self._batch).loss
        return loss


def exchange(model: nn.Module, way: Exchange) -> None:
    """Exchanges GELU everywhere, and every ``nn.Linear`` of the encoder: query, key, value and output of the attention,
    the inner and the outer one behind it."""
    if way.bits is not None:
        fewbit.convert(model, bits=way.bits)
    if way.ratio is not None:
        encoder = model.get_submodule("roberta.encoder")
        map_module(encoder, lambda module, path: convert_linear(module, RandomizedLinear, proj_dim_ratio=way.ratio))


def padded(batch: int, shape: Shape, padding: int) -> tuple[Tensor, Tensor]:
    """Random tokens of sequences from a quarter to the whole of the length, and the mask of those that are no padding.

    What is stored does not depend on how much of it is padding.
    """
    lengths = torch.randint(shape.length // 4, shape.length + 1, (batch, 1))
    mask = torch.arange(shape.length) < lengths
    tokens = torch.randint(padding + 1, shape.vocabulary, (batch, shape.length))
    return tokens.masked_fill(~mask, padding), mask.long()
