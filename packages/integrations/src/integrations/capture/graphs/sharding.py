"""Models whose parameters ranks share: ``torch.distributed.fsdp.fully_shard`` has sharded them, or they are DTensors.

A module that was given to it is a *unit*: its parameters are whole from the start of its forward to the end, and from
the first gradient of its outputs to the last of its inputs. In between their memory is given back, so an operator that
reads them may be repeated only within its unit's backward. ``within_units`` sees to that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from actcore import current_rank
from integrations._utils.running_module import all_modules
from integrations._utils.torch_internals import collectives_of_groups
from integrations.capture.graphs.graph import Graph
from integrations.tracing.tensors import is_dtensor

_FSDP = "torch.distributed.fsdp"
_CONTEXT = "torch.distributed.tensor.experimental"


class Follower(Protocol):
    """A mode that follows a forward, unless it is paused."""

    paused: bool


_FOLLOWER: ContextVar[Follower | None] = ContextVar("follower", default=None)
"""The mode that follows the forward of units that runs."""


def distributed() -> bool:
    """Whether there is more than one rank."""
    module = torch.distributed
    return module.is_available() and module.is_initialized() and module.get_world_size() > 1


def find_noise_rank(model: nn.Module) -> int:
    """Return the rank whose noise this rank rounds with: its own, or under tensor parallelism the first of those that
    compute with the same activations.

    With noise of their own, they would have other gradients for parameters that each of them has whole, such as those
    of norms, and no collective would make these the same again. Call it where the model's forward begins: in a unit of
    ``fully_shard`` around the model, parameters are whole then.
    """
    rank = current_rank()
    # Along each dimension, ranks have a regular distance.
    firsts = [rank - sum(rank - ranks[0] for ranks in dimensions) for dimensions in _find_parallel(model)]
    return min(firsts, default=rank)


def is_tensor_parallel(model: nn.Module) -> bool:
    """Whether ranks compute with the same activations, and each with its part of the model."""
    return any(_find_parallel(model))


def is_context_parallel(model: nn.Module) -> bool:
    """Whether each rank has a part of every sequence in a forward that starts now, by torch's context parallelism. It
    replaces torch's attention, or prepares the inputs of modules by hooks."""
    hooks = (hook for module in all_modules(model) for hook in module._forward_pre_hooks.values())
    return any(map(_is_of_context, (nn.functional.scaled_dot_product_attention, *hooks)))


def _is_of_context(function: Callable[..., Any]) -> bool:
    inner = function.func if isinstance(function, partial) else function
    return (getattr(inner, "__module__", None) or "").startswith(_CONTEXT)


def _find_parallel(model: nn.Module) -> list[list[tuple[int, ...]]]:
    """By mesh of a model's parameters: for each dimension along which ranks have the same data, the ranks along it that
    this rank is one of."""
    if not distributed():
        return []
    parameters: list[Any] = [one for one in model.parameters() if is_dtensor(one)]
    meshes = dict.fromkeys(one.device_mesh for one in parameters)
    if not meshes:
        return []
    sharded = {ranks for mesh in _find_sharding_meshes(model) for ranks in _get_dimensions(mesh)}
    return [[ranks for ranks in _get_dimensions(mesh) if len(ranks) > 1 and ranks not in sharded] for mesh in meshes]


def _find_sharding_meshes(model: nn.Module) -> list[Any]:
    """The meshes over which ``fully_shard`` has sharded a model: each rank has its own part of the batch."""
    units = filter(is_unit, all_modules(model))
    return list(dict.fromkeys(group.mesh_info.mesh for unit in units for group in find_groups(unit)))


def find_groups(unit: nn.Module) -> list[Any]:
    """What ``fully_shard`` keeps for each group of a unit's parameters."""
    state: Any = unit._get_fsdp_state()  # type: ignore[operator]
    groups = getattr(state, "_fsdp_param_groups", None)  # up to torch 2.13 there is one, or none
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def _get_dimensions(mesh: Any) -> list[tuple[int, ...]]:
    """By dimension of a mesh: the ranks along it that this rank is one of. No operator on tensors is called."""
    groups = [mesh.get_group(dim) for dim in range(mesh.ndim)]
    return [tuple(torch.distributed.get_process_group_ranks(group)) for group in groups]


def collectives_started() -> object:
    """Return what compares equal to an earlier result if this rank has started no collective since. If a backend does
    not count collectives, no two results are equal."""
    if not distributed():
        return ()
    counts = collectives_of_groups()
    return object() if counts is None else tuple(counts)


def is_unit(module: nn.Module) -> bool:
    """Whether ``fully_shard`` was given the module."""
    fsdp = sys.modules.get(_FSDP)  # without the module, nothing can be a unit
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def is_partitioned(parameter: Tensor) -> bool:
    """Whether DeepSpeed's ZeRO-3 has partitioned a parameter, which has no elements but while its module runs."""
    return hasattr(parameter, "ds_status")


