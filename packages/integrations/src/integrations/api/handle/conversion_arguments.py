"""What ``compress_model`` was asked to exchange, turned into arguments of the functions that exchange it.

A function that takes one argument of ``compress_model`` returns ``None`` for ``None``. It raises a ``TypeError`` for a
wrong type, and a ``ValueError`` for an unknown name or a number out of range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from inspect import signature
from numbers import Real
from typing import Any

import torch
from torch import nn

from integrations import fewbit, qmodules
from integrations._utils.warn import warn
from integrations.planner.bounds import FULL
from integrations.qmodules.levels import PREFIX, resolve_level

FEWBIT, RANDOMIZED, Q, CHUNKED = "fewbit", "randomized", "q", "chunked"
RATIO = 0.2
"""For ``linear="randomized"``: the rows of a sketch as a share of the tokens. FewBit's table begins with it."""

_ACTIVATIONS = tuple(name for name in signature(fewbit.convert).parameters if name not in ("model", "linear"))
_LINEAR = tuple(
    name
    for name in signature(fewbit.RandomizedLinear).parameters
    if name not in ("in_features", "out_features", "bias", "device", "dtype")  # the replaced layer has these
)
_LAYERS = ("level", *(field.name for field in fields(qmodules.QLevel)))
"""The keys of each mapping."""


def read_activations(given: Any) -> Mapping[str, Any] | None:
    """The arguments of ``fewbit.convert`` for ``activations``."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        if "linear" in given:
            raise ValueError(
                "activations must not have the argument linear of fewbit.convert; pass it as the separate option "
                "linear="
            )
        _require_known("activations", given, _ACTIVATIONS, ("skip",))  # an older name of keep
        kept = {name: () for name in ("keep", "skip") if name in given}  # paths, which the model has
        fewbit.convert(nn.Sequential(), **{**given, **kept})  # which raises for what is wrong
        return dict(given)
    if isinstance(given, str):
        if given != FEWBIT:
            raise ValueError(f"activations must be 'fewbit', bits from 1 to 8, or a mapping, got {given!r}")
        return {}
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(
            f"activations must be 'fewbit', bits from 1 to 8, or a mapping of fewbit.convert's arguments, got {given!r}"
        )
    if not 1 <= given <= 8:
        raise ValueError(f"activations must be 'fewbit' or bits from 1 to 8, got {given}; 3 are the default")
    return {"bits": given}


def read_linear(given: Any) -> Mapping[str, Any] | None:
    """The arguments of ``RandomizedLinear`` for ``linear``."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        _require_known("linear", given, _LINEAR)
        options = dict(given) if {"proj_dim", "proj_dim_ratio"} & given.keys() else {"proj_dim_ratio": RATIO, **given}
        with torch.device("meta"):
            fewbit.RandomizedLinear(1, 1, **options)  # which raises for what is wrong
        return options
    if isinstance(given, str):
        if given != RANDOMIZED:
            raise ValueError(f"linear must be 'randomized', a ratio in (0, 1], or a mapping, got {given!r}")
        return {"proj_dim_ratio": RATIO}
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(
            "linear must be 'randomized', a ratio in (0, 1], or a mapping of RandomizedLinear's arguments, got "
            f"{given!r}"
        )
    if not 0 < float(given) <= 1:
        raise ValueError(f"linear must be 'randomized' or a ratio in (0, 1], got {given}; {RATIO} is the default")
    return {"proj_dim_ratio": float(given)}


def read_layers(given: Any) -> Mapping[str, Any] | None:
    """The arguments of ``QModule`` for ``layers``."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        _require_known("layers", given, _LAYERS)
        read_q_level(given)
        return dict(given)
    if given == Q:
        return {"level": "L3"}
    if isinstance(given, qmodules.QLevel):
        return {"level": given}
    if not isinstance(given, str):
        raise TypeError(f"layers must be 'q', a level's name, a QLevel, or QModule's arguments, got {given!r}")
    if given.removeprefix(PREFIX) not in qmodules.LEVELS:
        names = ", ".join(PREFIX + name for name in qmodules.LEVELS)
        raise ValueError(f"layers must be 'q', or one of ActNN's levels, {names}; got {given!r}")
    if given in qmodules.LEVELS:
        warn(
            DeprecationWarning(
                f"layers={given!r} means ActNN's level {given}, not level={given!r}; write layers={PREFIX + given!r}"
            )
        )
    return {"level": given}


def read_loss(given: Any) -> Mapping[str, Any] | None:
    """Return the arguments of ``find_head`` for ``loss``; ``None`` without one, or for ``"full"``."""
    if given is None:
        return None
    wanted = "loss must be 'chunked', 'full', or {'head': the path of a linear layer}"
    if isinstance(given, Mapping):
        if given.keys() != {"head"} or not isinstance(given["head"], str):
            raise ValueError(f"{wanted}, got {dict(given)!r}")
        return dict(given)
    if not isinstance(given, str):
        raise TypeError(f"{wanted}, got {given!r}")
    if given not in (CHUNKED, FULL):
        raise ValueError(f"{wanted}, got {given!r}")
    return {} if given == CHUNKED else None


def read_q_level(layers: Mapping[str, Any]) -> qmodules.QLevel:
    """The level that ``QModule``'s arguments name.

    Raises:
        TypeError, ValueError: there is no such level or option.
    """
    options = dict(layers)
    level = options.pop("level", None)
    return resolve_level(qmodules.config.level() if level is None else level, options)


def _require_known(argument: str, given: Mapping[Any, Any], valid: Iterable[str], older: Iterable[str] = ()) -> None:
    """Raise ``ValueError`` for a key of a mapping that ``argument`` does not have."""
    for key in given:
        if key not in (*valid, *older):
            raise ValueError(f"{argument} must have no keys but {', '.join(valid)}, got {key!r}")
