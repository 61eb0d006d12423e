"""Compression for models of timm.

    from integrations.timm import compress_model

    model = compress_model(timm.create_model("resnet50"), level="L1")

timm's own activations, fused attention or not, and ``set_grad_checkpointing`` (``checkpoint_seq``) need no preparation.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from integrations import attach
from integrations.attach import compression, restore_model
from integrations.ecosystem import library, require_member, require_one_checkpointing

library("timm", "timm")

Model = TypeVar("Model", bound=nn.Module)

_DIVIDES = ("LiteMLA",)  # classes in whose own forward a product's sum is divided by

__all__ = ["compress_model", "compression", "restore_model"]


def compress_model(model: Model, level: str = "L1", *, checkpoint: Any = None, **options: Any) -> Model:
    """``integrations.compress_model`` for a model of timm, or one that contains such: the same arguments.

    ::

        model = compress_model(model, level="L1", activations="fewbit", checkpoint=0.5)

    What the model checkpoints itself, since ``model.set_grad_checkpointing()``, is stored in ``checkpoint_bits``.
    Linear attention that divides one part of a product by another (``LiteMLA`` of EfficientViT) is kept exactly: where
    the divisor is small, a rounding error of any size would come out of it.

    Raises:
        TypeError, ValueError: as ``integrations.compress_model`` does; the model has nothing of timm; or ``checkpoint``
            is given, and it checkpoints its blocks itself.
    """
    require_member(model, ("timm",), "a model of timm")
    require_one_checkpointing(model, checkpoint, "grad_checkpointing", "model.set_grad_checkpointing(False)")
    divided = tuple(name for name, module in model.named_modules() if type(module).__name__ in _DIVIDES)
    if divided:
        given = options.get("keep", ())
        options["keep"] = (*((given,) if isinstance(given, str) else given), *divided)
    return attach.compress_model(model, level, checkpoint=checkpoint, **options)
