"""Find the optimizers that train a model, and count the bytes of their states."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from integrations.planner.optimizers import OPTIMIZERS
from integrations.tracing.tensors import find_storages

_BY_NUMBERS = {0: "sgd", 1: "momentum"}
"""By how many numbers an optimizer keeps for a parameter: one that keeps as many. ``"adamw"`` keeps more."""


def bytes_of_tensors(given: Iterable[Any]) -> int:
    """Bytes of the memory in which tensors lie; of those that FSDP2 shards, of this rank's part."""
    tensors = (one for one in given if isinstance(one, Tensor))
    return sum({one._cdata: one.nbytes() for tensor in tensors for one in find_storages(tensor)}.values())


def find_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that train a model, one of them for each parameter where they step in backward. They are looked
    for among all objects."""
    own = set(map(id, model.parameters()))
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    return [one for one in found if own & {id(weight) for group in one.param_groups for weight in group["params"]}]


def find_states(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Any]:
    """What they keep from step to step."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from state.values() if isinstance(state, dict) else ()


def kept_like(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """The name, as ``fit`` takes it, of an optimizer that keeps as much as these."""
    if not optimizers:
        return "sgd"
    most = max(optimizers, key=lambda one: bytes_of_tensors(find_states([one])))
    name, group = type(most).__name__.lower(), most.param_groups[0]
    if name == "sgd":
        return "momentum" if group.get("momentum") else name
    if "adam" in name and name.endswith("8bit"):
        return "adamw-8bit"
    if name in ("adam", "adamw") and group.get("fused"):
        return "adamw-fused"
    if name in OPTIMIZERS:
        return name
    weights = bytes_of_tensors(most.state)
    if not weights:
        return "adamw"  # it has made no step yet, and may keep as much
    return _BY_NUMBERS.get(round(bytes_of_tensors(find_states([most])) / weights), "adamw")
