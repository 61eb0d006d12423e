"""``Recorder``: writes down one forward and its backward as they run: operators, values, and how long each lives."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from actcore import Kept
from integrations.checkpoint import indices
from integrations.checkpoint.contents import Contents
from integrations.checkpoint.costs import seconds_of
from integrations.checkpoint.graph import Op, Step, Value
from integrations.checkpoint.memory import Geometry, Memory, is_plain, key_of, parts_of, shapes_of, tensors_of
from integrations.checkpoint.operators import Traits, is_drawable, traits_of
from integrations.checkpoint.paths import Paths

_PASSING = -1  # in the place of a value: memory that backward makes


@dataclass
class _Value:
    nbytes: int
    producer: int
    reuses: int = -1
    until: int = -1
    saved: int = -1
    reused: bool = False


@dataclass
class _Op:
    name: str
    module: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    seconds: float
    repeatable: bool
    shapes: tuple[tuple[int, ...], ...]
    outside: set[int]  # storages that it reads and that are no values'
    packs: list[int] = field(default_factory=list)


class Recorder(TorchDispatchMode):
    """Records what runs while it is active.

    Args:
        paths: tells in which module's forward an operator runs.
        fake: whether the tensors are fake. What is saved of those need not be kept to be there in backward, so that
            memory lives as long as somebody other than autograd holds it.
    """

    def __init__(self, paths: Paths, fake: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values: list[_Value] = []
        self.steps: list[tuple[list[int], float]] = []
        self.other: list[int] = []  # of each step
        self._ops: list[_Op] = []
        self._paths = paths
        self._fake = fake
        self._contents = Contents()
        self._memory = Memory()
        self._holding: dict[int, int] = {}  # the storages that are alive, and the values that they hold
        self._watches: list[weakref.ref[Any]] = []
        self._changed: set[int] = set()  # storages that are no values' and were written
        self._outside: dict[int, torch.UntypedStorage] = {}  # held, so that no name comes to mean another
        self._backward = False
        self.paused = False
        self._node: object = self  # of no step
        self._reading = self._working = (
            False  # whether it has read, and made nothing so far; whether it has made something
        )
        self._live = 0

    @property
    def event(self) -> int:
        """The last event that has begun."""
        return len(self._ops) + len(self.steps) - 1

    def value_of(self, tensor: Tensor) -> int | None:
        """The value that a tensor is a view of."""
        return self._memory.value_in(tensor) if is_plain(tensor) else None

    def start_backward(self) -> None:
        """What runs from now on are steps of backward."""
        with self._pausing():
            for key in self._contents.changed_since():
                self._written_unseen(key)
        self._backward = True

    def finish(self) -> tuple[tuple[Op, ...], tuple[Value, ...], tuple[Step, ...], tuple[int, ...]]:
        """Operators, values, steps and other bytes. What is alive now is taken to be alive to the end."""
        for value in self._holding.values():
            if value != _PASSING:
                self.values[value].until = self.event
        self._move_to_last()
        ops: list[Op] = []
        for op in self._ops:
            lost = any(
                self.values[value].reused and not ops[self.values[value].producer].repeatable for value in op.reads
            )
            repeatable = op.repeatable and not lost and not (op.outside & self._changed)
            packs = tuple(dict.fromkeys(op.packs))
            ops.append(Op(op.name, op.module, op.reads, op.makes, op.seconds, repeatable, packs, op.shapes))
        values = tuple(Value(v.nbytes, v.producer, v.reuses, v.until, v.saved) for v in self.values)
        steps = tuple(Step(tuple(dict.fromkeys(reads)), seconds) for reads, seconds in self.steps)
        return tuple(ops), values, steps, (*(0 for _ in ops), *self.other)

    def _move_to_last(self) -> None:
        """What was saved before another part of its memory was written is saved as the last value there."""
        last = list(range(len(self.values)))
        for number in range(len(self.values) - 1, -1, -1):
            value = self.values[number]
            if value.reuses >= 0:
                last[value.reuses] = last[number]
        for number, value in enumerate(self.values):
            if last[number] != number:
                final = self.values[last[number]]
                final.saved, value.saved = max(final.saved, value.saved), -1
        for op in self._ops:
            op.packs = [last[value] for value in op.packs]
        self.steps = [([last[value] for value in reads], seconds) for reads, seconds in self.steps]

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        traits = traits_of(func)
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        if traits.view:
            return self._run(func, traits, args, kwargs)
        if self._backward:
            return self._run_backward(func, args, kwargs)
        return self._run_forward(func, traits, args, kwargs)

    def _run(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._fake and not self._backward:
            return indices.call(func, traits, args, kwargs)
        return func(*args, **kwargs)

    # ---- forward ----

    def _run_forward(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = traits.written(args, kwargs)
        self._look((*args, *kwargs.values()))
        out = self._run(func, traits, args, kwargs)
        results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
        reads, outside = self._arguments(traits, args, kwargs)
        op = len(self._ops)
        makes: dict[int, tuple[Tensor, int]] = {}  # by storage: in what lies the new value, and the one it takes over
        effects = not traits.known
        for tensor in written:
            value = self.value_of(tensor)
            if value is not None:
                makes.setdefault(key_of(tensor), (tensor, value))
                continue
            effects = True
            for part in parts_of(tensor):
                self._written_unseen(key_of(part))
        new = [tensor for _, tensor in self._memory.new(results, args, kwargs)]
        for tensor in new:
            makes.setdefault(key_of(tensor), (tensor, -1))
        self._contents.fill(func, new)
        self._contents.note([*new, *written])
        if not makes:
            return out
        plain = all(is_plain(tensor) for given in (args, kwargs.values(), results) for tensor in tensors_of(given))
        drawable = not traits.random or is_drawable(args, kwargs)
        first = len(self.values)
        self._ops.append(
            _Op(
                name=traits.name,
                module=self._paths.current,
                reads=reads,
                makes=tuple(range(first, first + len(makes))),
                seconds=seconds_of(func, args, kwargs, results),
                repeatable=plain and drawable and not effects,
                shapes=shapes_of(results),
                outside=outside,
            )
        )
        for tensor, reuses in makes.values():
            self._make(tensor, op, reuses)
        return out

    def _look(self, given: Any) -> None:
        """Notices what was written in the memory of tensors since an operator last wrote or read there."""
        for key in self._contents.changed(tensors_of(given)):
            self._written_unseen(key)

    def _written_unseen(self, key: int) -> None:
        """A storage holds something else than what an operator of the forward made, or it read."""
        value = self._memory.value_at(key)
        if value is None:
            self._changed.add(key)
            return
        self._ops[self.values[value].producer].repeatable = False
        for op in self._ops:
            if value in op.reads:
                op.repeatable = False

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _arguments(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[int, ...], set[int]]:
        """The values and the other storages that an operator reads."""
        reads: dict[int, None] = {}
        outside: set[int] = set()
        updates = traits.updates_statistics(args)
        for place, given in enumerate((*args, *kwargs.values())):
            for tensor in tensors_of((given,)):
                if not is_plain(tensor):
                    continue
                value, key = self._memory.value_in(tensor), key_of(tensor)
                if value is not None:
                    reads[value] = None
                    continue
                self._outside[key] = tensor.untyped_storage()
                if updates and place in traits.statistics[:2]:
                    self._changed.add(key)
                else:
                    outside.add(key)
        return tuple(reads), outside

    def _make(self, tensor: Tensor, op: int, reuses: int) -> None:
        """Notes a new value, in the memory of a tensor."""
        value, storage = len(self.values), tensor.untyped_storage()
        self.values.append(_Value(storage.nbytes(), op, reuses))
        if reuses >= 0:
            self.values[reuses].until = op
            self.values[reuses].reused = True
        else:
            self._watches.append(weakref.ref(storage, partial(self._died, storage._cdata)))
        self._memory.add(tensor, value)
        self._holding[storage._cdata] = value

    def _died(self, key: int, _: object) -> None:
        """Nobody holds a storage any more."""
        value = self._holding.pop(key)
        if value != _PASSING:
            self.values[value].until = self.event

    # ---- what autograd saves ----

    def pack(self, tensor: Tensor) -> Tensor | Saved:
        """What autograd is to hold in a tensor's place."""
        value = self.value_of(tensor)
        if value is None or value == _PASSING or self._backward:
            return tensor
        with self._pausing():
            self._look((tensor,))
        self._ops[-1].packs.append(value)
        return Saved(self, value, tensor, self._fake)

    def unpack(self, saved: Tensor | Saved) -> Tensor:
        """The tensor, or a fake one that is as good."""
        if isinstance(saved, Tensor):
            return saved
        if self._backward:
            self._turn()
            self.steps[-1][0].append(saved.value)
            self._reading = not self._working
        if isinstance(saved.content, Kept):
            return saved.content.unpack()
        geometry, device = saved.content
        with self._pausing():
            tensor = torch.empty_strided(geometry.size, geometry.stride, dtype=geometry.dtype, device=device)
        if geometry.conjugate:
            tensor = torch._conj(tensor)
        return torch._neg_view(tensor) if geometry.negative else tensor

    def released(self, value: int) -> None:
        """Autograd has let go of a value."""
        self.values[value].saved = max(self.values[value].saved, self.event)

    # ---- backward ----

    def _run_backward(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._turn()
        if self._reading:
            # What a node reads is made again before the node makes anything: an event of its own.
            self._reading = False
            self.steps.append((list(self.steps[-1][0]), 0.0))
            self.other.append(self._live)
        out = func(*args, **kwargs)
        results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
        for _, tensor in self._memory.new(results, args, kwargs):
            storage = tensor.untyped_storage()
            nbytes = storage.nbytes()
            self._live += nbytes
            self._memory.add(tensor, _PASSING)
            self._watches.append(weakref.ref(storage, partial(self._freed, nbytes)))
        self.other[-1] = max(self.other[-1], self._live)
        self._working = True
        reads, seconds = self.steps[-1]
        self.steps[-1] = reads, seconds + seconds_of(func, args, kwargs, results)
        return out

    def _freed(self, nbytes: int, _: object) -> None:
        self._live -= nbytes

    def _turn(self) -> None:
        """Begins a step if another node's turn has come."""
        node = torch._C._current_autograd_node()
        # By name and number: the node itself would be kept alive, and what it holds.
        name = None if node is None else (node.name(), node._sequence_nr())
        if name != self._node or not self.steps:
            self._node, self._reading, self._working = name, False, False
            self.steps.append(([], 0.0))
            self.other.append(self._live)


class Saved:
    """In the place of a saved tensor: of a fake one only what it looks like."""

    __slots__ = ("content", "recorder", "value")

    def __init__(self, recorder: Recorder, value: int, tensor: Tensor, fake: bool) -> None:
        self.recorder = recorder
        self.value = value
        self.content = (Geometry.of(tensor), tensor.device) if fake else Kept.of(tensor)

    def __del__(self) -> None:
        self.recorder.released(self.value)
