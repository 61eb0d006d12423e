"""Compression for models of transformers, with PEFT or without.

    from integrations.hf import compress_model

    model = compress_model(AutoModelForCausalLM.from_pretrained(name), memory="8GiB")

Eager attention and sdpa, tied weights and ``gradient_checkpointing_enable()`` need no preparation. ``generate()`` and
everything that runs in ``eval()`` are as before.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from integrations._utils.ecosystem import checkpoints_itself, library, require_member
from integrations._utils.warn import warn
from integrations.api import compress
from integrations.api.compress import compression, restore_model

transformers: Any = library("transformers", "hf")

from integrations.api.trainers.hf import CompressionCallback  # noqa: E402  # which imports transformers without saying so

Model = TypeVar("Model", bound=nn.Module)

__all__ = ["CompressionCallback", "compress_model", "compression", "restore_model"]


def compress_model(model: Model, level: str | None = None, **options: Any) -> Model:
    """``integrations.compress_model`` for a model of transformers, or one that contains such, as PEFT's do: the same
    arguments.

    ::

        model = compress_model(model, level="L1", activations="fewbit")

    What the model checkpoints itself, since ``gradient_checkpointing_enable()``, is stored in ``checkpoint_bits``. With
    PEFT, call this on what ``get_peft_model`` returns.

    Warns:
        UserWarning: training forwards of a decoder keep a cache for generation.

    Raises:
        TypeError, ValueError: as ``integrations.compress_model`` does, or the model has nothing of transformers.
    """
    require_member(model, ("transformers",), "a model of transformers")
    compress.compress_model(model, level, **options)
    if _caches(model):
        warn(
            f"{type(model).__name__} has config.use_cache=True: each training forward returns keys and values for "
            "generation, uncompressed, which live as long as its output; set model.config.use_cache = False for the "
            "training, and give use_cache=True to generate()"
        )
    return model


def _caches(model: nn.Module) -> bool:
    """Whether training forwards return a cache: those of models that generate do, unless their blocks are
    checkpointed."""
    for module in model.modules():
        if isinstance(module, transformers.PreTrainedModel) and module.can_generate():
            config = module.config.get_text_config(decoder=True)
            return bool(getattr(config, "use_cache", False)) and not checkpoints_itself(
                module, "gradient_checkpointing"
            )
    return False
