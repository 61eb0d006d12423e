"""What FewBit has in ``fewbit.util``: rebuilding a model layer by layer, in place."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from integrations._utils.layer_replacement import take_over
from integrations._utils.module_tree import exchange, find_module_paths

__all__ = ["convert_linear", "map_module"]


def map_module(root: nn.Module, func: Callable[..., nn.Module], patt: str | re.Pattern[str] | None = None) -> nn.Module:
    """Replace each module of a model by the result of a function, in place, children before their parent.

    ::

        from integrations.fewbit import RandomizedLinear
        from integrations.fewbit.util import convert_linear, map_module

        converter = lambda x: convert_linear(x, RandomizedLinear, proj_dim_ratio=0.1)
        new_model = map_module(old_model, converter)

    Args:
        root: any module.
        func: a function of the module, or of the module and its path, which is ``"/"`` for the root and ``"/a/b/c"``
            for ``root.a.b.c``. It returns the module itself or another one. A module that is used in several places is
            passed once, with the first of its paths that matches, and stays one module.
        patt: a regular expression, matched from the beginning of the path (``re.match``). Modules whose path does not
            match stay unchanged. ``None`` matches all.

    Returns:
        The new root; mostly the same object.

    Raises:
        TypeError: ``root`` is not a module, or ``func`` not callable.
        ValueError: ``func`` returned something that is not a module. Modules that were replaced before stay replaced.
    """
    if not isinstance(root, nn.Module):
        raise TypeError(f"root must be a torch.nn.Module, got {type(root).__name__}")
    if not callable(func):
        raise TypeError(f"func must be a function of a module, or of a module and its path, got {func!r}")
    pattern = re.compile("" if patt is None else patt)
    paths = find_module_paths(root)
    takes_path = _takes_path(func)

    def replacement(_: str, module: nn.Module) -> nn.Module:
        for path in ("/" + path.replace(".", "/") for path in paths[module]):
            if pattern.match(path):
                made = func(module, path) if takes_path else func(module)
                if not isinstance(made, nn.Module):
                    raise ValueError(
                        f"func must return a module, the given one or another, got {type(made).__name__} "
                        f"for the {type(module).__name__} at {path!r}"
                    )
                return made
        return module

    return exchange(root, replacement)


def convert_linear(module: nn.Module, ctor: Callable[..., nn.Module], **kwargs: Any) -> nn.Module:
    """Return a linear layer made by ``ctor`` that replaces a ``torch.nn.Linear`` and has the same parameter objects.

    Weights that are tied or frozen stay so; optimizers, hooks, dtype, device and mode stay valid.

    Args:
        module: any module. Only layers of exactly the class ``torch.nn.Linear`` are converted: a subclass may behave
            differently, and attention's ``out_proj`` is never called.
        ctor: called as ``ctor(in_features, out_features, bias=..., device=..., dtype=..., **kwargs)``, where ``bias``
            says whether there is one. It returns a layer with a ``weight`` and a ``bias`` like those of
            ``torch.nn.Linear``.
        kwargs: further arguments of the constructor, such as ``proj_dim_ratio``.

    Returns:
        The new layer; ``module`` itself if it is not a ``torch.nn.Linear``.

    Raises:
        TypeError: ``module`` is not a module.
        ValueError: ``ctor`` returned a layer whose weight has another shape.
    """
    if not isinstance(module, nn.Module):
        raise TypeError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    if type(module) is not nn.Linear:
        return module
    place = next((p for p in module.parameters(recurse=False)), torch.empty(0))

    def build(device: torch.device) -> nn.Module:
        has_bias = module.bias is not None
        sizes = module.in_features, module.out_features
        return ctor(*sizes, bias=has_bias, device=device, dtype=place.dtype, **kwargs)

    # Without memory, and without drawing numbers for weights that nobody needs.
    layer = build(torch.device("meta"))
    own = [*layer.named_parameters(), *layer.named_buffers()]
    if any(name not in ("weight", "bias") for name, _ in own):
        with torch.random.fork_rng([place.device] if place.is_cuda else []):
            layer = build(place.device)
    expected = (module.out_features, module.in_features)
    weight = getattr(layer, "weight", None)
    if weight is None or tuple(weight.shape) != expected:
        raise ValueError(
            f"ctor must make a layer with a weight of shape {expected}, got "
            f"{'none' if weight is None else tuple(weight.shape)} in {type(layer).__name__}"
        )
    take_over(layer, module)
    return layer


def _takes_path(func: Callable[..., nn.Module]) -> bool:
    """Whether a function takes a path beside the module. One whose second parameter has a default, and another name,
    was not written for it: ``lambda x, ratio=0.1: ...``."""
    try:
        parameters = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    if any(p.kind is p.VAR_POSITIONAL for p in parameters[:2]):
        return True
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 1 and (positional[1].default is inspect.Parameter.empty or positional[1].name == "path")
