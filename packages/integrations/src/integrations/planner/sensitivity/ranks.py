"""One plan for all ranks. Either rank 0's measurement decides, after all ranks have agreed on the tensors to plan for,
or rank 0 plans alone while the others wait. Likewise one error of the gradient: the largest."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from integrations._utils.torch_internals import get_active_ddp_module
from integrations.capture.graphs.sharding import distributed, is_context_parallel, is_unit
from integrations.planner.sensitivity.measurement import Measurement


class RanksDisagree(RuntimeError):
    """Ranks run the model differently, so that no one plan fits them."""


def ranks_in_sync(model: nn.Module, inputs: str) -> bool:
    """Whether all ranks are in front of the same forward of a model, with inputs that look alike, so that they may talk
    to each other. Every rank calls this in its first such forward, and in no other.

    Only DistributedDataParallel and ``fully_shard`` over all ranks tell that the others come, too: in a pipeline, a
    rank may wait for what this forward is to send. They tell so for the model that they are given, and not for a part
    of it, which a rank may leave out.

    Args:
        model: the model whose forward it is.
        inputs: what the forward's inputs look like.
    """
    return ranks_can_meet(model) and len(set(of_all(inputs))) == 1


def ranks_can_meet(model: nn.Module) -> bool:
    """Return whether all ranks are in front of the same forward of a model, as far as that can be told without asking
    them; see ``ranks_in_sync``."""
    if not distributed():
        return False
    around = get_active_ddp_module()
    if _joins(around) or (around is not None and around.module is not model):
        return False
    return ranks_run_alike(model)


def ranks_run_alike(model: nn.Module) -> bool:
    """Return whether all ranks run the same operators of the same model at the same time: it is in
    DistributedDataParallel, or a unit of ``fully_shard``, over all of them. In context parallel, each rank has its own
    part of causal attention."""
    if is_context_parallel(model):
        return False
    around = get_active_ddp_module()
    ranks = _get_ranks(model) if around is None else torch.distributed.get_world_size(around.process_group)
    return ranks == torch.distributed.get_world_size() and (around is not None or is_unit(model))


def _joins(around: Any) -> bool:
    """Whether DistributedDataParallel runs under torch's ``Join``: a rank that has no inputs left then answers the
    collectives of DistributedDataParallel alone, and who asked it for anything else would wait in vain."""
    return bool(getattr(getattr(around, "_join_config", None), "enable", False))


def _get_ranks(model: nn.Module) -> int:
    """The number of ranks over which a unit's parameters are sharded."""
    from torch.distributed.tensor import DTensor  # takes 0.1 s to import, and a model with units has imported it

    meshes = [parameter.device_mesh for parameter in model.parameters() if isinstance(parameter, DTensor)]
    return meshes[0].size() if meshes else 1


def agreed(measurement: Measurement | None) -> Measurement | None:
    """The measurement that all ranks plan from: rank 0's. Every rank calls this, with its own, at the same time.

    It is one rank's, and not the mean of all: a run that is resumed from rank 0's state then goes on as it would have.
    If a measurement is missing on some rank, there is none. Under torch's ``Join``, each rank plans from its own.

    Raises:
        RanksDisagree: on every rank alike, if the tensors to plan for are not the same everywhere.
    """
    if not distributed() or _joins(get_active_ddp_module()):
        return measurement
    found: list[Measurement | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, measurement)
    first = found[0]
    if first is None or any(other is None for other in found):
        return None
    expected = {tensor.identities for tensor in first.tensors}
    for rank, other in enumerate(found):
        assert other is not None
        got = {tensor.identities for tensor in other.tensors}
        if got != expected:
            name = min(str(identities[0]) for identities in got ^ expected)
            where = "rank 0 alone" if any(str(names[0]) == name for names in expected - got) else f"rank {rank} alone"
            raise RanksDisagree(
                f"all ranks must quantize the same tensors to share a plan, but {name} is quantized by {where}; run "
                "the same modules on every rank in the measured step, or choose a level of fixed bits"
            )
    return first


def take_from_rank_0(value: Any) -> Any:
    """Rank 0's value. Every rank calls this at the same time."""
    return of_all(value)[0]


def of_all(value: Any) -> list[Any]:
    """Return all ranks' values. Every rank calls this at the same time."""
    if not distributed():
        return [value]
    found: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return found


def largest(value: float) -> float:
    """The largest of all ranks' values; NaN if one is. Every rank calls this at the same time."""
    if not distributed():
        return value
    found = [value] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(found, value)
    return next((other for other in found if math.isnan(other)), max(found))
