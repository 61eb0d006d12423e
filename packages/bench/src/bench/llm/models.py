"""Small decoders of transformers, shaped as the large ones are, with random weights in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from bench.networks import needs

_SIZES = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 6, "intermediate_size": 1024}
RANK = 16


@dataclass(frozen=True)
class Shape:
    """What one kind of decoder has beside the sizes that all have.

    Attributes:
        what: in words.
        config: the name of transformers' configuration, without ``Config``.
        fields: of the configuration.
        adapters: whether LoRA's adapters on all linear layers are trained, and nothing else.
    """

    what: str
    config: str
    fields: Mapping[str, Any]
    adapters: bool = False


_GROUPED = {"num_key_value_heads": 2, "head_dim": 64}
SHAPES: Mapping[str, Shape] = MappingProxyType(
    {
        "llama": Shape("Llama", "Llama", {}),
        "lora": Shape(f"Llama, LoRA of rank {RANK} on all linear layers", "Llama", {}, adapters=True),
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


def decoder(shape: Shape, vocabulary: int) -> nn.Module:
    """A model, in training.

    Raises:
        MissingLibrary: transformers is not installed, or peft where there are adapters.
    """
    transformers = needs("transformers")
    fields = {**_SIZES, **shape.fields}
    config = getattr(transformers, f"{shape.config}Config")(vocab_size=vocabulary, use_cache=False, **fields)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    if shape.adapters:
        peft = needs("peft")
        lora = peft.LoraConfig(r=RANK, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM")
        model = peft.get_peft_model(model, lora)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # which begin at zero, where the others have no gradient
                nn.init.normal_(parameter, std=0.02)
    found: nn.Module = model.train()
    return found
