"""Compression for models of timm.

    from integrations.timm import compress_model

    model = compress_model(timm.create_model("resnet50"), memory="8GiB")

timm's own activations, fused attention or not, and ``set_grad_checkpointing`` (``checkpoint_seq``) need no preparation.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from integrations._utils.ecosystem import library, require_member
from integrations.api import compress
from integrations.api.compress import compression, restore_model

library("timm", "timm")

Model = TypeVar("Model", bound=nn.Module)

__all__ = ["compress_model", "compression", "restore_model"]


def compress_model(model: Model, level: str | None = None, **options: Any) -> Model:
    """``integrations.compress_model`` for a model of timm, or one that contains such: the same arguments.

    ::

        model = compress_model(model, level="L1", activations="fewbit", checkpoint=0.5)

    What the model checkpoints itself, since ``model.set_grad_checkpointing()``, is stored in ``checkpoint_bits``.

    Raises:
        TypeError, ValueError: as ``integrations.compress_model`` does, or the model has nothing of timm.
    """
    require_member(model, ("timm",), "a model of timm")
    return compress.compress_model(model, level, **options)
