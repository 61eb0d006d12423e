"""``fingerprint``: what tells one model and its inputs from another."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from integrations.checkpoint.sharding import class_of


def fingerprint(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A number for the model's modules, the shapes and dtypes of its parameters, buffers and inputs, and its mode.

    Neither values nor devices: a plan is good for another step, another rank, another day.
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules(remove_duplicate=False):
        digest.update(f"{name}: {class_of(module).__qualname__} {module.training}\n".encode())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        digest.update(f"{name}: {_described(parameter)}\n".encode())
    for name, buffer in model.named_buffers(remove_duplicate=False):
        digest.update(f"{name}: {_described(buffer)}\n".encode())
    leaves, structure = tree_flatten((args, kwargs))
    digest.update(str(structure).encode())
    for leaf in leaves:
        digest.update(f"{_described(leaf) if isinstance(leaf, Tensor) else repr(leaf)}\n".encode())
    return digest.hexdigest()


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)} {tensor.requires_grad}"