def find_sharded_parameters(unit: nn.Module) -> tuple[Tensor, ...]:
    """The parameters of a unit that an optimizer changes, also while the unit has others, which are whole."""
    return tuple(one.sharded_param for group in find_groups(unit) for one in group.fsdp_params)


@contextmanager
def gathered(unit: Any, parameter: Tensor) -> Iterator[None]:
    """A block in which a unit has a parameter whole, as it has in its forward. No follower of a forward sees that.

    Args:
        unit: a module that ``fully_shard`` was given, by itself or with others.
        parameter: one that it had in its forward.
    """
    if any(one is parameter for one in unit.parameters()):
        yield
        return
    with _paused(_FOLLOWER.get()):
        unit.unshard()
    try:
        yield
    finally:
        with _paused(_FOLLOWER.get()):
            unit.reshard()


def is_of_unit(hook: Callable[..., Any] | None) -> bool:
    """Whether a hook, of a module or a tensor, was added by ``fully_shard``."""
    return getattr(hook, "__module__", "").startswith(_FSDP)


def is_of_engine(hook: Callable[..., Any] | None) -> bool:
    """Whether a hook was added by what shards models: ``fully_shard``, or DeepSpeed."""
    return is_of_unit(hook) or getattr(hook, "__module__", "").startswith("deepspeed.")


def called_by_engine() -> bool:
    """Whether code of DeepSpeed called the function of torch that asks this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("integrations", "torch"):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__", "").startswith("deepspeed.")


def find_units(model: nn.Module) -> frozenset[str]:
    """The paths of the units inside a model."""
    fsdp = sys.modules.get(_FSDP)
    if fsdp is None or not any(isinstance(module, fsdp.FSDPModule) for module in all_modules(model)):
        return frozenset()
    return frozenset(name for name, module in model.named_modules() if name and is_unit(module))


def get_class(module: nn.Module) -> type[nn.Module]:
    """A module's class; for a unit, the class that it had before."""
    if is_unit(module):
        return next(kind for kind in type(module).__mro__[1:] if not kind.__module__.startswith(_FSDP))
    return type(module)


def within_units(graph: Graph, units: Collection[str]) -> Graph:
    """The graph in which a value is kept if another unit reads it than the one that makes it.

    Then a repetition never leaves the unit whose backward asks for it. ``torch.utils.checkpoint`` keeps the same values
    where the units are what is checkpointed.
    """
    if not units:
        return graph
    owners = [_owner(op.module, units) for op in graph.ops]
    crossing = {
        value
        for op, owner in zip(graph.ops, owners, strict=True)
        for value in (*op.reads, *op.packs)
        if owners[graph.values[value].producer] != owner
    }
    return graph.keeping(crossing)


def _owner(path: str, units: Collection[str]) -> str:
    """The innermost unit around a module; empty for the model itself."""
    while path and path not in units:
        path = path.rpartition(".")[0]
    return path


@contextmanager
def hooks_unseen(model: nn.Module, follower: Follower) -> Iterator[None]:
    """A block in which units gather their parameters and give them back unseen: these operators are not the model's."""

    def unseen(hook: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with _paused(follower):
                return hook(*args)

        return call

    outer = _FOLLOWER.get()
    _FOLLOWER.set(follower)
    try:
        with hooks_replaced(model, lambda module, hook, before: unseen(hook)):
            yield
    finally:
        _FOLLOWER.set(outer)


@contextmanager
def _paused(follower: Follower | None) -> Iterator[None]:
    """A block that a mode, if there is one, does not see."""
    if follower is None:
        yield
        return
    before, follower.paused = follower.paused, True
    try:
        yield
    finally:
        follower.paused = before


def get_policy(module: nn.Module) -> Any:
    """A unit's ``MixedPrecisionPolicy``."""
    return module._get_fsdp_state()._mp_policy  # type: ignore[operator]


@contextmanager
def hooks_replaced(
    model: nn.Module, stand_in: Callable[[nn.Module, Callable[..., Any], bool], Callable[..., Any]]
) -> Iterator[None]:
    """A block in which other hooks replace the units' hooks. ``stand_in`` is called with the module, the hook, and
    whether it runs before the forward."""
    replaced: list[tuple[dict[int, Callable[..., Any]], int, Callable[..., Any]]] = []
    try:
        for module in model.modules() if _FSDP in sys.modules else ():
            if not is_unit(module):
                continue
            for hooks in (module._forward_pre_hooks, module._forward_hooks):
                for key, hook in hooks.items():
                    if is_of_unit(hook):
                        replaced.append((hooks, key, hook))
                        hooks[key] = stand_in(module, hook, hooks is module._forward_pre_hooks)
        yield
    finally:
        for hooks, key, hook in reversed(replaced):
            if key in hooks:
                hooks[key] = hook
