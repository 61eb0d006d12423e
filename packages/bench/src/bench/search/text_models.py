"""BERTs of transformers at any size, with random weights, on random tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bench.networks import needs
from bench.systems.subject import Subject


@dataclass(frozen=True)
class Bert:
    """A BERT (Devlin et al., NAACL 2019) that tells two classes of sentences apart, and its batch.

    Attributes:
        layers, hidden, heads, intermediate: of the encoder; ``heads`` must divide ``hidden``.
        batch: sentences in a step.
        length: tokens of a sentence.
        vocabulary: tokens that there are.
    """

    layers: int
    hidden: int
    heads: int
    intermediate: int
    batch: int
    length: int
    vocabulary: int


def bert(sizes: Bert) -> Subject:
    """The model, with dropout 0.1 as there, and a batch.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    transformers = needs("transformers")
    config = transformers.BertConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.intermediate,
        max_position_embeddings=max(512, sizes.length),
    )
    model = transformers.BertForSequenceClassification(config)
    shape = (sizes.batch, sizes.length)
    inputs = {"input_ids": torch.randint(sizes.vocabulary, shape), "labels": torch.randint(2, (sizes.batch,))}
    what = f"BERT, {sizes.layers} layers of {sizes.hidden}, {sizes.batch} x {sizes.length} tokens"
    return Subject(model, inputs, _loss, what, list(model.bert.encoder.layer))


def _loss(output: object) -> Tensor:
    loss = getattr(output, "loss", None)
    assert isinstance(loss, Tensor)
    return loss
