"""``shortened``: a model with fewer of its layers that are alike, from which the whole model's step is continued."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import nn

_FEWEST = 5  # layers


class Blocks(NamedTuple):
    """Layers that are alike.

    Attributes:
        path: of the list that holds them.
        size: how many there are.
    """

    path: str
    size: int


def find_blocks(model: nn.Module, fewest: int = _FEWEST) -> Blocks | None:
    """The list with the most parameters whose modules are all alike; ``None`` if none has ``fewest`` modules or more.
    The default is the number from which it pays to capture fewer."""
    found: list[tuple[int, Blocks]] = []
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) >= fewest:
            kinds = {_kind(one) for one in module}
            if len(kinds) == 1:
                weight = sum(parameter.numel() for parameter in module.parameters())
                found.append((weight, Blocks(path, len(module))))
    return max(found, default=(0, None), key=lambda one: one[0])[1]


def _kind(module: nn.Module) -> tuple[object, ...]:
    parameters = ((name, one.shape, one.dtype, one.requires_grad) for name, one in module.named_parameters())
    return (type(module), *parameters)


def shortened(model: nn.Module, blocks: Blocks, count: int) -> nn.Module:
    """A copy of a model with the first ``count`` of its layers alone. Its configuration, where it has one of
    transformers, says so."""
    whole = model.get_submodule(blocks.path)
    first = list(whole.children())[:count]
    memo: dict[int, object] = {}
    short = nn.ModuleList(first) if isinstance(whole, nn.ModuleList) else nn.Sequential(*first)
    memo[id(whole)] = copy.deepcopy(short, memo)
    found = copy.deepcopy(model, memo)
    for module in found.modules():
        config: Any = getattr(module, "config", None)
        if getattr(config, "num_hidden_layers", None) == blocks.size:
            config.num_hidden_layers = count
    return found
