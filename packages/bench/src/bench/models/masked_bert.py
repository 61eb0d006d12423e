"""A small BERT that fills in masked words (Devlin et al., 2019), and its loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models.data.mrpc import MARKS, MASK, PADDING, Pairs
from bench.models.transformers import transformer


@dataclass(frozen=True)
class Recipe:
    """How it is made and trained.

    Attributes:
        layers, width, heads: of the network; the inner features are 4 times ``width``.
        vocabulary: numbers of words.
        length: of a pair of sentences, in tokens, at most.
        dropout: of embeddings, attention and layers. So short a training needs none.
        deviation: of the initial weights; 0.08 makes training take twice as long.
        batch: pairs.
        steps: of training.
        masked: which part of the words is to be guessed.
        rate: the most that AdamW has, after ``warm_up`` steps; it falls to 0 at the end.
    """

    layers: int = 4
    width: int = 64
    heads: int = 4
    vocabulary: int = 500
    length: int = 64
    dropout: float = 0.0
    deviation: float = 0.02
    batch: int = 32
    steps: int = 1500
    masked: float = 0.3
    rate: float = 3e-3
    warm_up: int = 100

    def numbers(self) -> Mapping[str, float]:
        """The settings by name."""
        return asdict(self)


@dataclass(frozen=True)
class Masked:
    """Pairs of sentences with holes.

    Attributes:
        pairs: as they are.
        holes: ``Bool[Tensor, "pairs length"]``: the words to guess; marks and rare words are none.
    """

    pairs: Pairs
    holes: Tensor

    @classmethod
    def of(cls, pairs: Pairs, part: float, generator: torch.Generator) -> Masked:
        """Each known word is to be guessed with a probability of ``part``."""
        chosen = torch.rand(pairs.tokens.shape, generator=generator) < part
        return cls(pairs, (pairs.tokens >= MARKS) & chosen)

    def __getitem__(self, places: Tensor) -> Masked:
        """Some of the pairs, without the padding that all of them have."""
        length = int(self.pairs.lengths()[places].max())
        parts = (self.pairs.tokens, self.pairs.segments, self.pairs.positions, self.holes)
        tokens, segments, positions, holes = (part[places, :length] for part in parts)
        return Masked(Pairs(tokens, segments, positions), holes)

    @property
    def words(self) -> Tensor:
        """``Int64[Tensor, "holes"]``: what is to be guessed."""
        return self.pairs.tokens[self.holes]

    def entropy(self) -> float:
        """Of the words to guess, in nats: the least loss of whoever knows how frequent they are and nothing else."""
        part = self.words.bincount().double() / len(self.words)
        return float(torch.special.entr(part).sum())


def make(recipe: Recipe, frequencies: Tensor) -> nn.Module:
    """The network, its weights drawn from torch's generator; it guesses by the words' frequencies at first.

    Args:
        recipe: what it is made of.
        frequencies: ``Float[Tensor, "vocabulary"]``, positive.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    model: nn.Module = transformer(
        "BertForMaskedLM",
        recipe.layers,
        recipe.width,
        recipe.heads,
        recipe.vocabulary,
        dropout=recipe.dropout,
        max_position_embeddings=recipe.length,
        pad_token_id=PADDING,
        initializer_range=recipe.deviation,
        attn_implementation="sdpa",
    )
    with torch.no_grad():
        model.get_parameter("cls.predictions.bias").copy_(frequencies.log())
    return model.train()


def losses(model: nn.Module, masked: Masked) -> Tensor:
    """``Float32[Tensor, "holes"]``: the cross-entropy of each word to guess, in nats."""
    inner = model.get_submodule("bert")(
        input_ids=masked.pairs.tokens.masked_fill(masked.holes, MASK),
        token_type_ids=masked.pairs.segments,
        position_ids=masked.pairs.positions,
        attention_mask=(masked.pairs.tokens != PADDING).long(),
    )
    # Only what is to be guessed goes through the last layers, which cost most.
    guesses = model.get_submodule("cls")(inner.last_hidden_state[masked.holes])
    return F.cross_entropy(guesses, masked.words, reduction="none")
