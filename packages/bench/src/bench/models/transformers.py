"""Networks with random weights: transformers of any size, and some without heads.

Logits over a vocabulary would take much of the memory, and no recomputation lessens it.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from bench.models.subject import needs


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


def bert() -> nn.Module:
    """BERT-base: 12 layers of 768 features, 12 heads, 30,522 words, dropout 0.1; at most 512 tokens.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    transformers = needs("transformers")
    model: nn.Module = transformers.BertModel(transformers.BertConfig(use_cache=False), add_pooling_layer=False)
    return model.train()


def gpt2() -> nn.Module:
    """GPT-2 small: 12 layers of 768 features, 12 heads, 50,257 words, dropout 0.1; at most 1,024 tokens.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    transformers = needs("transformers")
    model: nn.Module = transformers.GPT2Model(transformers.GPT2Config(use_cache=False))
    return model.train()


def llama() -> nn.Module:
    """A small Llama: 12 layers of 768 features with 2,048 in the gated MLP, 12 heads on 4 for keys and values, 32,000
    words, no dropout.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    transformers = needs("transformers")
    config = transformers.LlamaConfig(
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=4,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaModel(config)
    return model.train()


def layers(model: nn.Module) -> list[nn.Module]:
    """The layers of one of these."""
    kinds = ("BertLayer", "GPT2Block", "LlamaDecoderLayer")
    return [module for module in model.modules() if type(module).__name__ in kinds]
