"""Stores what an activation saves as the few bits that tell its derivative: for which calls that is possible."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from actcore import FLOATS, SavedTensor
from integrations.policies.arguments import Arguments
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.codebook import Codebook
from integrations.policies.codebooks.representatives import saves_one
from integrations.policies.codebooks.shipped import SMOOTH


def find_codebook(activation: Codebook | None, bits: int, dtype: torch.dtype) -> Codebook | None:
    """The codec of ``bits`` bits for an activation; ``None`` if one of its levels is not an attained slope in that
    dtype.

    Args:
        activation: the call's, from ``find_activation``.
        bits: bits of the derivative.
        dtype: dtype of the saved tensor.
    """
    if activation is None or dtype not in FLOATS:
        return None
    codebook = replace(activation, bits=bits)
    return None if codebook.representatives(dtype) is None else codebook


def find_activation(name: str, given: Arguments, in_place: bool) -> Codebook | None:
    """The codec of one bit for what a call saves; ``None`` if the call is no activation that saves one tensor.

    Args:
        name: the called function, as in ``operator_name``.
        given: its arguments.
        in_place: whether its name says that it overwrites its input; an argument may say so, too.
    """
    after, function = 1, name
    if name == "gelu":
        after, function = 2, "gelu_tanh" if given.get(1, "approximate", "none") == "tanh" else "gelu"
    if function not in SMOOTH:
        return None
    defaults = FUNCTIONS[function].defaults
    parameters = [given.get(position, name, default) for position, (name, default) in enumerate(defaults.items(), 1)]
    flags = [*given.args[after + len(defaults) :], given.kwargs.get("inplace", False)]
    if not all(isinstance(flag, bool) for flag in flags):
        return None  # there torch.nn.functional's functions take whether to work in place, and aten's elu takes scales
    if not all(type(number) in (int, float) and math.isfinite(number) for number in parameters):
        return None
    what = saves_one(function, in_place or any(flags))
    return Codebook(function, 1, tuple(map(float, parameters)), result=what == "result") if what else None


def has_slope(saved: SavedTensor) -> bool:
    """Whether a tensor is saved by a smooth function that saves only one tensor."""
    function = saved.operator.split(" ", 1)[0]  # "elu with another alpha"
    if function not in SMOOTH or saved.dtype not in FLOATS or saved.role not in ("input", "result", "internal"):
        return False
    return bool(saves_one(function) or saves_one(function, in_place=True))
