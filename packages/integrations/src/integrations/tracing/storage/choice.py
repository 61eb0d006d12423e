"""Chooses the codec of one tensor where the policy depends on the call's arguments or the tensor itself."""

from __future__ import annotations

import torch
from torch import Tensor

from actcore import BitMask, Codec, GroupAffine, Raw, missing_on
from integrations._utils.plain_tensor_types import has_elements
from integrations.policies.arguments import departures, index_codec
from integrations.policies.norms import compute_statistics
from integrations.policies.policy import SaveDecision, no_rule
from integrations.policies.rules import CHECKPOINT
from integrations.tracing.call import Call
from integrations.tracing.masks import is_masked
from integrations.tracing.storage.records import Record

INDICES = "indices, whose range the call tells: exact in the bits that it takes"
MASKED = "an input of a checkpoint with elements as far from the others as a mask's are: kept exactly"


def lazy(tensor: Tensor) -> bool:
    """Whether the elements in memory differ from those that are read, as in a conjugated or negated view."""
    return bool(tensor.is_neg() or tensor._is_zerotensor())


def missing_for(tensor: Tensor) -> str:
    """Why there are no operators for a tensor; empty if there are. A fake tensor may be on a GPU of another machine,
    whose operators are taken to be there."""
    elsewhere = tensor.is_cuda and not has_elements(tensor) and not torch.cuda.is_available()
    return "" if elsewhere else missing_on(tensor.device)


def packable(tensor: Tensor) -> bool:
    """Whether operators can read the tensor where it is."""
    return not lazy(tensor) and not missing_for(tensor)


def codec_for(tensor: Tensor, decision: SaveDecision, record: Record, call: Call | None) -> Codec:
    """The decision's codec; for indices the codec that follows from the call's arguments, for a mask of unknown values
    the one that follows from its data."""
    if lazy(tensor):
        record.why = "lazily negated, or zeros without memory: kept exactly"
        return Raw()
    if decision.indices and call is not None and not missing_for(tensor):
        narrow = index_codec(call.name, call.given)
        if narrow is not None:
            record.why = INDICES
            return narrow
    if decision.form is not None:
        record.why = f"{decision.why}, but for these arguments or bits there is no such form: kept exactly"
        return Raw()
    if isinstance(decision.codec, Raw):
        if call is not None and call.operator != call.name and decision.why == no_rule(call.operator):
            record.why = no_rule(f"{call.name} with {departures(call.name, call.given)}")
        return decision.codec
    if missing := missing_for(tensor):
        record.why = f"kept exactly: {missing}"
        return Raw()
    if decision.codec is not None:
        looked_at = record.saved.operator == CHECKPOINT and tensor.device.type == "cpu" and has_elements(tensor)
        if looked_at and isinstance(decision.codec, GroupAffine) and is_masked(tensor, decision.codec.group_size):
            record.why = MASKED
            return Raw()
        if decision.normalised and isinstance(decision.codec, GroupAffine) and call is not None:
            return _of_norm(tensor, decision.codec, record, call)
        return decision.codec
    if tensor.device.type != "cpu":
        record.why = "a mask of unknown values on a device, where reading them would wait: kept exactly"
        return Raw()
    return BitMask((0.0, tensor.max().item() if has_elements(tensor) else 1.0))


def _of_norm(tensor: Tensor, codec: GroupAffine, record: Record, call: Call) -> Codec:
    """The codec for the input of a normalisation, made from ``codec``, which would store it if nothing were
    normalised."""
    statistics = compute_statistics(call.name, call.given, tensor.shape)
    if statistics is None:
        return codec
    found = statistics.codec(codec, tensor.shape, tensor.stride())
    if found is None:
        record.why = statistics.why
        return Raw()
    return found
