"""Compression for PyTorch Geometric models.

    from integrations.pyg import compress_model

    model = compress_model(GCN(...), level="L1")

Message passing needs no preparation: linear layers, gathers and scatters are called through torch, where they are seen.
"""

from __future__ import annotations

import torch_geometric as torch_geometric  # an early, clear error where it is not installed

from integrations.attach import compress_model, compression, restore_model

__all__ = ["compress_model", "compression", "restore_model"]
