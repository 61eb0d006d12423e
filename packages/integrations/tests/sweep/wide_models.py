"""Llama, ViT and BERT of one layer, from hidden size 64 to 8192, with the weights that transformers draws.

These have one deviation for every width. So queries, keys and the factors of an MLP's products grow with the width, and
attention becomes sharp. The batch is small, and the widest MLPs are narrower than usual, so that a CPU takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import torch

from .case import Case

WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
FAMILIES = ("Llama", "ViT", "BERT")
HEAD = 64  # features
WIDEST_MLP = 2048
DEVIATION = 0.02  # transformers' own
SHARED = 4  # query heads of a Llama that share a key and a value
VOCABULARY, LABELS = 256, 5
SIDE, PATCH = 64, 16  # pixels

_SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False}


def entries() -> Iterator[tuple[str, str, Callable[[], Case]]]:
    """Family, name and maker of each."""
    for family in FAMILIES:
        for width in WIDTHS:
            yield family, f"{family.lower()}-{width}", partial(case, family, width)


def case(family: str, width: int, deviation: float = DEVIATION) -> Case:
    """The model of a family of that width, with a batch for it. ``deviation`` is that of its weights: ``n`` times the
    default makes queries, keys and products as large as a width of ``n**2`` times as many features does."""
    heads = max(1, width // HEAD)
    fields = {
        "hidden_size": width,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "intermediate_size": min(4 * width, WIDEST_MLP),
        "initializer_range": deviation,
    }
    if family == "Llama":
        ids = torch.randint(5, VOCABULARY, (2, 64))
        fields["num_key_value_heads"] = max(1, heads // SHARED)
        model = _made("LlamaForCausalLM", "LlamaConfig", {**fields, **_SPECIAL, "vocab_size": VOCABULARY})
        return _case(model, {"input_ids": ids, "labels": ids.clone()}, "2 x 64 tokens")
    labels = torch.randint(LABELS, (8,))
    fields["num_labels"] = LABELS
    if family == "BERT":
        ids = torch.randint(5, VOCABULARY, (8, 16))
        model = _made("BertForSequenceClassification", "BertConfig", {**fields, "vocab_size": VOCABULARY})
        return _case(model, {"input_ids": ids, "labels": labels}, "8 x 16 tokens")
    images = torch.randn(8, 3, SIDE, SIDE)
    model = _made("ViTForImageClassification", "ViTConfig", {**fields, "image_size": SIDE, "patch_size": PATCH})
    return _case(model, {"pixel_values": images, "labels": labels}, f"8 at {SIDE} x {SIDE}")


def _made(architecture: str, configuration: str, fields: Mapping[str, Any]) -> Any:
    transformers = import_module("transformers")
    return getattr(transformers, architecture)(getattr(transformers, configuration)(**fields))


def _case(model: Any, given: Mapping[str, torch.Tensor], what: str) -> Case:
    return Case(model.train(), lambda: model(**given).loss, what)
