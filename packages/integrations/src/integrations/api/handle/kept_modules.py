"""Modules whose tensors are kept exactly: those that ``keep`` names, and those that divide by what another operator has
rounded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from integrations.policies.levels import Level

_DIVIDES = ("LiteMLA",)
"""Classes that divide one part of a product by another. Where the divisor is small, a rounding error of any size
results: EfficientViT's linear attention, in which the exact parts cancel, had a gradient that was 125 times off."""


def require_paths(model: nn.Module, paths: Iterable[str]) -> None:
    """Checks that a model has a module at each of these paths.

    Raises:
        ValueError: it has none at one of them.
    """
    names = [name for name, _ in model.named_modules(remove_duplicate=False)]
    for path in paths:
        if not any(fnmatchcase(name, path) for name in names):
            raise ValueError(
                f"keep must name modules of this {type(model).__name__}, got {path!r}, which matches none of its "
                "named_modules(); 'layer*' matches all names that begin with 'layer'"
            )


def kept_modules(model: nn.Module, paths: Iterable[str]) -> list[nn.Module]:
    """The modules at these paths, under whichever of their names, and all modules in them."""
    wanted = tuple(paths)
    named = model.named_modules(remove_duplicate=False)
    found = (module for name, module in named if any(fnmatchcase(name, path) for path in wanted))
    return list(dict.fromkeys(inner for module in found for inner in module.modules()))


def with_kept(level: Level, model: nn.Module) -> Level:
    """The level at which a model's tensors are stored, with kept modules under the names by which the model's modules
    are known."""
    kept = set(kept_modules(model, level.keep)) if level.keep else set()
    names = [name for name, module in model.named_modules() if module in kept or type(module).__name__ in _DIVIDES]
    return replace(level, keep=tuple(names)) if names or level.keep else level
