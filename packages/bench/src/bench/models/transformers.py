"""Transformers of any size, with random weights, in the words that the library has for their sizes."""

from __future__ import annotations

from typing import Any

from bench.models.libraries import needs


def transformer(
    name: str,
    layers: int,
    width: int,
    heads: int,
    vocabulary: int,
    *,
    inner: int | None = None,
    dropout: float | None = None,
    **fields: Any,
) -> Any:
    """Make a model of transformers; its weights are drawn from torch's generator.

    Args:
        name: of its class, such as ``"BertForSequenceClassification"``; the part before ``For`` names the
            configuration.
        layers, width, heads: of the model; ``heads`` must divide ``width``.
        vocabulary: number of tokens.
        inner: features between the two linear layers of a block; default: 4 times ``width``.
        dropout: of embeddings, layers and attention, for BERT and its kin; default: the configuration's.
        **fields: of the configuration besides.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    transformers = needs("transformers")
    if dropout is not None:
        fields = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout, **fields}
    config = getattr(transformers, f"{name.partition('For')[0]}Config")(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner or 4 * width,
        **fields,
    )
    return getattr(transformers, name)(config)
