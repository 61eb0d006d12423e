"""``fingerprint``: a number that tells models apart."""

from __future__ import annotations

import hashlib

from torch import Tensor, nn

from integrations.capture.graphs.sharding import get_class


def fingerprint(model: nn.Module) -> str:
    """A number for the model's modules, and the shapes and dtypes of its parameters and buffers.

    Values, devices and modes do not count: a plan holds for another step, another rank, another day.
    """
    digest = hashlib.sha256()
    for name, module in model.named_modules(remove_duplicate=False):
        digest.update(f"{name}: {get_class(module).__qualname__}\n".encode())
    for name, parameter in model.named_parameters(remove_duplicate=False):
        digest.update(f"{name}: {_described(parameter)} {parameter.requires_grad}\n".encode())
    for name, buffer in model.named_buffers(remove_duplicate=False):
        digest.update(f"{name}: {_described(buffer)}\n".encode())
    return digest.hexdigest()


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
