"""``planned``: what backward had better make again in a model that is trained at a level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from actcore import GroupAffine, Raw, SavedTensor
from integrations.checkpoint.capturing.capture import capture
from integrations.checkpoint.capturing.loss import Loss
from integrations.checkpoint.capturing.recorder import Recorder
from integrations.checkpoint.dispatch.memory import allocated, allocated_for
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.sharding import class_of
from integrations.checkpoint.planning.compressed_peak import StoredBytes
from integrations.checkpoint.planning.compressed_plan import compressed_plan
from integrations.checkpoint.planning.plan import Plan
from integrations.levels import Level
from integrations.saved import checkpoints
from integrations.saved.calls import CallTracker
from integrations.saved.policy import Decision, FixedBits
from integrations.saved.rules import Need
from integrations.saved.tensors import storage_of


def planned(
    model: nn.Module,
    level: Level,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    real: bool = False,
    loss: Loss | None = None,
    holds_outputs: bool | None = None,
) -> Plan:
    """The plan for a forward at a level, whose calls are those that the level makes."""
    started = perf_counter()
    sizes = _Sizes(level)
    graph = capture(model, args, kwargs, real=real, hooks=sizes.hooks, loss=loss, holds_outputs=holds_outputs)
    if level.rounds_checkpoints:
        graph = graph.where_rounded
    captured = perf_counter() - started
    return replace(compressed_plan(class_of(model).__name__, graph, sizes.of(graph), captured, level), loss=loss)


class _Sizes:
    """Looks at what a forward saves, and says how many bytes a level stores of it."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._policy = FixedBits(level)
        self._found: dict[int, list[tuple[int, bool]]] = {}  # of values: bytes that are stored, and if for one alone
        self._read: dict[int, int] = {}
        self._passing: dict[int, int] = {}
        self._forward: dict[int, set[tuple[int, bool]]] = {}  # of what is never made again: as in _found

    @contextmanager
    def hooks(self, recorder: Recorder) -> Iterator[Callable[[Tensor], Any]]:
        """A block in which a forward runs as at the level; the pack hook for it."""
        tracker = CallTracker()
        self._found.clear()
        self._read.clear()
        self._passing.clear()
        self._forward.clear()

        def pack(tensor: Tensor) -> Any:
            with torch._C.DisableTorchFunction():
                self._note(recorder, tracker, tensor)
                return recorder.pack(tensor)

        if self._level.bits is not None:
            tracker.pack = pack
        with tracker:
            yield pack

    def _note(self, recorder: Recorder, tracker: CallTracker, tensor: Tensor) -> None:
        value, storage, call = recorder.value_of(tensor), storage_of(tensor), tracker.call
        if value is None or storage is None:
            return
        operator, role = ("", "") if call is None else (call.operator, call.role(tensor, storage))
        decision = self._decided(tensor, operator, role)
        alone = decision.form is not None or not isinstance(decision.codec, GroupAffine | Raw)
        whole = storage.nbytes() / max(1, tensor.numel() * tensor.itemsize)
        size = _taken(expected_bytes(decision, tensor) * whole, tensor)
        self._found.setdefault(value, []).append((size, alone))
        if decision.from_forward and self._level.rounds_checkpoints:
            self._forward.setdefault(value, set()).add((size, alone))
        if decision.form not in (None, Need.SHAPE) or decision.normalised:  # made of a tensor that is computed for it
            self._passing[value] = allocated_for(tensor)
        read = self._decided(tensor, checkpoints.OPERATOR, "input" if tensor.requires_grad else "other")
        size = _taken(expected_bytes(read, tensor) * whole, tensor)
        self._read[value] = max(self._read.get(value, 0), size)

    def _decided(self, tensor: Tensor, operator: str, role: str) -> Decision:
        return self._policy.decide(SavedTensor.of(tensor, operator=operator, role=role, module="", occurrence=0))

    def of(self, graph: Graph) -> StoredBytes:
        """Of the values of a graph, which was captured with these hooks."""
        last = list(range(len(graph.values)))
        for number in range(len(graph.values) - 1, -1, -1):
            if graph.values[number].reuses >= 0:
                last[graph.values[number].reuses] = last[number]
        saved: dict[int, int] = {}
        read: dict[int, int] = {}
        for value, found in self._found.items():
            shared = max((size for size, alone in found if not alone), default=0)
            alone = sum({size for size, alone in found if alone})
            for sizes, size in ((saved, shared + alone), (read, max(shared, self._read[value]) + alone)):
                sizes[last[value]] = min(sizes.get(last[value], 0) + size, graph.values[value].nbytes)
        forward: dict[int, int] = {}
        for value, stored in self._forward.items():
            forward[last[value]] = forward.get(last[value], 0) + sum(size for size, _ in stored)
        return StoredBytes(saved, read, {last[value]: size for value, size in self._passing.items()}, forward)


def _taken(nbytes: float, tensor: Tensor) -> int:
    """Bytes that a stored form of a tensor takes, as those of the tensor itself are counted, and no more than they."""
    return min(allocated(int(nbytes), tensor.device), allocated_for(tensor))


def expected_bytes(decision: Decision, tensor: Tensor) -> float:
    """About the bytes of a tensor's stored form."""
    count = tensor.numel()
    if decision.form is Need.SHAPE:
        return 0
    if decision.indices:
        return count if tensor.dtype in (torch.int32, torch.int64) else count * tensor.itemsize
    if decision.form is Need.INSIDE or not isinstance(decision.codec, GroupAffine | Raw):
        return count / 8
    if isinstance(decision.codec, GroupAffine):
        codec = decision.codec
        return count * codec.bits / 8 + -(-count // codec.group_size) * 2 * tensor.itemsize
    return count * tensor.itemsize
