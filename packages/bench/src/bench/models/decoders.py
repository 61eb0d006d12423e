"""Small decoders of transformers, shaped as the large ones are, with random weights, and batches for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from bench.models.subject import Subject, needs, own_loss

RANK = 16


@dataclass(frozen=True)
class Sizes:
    """What all decoders have, in the words of transformers' configurations, but for fields that a shape has itself."""

    vocab_size: int
    hidden_size: int = 384
    num_hidden_layers: int = 6
    num_attention_heads: int = 6
    intermediate_size: int = 1024
    dtype: torch.dtype = torch.bfloat16

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.num_hidden_layers} layers of {self.hidden_size}, {self.vocab_size:,} classes, {dtype}"


@dataclass(frozen=True)
class Shape:
    """What one kind of decoder has beside the sizes that all have.

    Attributes:
        what: in words.
        config: the name of transformers' configuration, without ``Config``.
        fields: of the configuration.
        adapters: whether LoRA's adapters on all linear layers but the head are trained, and nothing else.
    """

    what: str
    config: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    adapters: bool = False


_GROUPED = {"num_key_value_heads": 2, "head_dim": 64}
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "llama": Shape("Llama", "Llama"),
        "lora": Shape(f"Llama, LoRA of rank {RANK}", "Llama", adapters=True),
        "qwen3": Shape("Qwen3", "Qwen3", _GROUPED),
        "gemma2": Shape("Gemma 2", "Gemma2", _GROUPED),
        "mixtral": Shape(
            "Mixtral, 2 of 8 experts",
            "Mixtral",
            {"num_key_value_heads": 2, "num_local_experts": 8, "intermediate_size": 512},
        ),
    }
)
"""By name."""


def decoder(shape: Shape, sizes: Sizes) -> nn.Module:
    """A model, in training.

    Raises:
        MissingLibrary: transformers is not installed, or peft where there are adapters.
    """
    transformers = needs("transformers")
    common = {name: value for name, value in vars(sizes).items() if name != "dtype"}
    config = getattr(transformers, f"{shape.config}Config")(use_cache=False, **{**common, **shape.fields})
    model = transformers.AutoModelForCausalLM.from_config(config).to(sizes.dtype)
    if shape.adapters:
        peft = needs("peft")
        lora = peft.LoraConfig(r=RANK, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # which begin at zero, where the others have no gradient
                nn.init.normal_(parameter, std=0.02)
    found: nn.Module = model.train()
    return found


def base_decoder(model: nn.Module) -> Any:
    """The decoder itself, whose ``model`` is the body and ``lm_head`` the head; adapters are around it."""
    inside = getattr(model, "get_base_model", None)
    return model if inside is None else inside()


def batch(tokens: int, vocabulary: int) -> dict[str, Tensor]:
    """Random tokens, each to be guessed from those before it."""
    ids = torch.randint(vocabulary, (1, tokens))
    return {"input_ids": ids, "labels": ids}


def subject(shape: str, tokens: int, sizes: Sizes) -> Subject:
    """A model, and a batch of one row of tokens.

    Raises:
        MissingLibrary: as ``decoder``.
    """
    model = decoder(SHAPES[shape], sizes)
    what = f"{SHAPES[shape].what}, {tokens:,} tokens, {sizes}"
    return Subject(model, batch(tokens, sizes.vocab_size), own_loss, what, list(base_decoder(model).model.layers))
