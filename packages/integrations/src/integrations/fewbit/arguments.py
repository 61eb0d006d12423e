"""What ``convert`` is given, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from torch import nn

from integrations.fewbit.conversion import SAVED_ANYWAY, Skip, fits
from integrations.policies.codebooks.catalogue import FUNCTIONS


def chosen_functions(functions: str | Iterable[str] | None) -> frozenset[str]:
    """The names that ``functions`` chooses: with ``gelu`` its approximation by tanh, which torch has as an option."""
    if functions is None:
        return frozenset(FUNCTIONS).difference(SAVED_ANYWAY)
    names = [functions] if isinstance(functions, str) else list(functions)
    if names == ["all"]:
        return frozenset(FUNCTIONS)
    for name in names:
        if name not in FUNCTIONS:
            raise ValueError(f"functions must be 'all' or names of {', '.join(FUNCTIONS)}; got {name!r}")
    return frozenset([*names, "gelu_tanh"] if "gelu" in names else names)


def skip_entries(skip: Any) -> Skip:
    """The entries of ``skip``, which may be one alone."""
    entries = tuple(skip) if isinstance(skip, Iterable) and not isinstance(skip, (str, type)) else (skip,)
    for entry in entries:
        if not isinstance(entry, str) and not (isinstance(entry, type) and issubclass(entry, nn.Module)):
            raise TypeError(f"skip must hold paths of modules or classes of modules, got {entry!r}")
    return entries


def require_found(skip: Skip, where: Mapping[nn.Module, tuple[str, bool]]) -> None:
    """Raises unless each entry fits a module of the model."""
    for entry in skip:
        if not any(fits(path, module, (entry,)) for module, (path, _) in where.items()):
            raise ValueError(f"skip must name modules of the model, got {entry!r}, which fits none")


def linear_options(linear: Any) -> Mapping[str, Any] | None:
    """The keyword arguments of ``RandomizedLinear``; ``None`` where linear layers stay."""
    if linear is None or isinstance(linear, Mapping):
        return linear
    if isinstance(linear, Real) and not isinstance(linear, bool):
        if not 0 < float(linear) <= 1:
            raise ValueError(f"linear must be above 0 and at most 1, the share of rows that is kept, got {linear}")
        return {"proj_dim_ratio": float(linear)}
    raise TypeError(
        f"linear must be the share of rows that a sketch keeps, such as 0.1, or RandomizedLinear's keyword arguments, "
        f"got {linear!r}"
    )
