"""``Signature``: what a model's forward was called with, as far as its operators may depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import is_any_autocast_enabled, tree_flatten


@dataclass(frozen=True)
class Signature:
    """The inputs of a forward, without their contents.

    Attributes:
        structure: how they are nested, what is no tensor, and the autocast that is on. Of a number that may be a
            fraction it has the type alone, since such numbers scale and seldom choose.
        kinds: by tensor: its dtype and whether it requires a gradient.
        shapes: by tensor. For nested tensors, a size that differs between their parts is 0.
    """

    structure: str
    kinds: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Signature:
        """The signature of a call's inputs."""
        tensors = [*args, *kwargs.values()]
        if all(isinstance(given, Tensor) for given in tensors):
            structure = _structure_of_tensors(len(args), tuple(kwargs))
        else:
            leaves, spec = tree_flatten((args, dict(kwargs)))
            tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            structure = f"{spec} {[None if isinstance(leaf, Tensor) else _described(leaf) for leaf in leaves]}"
        return cls(
            structure + _autocast(),
            tuple(_describe_kind(tensor.dtype, tensor.requires_grad, tensor.is_nested) for tensor in tensors),
            tuple(map(_get_shape, tensors)),
        )

    def alike(self, other: Signature) -> bool:
        """Whether the inputs differ only in the tensors' sizes."""
        return (self.structure, self.kinds) == (other.structure, other.kinds) and [*map(len, self.shapes)] == [
            *map(len, other.shapes)
        ]

    def within(self, other: Signature) -> bool:
        """Whether these inputs are like the other ones, and none is larger in any dimension."""
        return self.alike(other) and all(
            size <= limit
            for shape, limits in zip(self.shapes, other.shapes, strict=True)
            for size, limit in zip(shape, limits, strict=True)
        )

    def __str__(self) -> str:
        return ", ".join("x".join(map(str, shape)) or "scalar" for shape in self.shapes) or "no tensors"


@lru_cache(maxsize=64)
def _structure_of_tensors(count: int, names: tuple[str, ...]) -> str:
    """How inputs are nested that are all tensors.

    Args:
        count: of inputs without a name.
        names: of the others.
    """
    leaves, spec = tree_flatten(((0,) * count, dict.fromkeys(names, 0)))
    return f"{spec} {[None] * len(leaves)}"


@cache  # each forward asks, and torch takes as long for a dtype's name as for a small operator
def _describe_kind(dtype: torch.dtype, requires_grad: bool, is_nested: bool) -> str:
    return f"{dtype} {requires_grad}{' nested' * is_nested}"


def _get_shape(tensor: Tensor) -> tuple[int, ...]:
    if not tensor.is_nested:
        return tuple(tensor.shape)
    if tensor.layout is torch.strided:  # such a tensor has no shape
        return (tensor.size(0), *(0 for _ in range(tensor.dim() - 1)))
    return tuple(size if isinstance(size, int) else 0 for size in tensor.shape)


def _autocast() -> str:
    """The dtypes that autocast casts to, on the devices for which it is on."""
    if not is_any_autocast_enabled():
        return ""
    devices = [device for device in ("cpu", "cuda") if torch.is_autocast_enabled(device)]
    return " under autocast" + "".join(f" {device} {torch.get_autocast_dtype(device)}" for device in devices)


def _described(leaf: Any) -> str:
    if leaf is None or isinstance(leaf, (bool, int, str)):
        return repr(leaf)
    return type(leaf).__qualname__
