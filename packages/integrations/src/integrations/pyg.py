"""Compression for PyTorch Geometric models.

    from integrations.pyg import compress_model

    model = compress_model(GCN(...), memory="8GiB")

Message passing needs no preparation: linear layers, gathers and scatters are called through torch, where they are seen.
"""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

from integrations._utils.ecosystem import library, require_member
from integrations.api import compress
from integrations.api.compress import compression, restore_model

library("torch_geometric", "pyg")

Model = TypeVar("Model", bound=nn.Module)

__all__ = ["compress_model", "compression", "restore_model"]


def compress_model(model: Model, level: str | None = None, **options: Any) -> Model:
    """``integrations.compress_model`` for a model with layers of PyTorch Geometric: the same arguments.

    ::

        model = compress_model(model, level="L1")

    ``linear`` takes PyG's own linear layers, too. A plan (``memory``, ``checkpoint``) is made for each shape of input
    that comes by: with sampled batches, each of another shape, leave it out.

    Raises:
        TypeError, ValueError: as ``integrations.compress_model`` does, or the model has nothing of PyG.
    """
    require_member(model, ("torch_geometric",), "a model of PyTorch Geometric")
    return compress.compress_model(model, level, **options)
