"""``Gathers``: the all-gathers of DTensors that backward repeats, so that a rank stores only its shard of the result.

Sequence parallelism gathers the input of column-wise layers, and autograd saves the gathered tensor on every rank. With
``recompute=True`` autograd holds this rank's shard instead, mostly as a formula, and backward gathers the shards again.

A collective waits until every rank of its group calls it. So whether a tensor is gathered, and in which order, follows
only from what is the same on these ranks: shapes, placements and meshes, autograd's graph, and the order in which
autograd saves and reads such tensors. What may differ between ranks, such as what else is stored or which memory was
exposed, only decides how a rank holds its own shard, and whether it uses the gathered tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actcore import GroupAffine
from integrations._utils.storages import StorageMap, StorageSet
from integrations._utils.torch_internals import ALL_GATHER, current_graph_task_id
from integrations.policies.policy import SaveDecision
from integrations.policies.rules import Need
from integrations.runtime.formulas.formula import (
    Bound,
    Formula,
    LastComputed,
    Made,
    Operand,
    Place,
    Recomputed,
    Slot,
    Whole,
    bind,
)
from integrations.runtime.formulas.operators import CASTING, CASTS, Again
from integrations.tracing.call import Call
from integrations.tracing.checkpoints import Boundary
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.regions import Exact, View, find_lazy_changes
from integrations.tracing.tensors import find_node, find_part, get_storage, is_dtensor

_REDISTRIBUTION = "RedistributeBackward"
_VIEWS = frozenset({"ViewBackward0", "UnsafeViewBackward0", "_FromTorchTensorBackward", "_ToTorchTensorBackward"})
"""Nodes whose result has the elements of their input in the same order."""
_MOST_VIEWS = 8


class Gather(NamedTuple):
    """An all-gather of a DTensor along one dimension of its mesh.

    Attributes:
        mesh: the mesh.
        before, after: the placements of the DTensor before it and after it.
        mesh_dim: the dimension of the mesh.
        dim: the dimension of the tensor that is sharded over it.
        shape: of this rank's part of the DTensor after it.
    """

    mesh: Any
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    mesh_dim: int
    dim: int
    shape: torch.Size

    @classmethod
    def find(cls, tensor: Any) -> Gather | None:
        """Return the all-gather that made a DTensor, or a DTensor that this one is a view of.

        ``None`` if another operator made it, if several dimensions of the mesh are gathered, and if ranks have shards
        of different sizes.
        """
        from torch.distributed.tensor import Shard  # here, because it takes time, and whoever has a DTensor has it

        node = find_node(tensor)
        for _ in range(_MOST_VIEWS):
            if node is None or node.name() not in _VIEWS:
                break
            node = node.next_functions[0][0]
        spec = getattr(node, "current_spec", None)
        if node is None or node.name() != _REDISTRIBUTION or spec is None:
            return None
        mesh, before, after = spec.mesh, tuple(spec.placements), tuple(tensor.placements)
        if tensor.device_mesh != mesh or spec.shape.numel() != tensor.numel():
            return None
        changed = [at for at, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
        if len(changed) != 1 or not after[changed[0]].is_replicate():
            return None
        [at] = changed
        shape = list(spec.shape)
        shards = {number: one for number, one in enumerate(before) if not one.is_replicate()}
        dims = {number: one.dim % len(shape) for number, one in shards.items() if type(one) is Shard}
        if at not in dims or len(set(dims.values())) != len(shards) or mesh.size(at) == 1:
            return None
        if any(shape[dim] % mesh.size(number) for number, dim in dims.items()):
            return None
        for number, dim in dims.items():
            shape[dim] //= 1 if number == at else mesh.size(number)
        return cls(mesh, before, after, at, dims[at], torch.Size(shape))

    @property
    def shard_shape(self) -> torch.Size:
        """The shape of this rank's part of the DTensor before the all-gather."""
        count = self.mesh.size(self.mesh_dim)
        return torch.Size(size // count if at == self.dim else size for at, size in enumerate(self.shape))

    def take_shard(self, gathered: Tensor) -> Tensor:
        """Return a copy of this rank's shard of a contiguous gathered tensor."""
        shards = gathered.view(self.shape).chunk(self.mesh.size(self.mesh_dim), self.dim)
        shard: Tensor = shards[self.mesh.get_local_rank(self.mesh_dim)]
        return shard.clone(memory_format=torch.contiguous_format)

    def gather(self, shard: Tensor, dtype: torch.dtype, shape: torch.Size) -> Tensor:
        """Return the gathered tensor, of this shape and dtype. All ranks of the group have to call it.

        Raises:
            RuntimeError: no backward runs, so that other ranks need not call it.
        """
        from torch.distributed.tensor import DTensor

        if current_graph_task_id() == -1:
            raise RuntimeError(
                f"a saved tensor of shape {tuple(shape)} was read outside of backward: to restore it, all ranks have "
                'to gather it together. Read it in backward, or pass recompute="local" to compress_model'
            )
        whole = DTensor.from_local(shard.to(dtype), self.mesh, self.before, run_check=False)
        local: Tensor = whole.redistribute(placements=self.after).to_local()
        return local.reshape(shape)


class _Source(NamedTuple):
    """How a rank can restore the shard that it gave to an all-gather.

    Attributes:
        operand: restores it.
        shape: of the shard.
        version: of the gathered tensor when it was made; ``None`` if that is not known, since a thread of the backend
            counts versions until the collective has ended.
    """

    operand: Operand
    shape: torch.Size
    version: int | None = None


class _Known(NamedTuple):
    """What is known of a gathered tensor that was saved before.

    Attributes:
        bound: gathers it again, for all that save it.
        version: its version when it was saved first.
    """

    bound: Bound
    version: int


class Joined(Recomputed):
    """A gathered tensor whose memory may have changed since it was saved first. This rank stores it as it is, and
    gathers it for the other ranks.

    Attributes:
        stored: the stored tensor.
    """

    __slots__ = ("stored",)

    stored: Packed

    def unpack(self) -> Tensor:
        """The stored tensor."""
        super().unpack()
        return self.stored.unpack()


class Gathers:
    """The gathered tensors that one forward saves.

    Args:
        exposed: the storages that may be written to without a change of their version.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
    """

    def __init__(self, exposed: StorageSet, double: DoubleBackward | None) -> None:
        self._exposed = exposed
        self._sources: StorageMap[_Source] = StorageMap()
        # Held until the forward is over, so that no garbage collection decides what its readers share.
        self._known: StorageMap[dict[torch.dtype, _Known]] = StorageMap()
        self._others = StorageSet()
        self._last = LastComputed(double)  # not that of the formulas, which differ between ranks

    def note(self, call: Call, output: Tensor, find_operand: Callable[[Tensor], Operand | None]) -> None:
        """Note the shard of an all-gather, and the copy that joins its pieces along a later dimension.

        Args:
            call: the call that is over.
            output: its result.
            find_operand: returns how a tensor can be restored; ``None`` if it is not stored.
        """
        if call.function is ALL_GATHER:
            shard, storage = call.arguments[0], get_storage(output)
            operand = None if storage is None else find_operand(shard)
            if storage is not None and operand is not None:
                self._sources.put(storage, _Source(operand, shard.shape))
        elif call.function is torch.cat and self._sources:
            storages, storage = list(map(get_storage, call.arguments)), get_storage(output)
            source = None if not storages or storages[0] is None else self._sources.get(storages[0])
            if source is not None and storage is not None and len({one and one._cdata for one in storages}) == 1:
                self._sources.put(storage, source._replace(version=output._version))

    def hold(
        self,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        whole: Tensor,
        call: Call,
        decision: SaveDecision,
        store: Callable[[Tensor], Packed],
    ) -> Recomputed | None:
        """Return what autograd holds in the place of a gathered tensor; ``None`` for a tensor that is not gathered in
        backward. The caller sets ``stored`` of a ``Joined``.

        Args:
            tensor, storage: this rank's part of the saved DTensor, and its memory.
            whole: the DTensor.
            call: the call that saves it.
            decision: how it would be stored.
            store: stores this rank's shard.
        """
        linear = isinstance(decision.codec, GroupAffine) and decision.need is Need.LINEAR and decision.form is None
        found = self._find(tensor, storage, whole, call) if linear and not isinstance(call, Boundary) else None
        if found is None:
            self._others.add(storage)
            return None
        gather, part, memory = found
        by_dtype = self._known.get(memory)
        if by_dtype is None:
            self._known.put(memory, by_dtype := {})
        known, is_exposed = by_dtype.get(tensor.dtype), memory in self._exposed
        if known is None:
            bound = self._bind(gather, tensor, part, memory, is_exposed, decision, store)
            known = by_dtype[tensor.dtype] = _Known(bound, part._version)
        kind = Joined if is_exposed or part._version != known.version else Recomputed
        return kind(known.bound, Place.of(tensor), self._last)

    def _find(
        self, tensor: Tensor, storage: torch.UntypedStorage, whole: Tensor, call: Call
    ) -> tuple[Gather, Tensor, torch.UntypedStorage] | None:
        """Return the all-gather that made a saved tensor, this rank's part of its result, and the memory of that part.

        If autocast has cast the saved tensor, they are those of the tensor before the cast.
        """
        if not tensor.is_contiguous() or any(find_lazy_changes(tensor)):
            return None
        candidates = [one for one in call.arguments if is_dtensor(one) and one.numel() == whole.numel()]
        casts = call.name in CASTING and tensor.dtype in CASTS and storage.nbytes() == tensor.nbytes
        for argument in candidates:
            part = find_part(argument)
            memory = None if part is None else get_storage(part)
            if part is None or memory is None or part.numel() != tensor.numel() or not part.is_contiguous():
                continue
            is_saved = memory._cdata == storage._cdata and part.dtype == tensor.dtype
            is_cast = casts and len(candidates) == 1 and part.dtype == torch.float32
            if not (is_saved or is_cast) or memory in self._others:
                continue
            gather = None if argument._version else Gather.find(argument)
            return None if gather is None or gather.shape.numel() != tensor.numel() else (gather, part, memory)
        return None

    def _bind(
        self,
        gather: Gather,
        tensor: Tensor,
        part: Tensor,
        memory: torch.UntypedStorage,
        is_exposed: bool,
        decision: SaveDecision,
        store: Callable[[Tensor], Packed],
    ) -> Bound:
        """Return what gathers a tensor again: from a shard that is recomputed or stored for another operator, or else
        from a copy of this rank's shard."""
        assert isinstance(decision.codec, GroupAffine)
        again = partial(gather.gather, dtype=tensor.dtype, shape=tensor.shape)
        formula = Formula(
            call=Again(again, (Slot(0),), {}),
            operands=(),
            place=Place.of(tensor),
            dtype=tensor.dtype,
            version=tensor._version,
            exactly=False,
            autocast=None,
            cost=tensor.numel(),
            gain=1.0,
            names=("all_gather",),
        )
        source = None if is_exposed else self._sources.get(memory)
        is_unchanged = source is not None and source.version in (None, part._version)
        if source is not None and is_unchanged and source.shape == gather.shard_shape:
            formula.operands = (source.operand,)
            own = source.operand.part if isinstance(source.operand, Whole) else source.operand
            formula.names += own.formula.names if isinstance(own, Made) else ()
            bound = bind(formula, decision.codec.bits)
            if bound is not None:
                return bound
        stored = store(gather.take_shard(tensor.detach()))
        held = stored.beside() if isinstance(stored, View) else stored.kept if isinstance(stored, Exact) else stored
        formula.operands = ()
        return Bound(formula, (held,), decision.codec.bits)
