"""``Recorder``: records one forward and its backward as they run: operators, values, and how long each lives."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from actcore import SavedTensor
from integrations._utils.running_module import ModulePaths
from integrations._utils.torch_internals import OpOverload, TorchDispatchMode, get_sequence_nr
from integrations.capture.backward import BackwardRecorder
from integrations.capture.dispatch import indices
from integrations.capture.dispatch.decisions import amplified, decides, may_be_rounded, reads_elements
from integrations.capture.dispatch.dtensors import Unseen, find_parts, is_opened
from integrations.capture.dispatch.fakes import as_on_device
from integrations.capture.dispatch.memory import (
    Memory,
    allocated_for,
    allocated_for_elements,
    get_key,
    get_shapes,
    is_plain,
    iter_parts,
    iter_tensors,
)
from integrations.capture.dispatch.operators import WRITERS, Traits, get_traits, is_drawable, lazy_views
from integrations.capture.errors import Escaped, NotCaptured
from integrations.capture.recording import PASSING, RecordedOp, RecordedValue, Recording
from integrations.capture.saved_tensors import Saved, SavedTensors
from integrations.capture.unseen_writes import Contents
from integrations.capture.wrapper_memory import Apart
from integrations.tracing.masks import may_be_masked
from integrations.tracing.storage.forms import Part, Wrapper
from integrations.tracing.tensors import find_local


class Recorder(TorchDispatchMode):
    """Records what runs while it is active.

    Args:
        paths: tell in which module's forward an operator runs.
        fake: whether the tensors are fake. Autograd then saves other tensors than the forward's, and of real ones it
            saves copies, so that memory lives as long as something other than autograd holds it.
        given: the keys of the storages of stand-ins.

    Attributes:
        outlines: by value: the tensor as which it was made.
        casts: values that are casts of parameters, such as those of autocast.
        leaves: by id: each leaf that has no stand-in, and its gradient as it was; this one's backward adds to none.
        masked: values that an operator has read as a tensor that may have masked elements.
        paused: whether the operators that run now belong to no step.
        saved: the tensors that autograd saves.
    """

    def __init__(self, paths: ModulePaths, fake: bool, given: Collection[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recording = Recording()
        self._values = self._recording.values
        self.masked: set[int] = set()
        self.paused = False
        self.saved = SavedTensors(self._recording, fake, self.pausing)
        self._paths = paths
        self._fake = fake
        self._given = given
        self._first = get_sequence_nr()  # of the nodes that this thread makes from now on
        self.leaves: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._contents = Contents()
        self._memory = Memory()
        self._apart = Apart(self._memory, given)
        self._holding: dict[int, int] = {}  # storages that are alive, with the values that they hold
        self._watches: list[weakref.ref[Any]] = []
        self._outside: dict[int, torch.UntypedStorage] = {}  # held, so that no address is reused
        self._backward: BackwardRecorder | None = None  # set once backward has begun
        self._unseen = Unseen()
        self._differentiated: set[int] = set()  # values that such an operator has read as a tensor with a gradient
        self._parameters: set[int] = set()  # the storages of parameters that are DTensors
        self._shards: dict[int, int] = {}  # by parameter: bytes of the shard of its gradient that this rank keeps
        self._versions: dict[int, int] = {}  # by storage: the version of its tensors after the last operator
        self.outlines: list[SavedTensor] = []
        self.casts: set[int] = set()

    @property
    def _event(self) -> int:
        """The last event that has begun."""
        return self._recording.events - 1

    @property
    def operators(self) -> int:
        """How many operators the forward has had so far."""
        return len(self._recording.ops)

    @property
    def module(self) -> str:
        """Path of the module in whose forward the caller is; empty for the model itself."""
        return self._paths.running() or ""

    def value_of(self, tensor: Tensor) -> int | None:
        """The value that a tensor is a view of; ``None`` for no value."""
        return self._memory.value_in(tensor) if is_plain(tensor) else None

    @property
    def shards(self) -> int:
        """The bytes of the gradients of which this rank keeps a shard."""
        return sum(self._shards.values())

    @property
    def rounded(self) -> set[int]:
        """The values that an operator has read as a tensor with a gradient."""
        return {value for op in self._recording.ops for value in op.rounded}

    def written_unseen(self, part: Tensor) -> None:
        """Notes that a DTensor is, or may be, changed in place whose part this is. The part counts no versions, so
        nothing may be repeated that makes it or reads it."""
        self._written_unseen(get_key(part))

    def start_backward(self) -> None:
        """Records what runs from now on as steps of backward."""
        with self.pausing():
            for key in self._contents.changed_since():
                self._written_unseen(key)
        self._backward = self.saved.backward = BackwardRecorder(self._recording, self._memory, self._apart)

    def accumulated(self, parameter: Tensor, stays: bool = True) -> None:
        """Notes that a parameter has its gradient, which backward has made. ``stays``: as for ``BackwardRecorder``."""
        if self._backward is not None and parameter.grad is not None:
            self._backward.accumulated(parameter.grad, stays)

    def reduced(self, parameter: Tensor, nbytes: int) -> None:
        """Notes that ranks reduce the gradient of a parameter, and that this one keeps a shard of so many bytes."""
        assert parameter.grad is not None
        added, self._shards[id(parameter)] = nbytes - self._shards.get(id(parameter), 0), nbytes
        if self._backward is not None:
            self._backward.reduced(parameter.grad, added)
        parameter.grad = None

    def finish(self) -> Recording:
        """The recording. What is alive now is taken to live to the end."""
        for value in self._holding.values():
            if value != PASSING:
                self._values[value].until = self._event
        self._watches.clear()
        self._apart.finish()
        if self._backward is not None:
            self._backward.finish()
        self.saved.finish()
        return self._recording

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        traits = get_traits(func)
        if self.paused or func.namespace == "prim":
            return func(*args, **kwargs)
        if types and is_opened(traits, types):
            self._open(func, traits, args, kwargs)
            return NotImplemented
        if self._unseen.skips(func):
            return func(*args, **kwargs)
        self._unseen.communicates |= func.namespace == WRITERS
        if traits.view:
            return self._run(func, traits, args, kwargs)
        if self._backward is not None:
            return self._backward.run(func, args, kwargs)
        return self._run_forward(func, traits, args, kwargs)

    def _run(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._fake and self._backward is None:
            return as_on_device(func, args, indices.call(func, traits, args, kwargs))
        with lazy_views(func, args):
            return func(*args, **kwargs)

    def _open(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what an operator on DTensors is given: of the parts that it consists of, autograd knows nothing."""
        self._unseen.opened = True
        if self._backward is not None:
            self._backward.opened = func
            return
        for tensor, part in find_parts((*args, *kwargs.values())):
            value = self.value_of(part)
            if value is None:
                if _is_parameter(tensor):
                    self._parameters.add(get_key(part))
            elif may_be_rounded(tensor):
                self._differentiated.add(value)
                if may_be_masked(tensor):
                    self.masked.add(value)
        for _, part in find_parts(traits.written(args, kwargs)):
            self.written_unseen(part)

    # ---- forward ----

    def _run_forward(self, func: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        written = traits.written(args, kwargs)
        self._look((*args, *kwargs.values()))
        out = self._run(func, traits, args, kwargs)
        results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
        reads, outside, rounded = self._arguments(traits, args, kwargs)
        op = len(self._recording.ops)
        # By storage: the new value's tensor, and the value that it takes over.
        makes: dict[int, tuple[Tensor, int]] = {}
        effects = not traits.known
        for tensor in written:
            value = self.value_of(tensor)
            if value is not None:
                makes.setdefault(get_key(tensor), (tensor, value))
                continue
            effects = True
            for part in iter_parts(tensor):
                self._written_unseen(get_key(part))
        new = [tensor for _, tensor in self._memory.new(results, args, kwargs)]
        for tensor in new:
            makes.setdefault(get_key(tensor), (tensor, -1))
        self._require_counted(traits, results)
        self._apart.note(results, args, kwargs)
        for tensor in (*new, *written):
            if is_plain(tensor):
                self._versions.pop(get_key(tensor), None)  # torch counts a write after this has returned
        self._contents.fill(func, new)
        self._contents.note([*new, *written])
        self._recording.note_apart(self._apart.live)
        if not makes:
            return out
        plain = all(is_plain(tensor) for given in (args, kwargs.values(), results) for tensor in iter_tensors(given))
        drawable = not traits.random or is_drawable(args, kwargs)
        first = len(self._values)
        self._recording.ops.append(
            RecordedOp(
                name=traits.name,
                module=self.module,
                reads=reads,
                makes=tuple(range(first, first + len(makes))),
                call=self._recording.calls.note(func, args, kwargs, results),
                scratch=_copied_statistics(traits, args),
                repeatable=plain and drawable and not effects and not self._recording.reads_chunked_loss(reads),
                shapes=get_shapes(results),
                outside=outside,
                decides=decides(func, args, results, bool(rounded)),
                rounded=rounded,
                amplified=tuple(
                    self.value_of(given) if isinstance(given, Tensor) else None for given in amplified(func, args)
                ),
                reads_elements=reads_elements(func),
            )
        )
        is_cast = str(func) == "aten._to_copy.default" and not reads
        if is_cast and (_is_parameter(args[0]) or outside & self._parameters):
            self.casts.update(range(first, first + len(makes)))
        for tensor, reuses in makes.values():
            self._make(tensor, op, reuses)
        return out

    def _require_counted(self, traits: Traits, results: tuple[Any, ...]) -> None:
        """Check that no result is a nested tensor: its lengths never equal those of a later forward.

        Raises:
            NotCaptured: a result is a nested tensor.
        """
        for tensor in iter_tensors(results):
            if tensor.is_nested:
                where = f"in {self.module}, " if self.module else ""
                raise NotCaptured(
                    f"{where}{traits.name} makes a nested tensor ({tensor.layout}), whose memory a plan cannot count; "
                    "use plain tensors there, such as a padded batch and a mask"
                )

    def _look(self, given: Any) -> None:
        """Notices what was written into the memory of tensors since an operator last wrote or read it, or was declared
        written by ``mark_dirty``: a repetition would find another version than was noted."""
        for tensor in iter_tensors(given):
            if is_plain(tensor) and not tensor.is_inference():
                key, version = get_key(tensor), tensor._version
                if self._versions.setdefault(key, version) != version:
                    self._versions[key] = version
                    self._written_unseen(key)
        for key in self._contents.changed(iter_tensors(given)):
            self._written_unseen(key)

    def _written_unseen(self, key: int) -> None:
        """Notes a storage whose content is not what the last operator of the forward made or read."""
        value = self._memory.value_at(key)
        if value is None:
            self._recording.changed.add(key)
            return
        self._recording.ops[self._values[value].producer].repeatable = False
        for op in self._recording.ops:
            if value in op.reads:
                op.repeatable = False

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Open a block in which nothing is recorded."""
        before, self.paused = self.paused, True
        try:
            yield
        finally:
            self.paused = before

    def _meet(self, tensor: Tensor) -> None:
        """Takes a leaf's gradient away until the trial is over. The tensor is no stand-in, and no recorded operator has
        made it.

        Raises:
            Escaped: it was made before the trial, with a gradient.
        """
        made_by = tensor.grad_fn
        if made_by is not None and made_by._sequence_nr() < self._first:
            raise Escaped(
                f"the forward reads a tensor {list(tensor.shape)} that was computed before it with a gradient, so "
                "the capture's backward would go through its graph, too: pass it as an argument, or hold it in an "
                "attribute, a list, a tuple or a dictionary, while no other thread runs"
            )
        if tensor.requires_grad and tensor.is_leaf and id(tensor) not in self.leaves:
            self.leaves[id(tensor)] = tensor, tensor.grad
            tensor.grad = None

    def _arguments(
        self, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[int, ...], set[int], frozenset[int]]:
        """The values and the other storages that an operator reads, and which of the values may be rounded for that."""
        reads: dict[int, None] = {}
        rounded: set[int] = set()
        outside: set[int] = set()
        updates = traits.updates_statistics(args)
        for place, given in enumerate((*args, *kwargs.values())):
            for tensor in iter_tensors((given,)):
                if not is_plain(tensor):
                    continue
                value, key = self._memory.value_in(tensor), get_key(tensor)
                if value is not None:
                    reads[value] = None
                    if may_be_rounded(tensor) or (value in self._differentiated and tensor.is_floating_point()):
                        rounded.add(value)
                        if may_be_masked(tensor):
                            self.masked.add(value)
                    continue
                if key not in self._given:
                    self._meet(tensor if tensor._base is None else tensor._base)
                self._outside[key] = tensor.untyped_storage()
                if updates and place in traits.statistics[:2]:
                    self._recording.changed.add(key)
                else:
                    outside.add(key)
        return tuple(reads), outside, frozenset(rounded)

    def _make(self, tensor: Tensor, op: int, reuses: int) -> None:
        """Notes a new value, in the memory of a tensor."""
        value, storage = len(self._values), tensor.untyped_storage()
        self._values.append(RecordedValue(allocated_for(tensor), op, reuses))
        self.outlines.append(SavedTensor.of(tensor))
        if reuses >= 0:
            self._values[reuses].until = op
            self._values[reuses].reused = True
        else:
            self._watches.append(weakref.ref(storage, partial(self._died, storage._cdata)))
        self._memory.add(tensor, value)
        self._holding[storage._cdata] = value

    def _died(self, key: int, _: object) -> None:
        """Notes that a storage has been freed."""
        value = self._holding.pop(key)
        if value != PASSING:
            self._values[value].until = self._event

    # ---- what autograd saves ----

    def pack(self, tensor: Tensor) -> Tensor | Saved | Part:
        """What autograd holds in the place of a tensor."""
        part = find_local(tensor)
        own = tensor if part is None else part
        value = self.value_of(own)
        if value is None or value == PASSING or self._backward is not None:
            return tensor
        with self.pausing():
            self._look((own,))
        saved = self.saved.pack(value, own)
        return saved if part is None else Part(saved, Wrapper.take_from(tensor))


def _is_parameter(tensor: Tensor) -> bool:
    """Return whether a tensor is a parameter or a view of one."""
    return isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter)


def _copied_statistics(traits: Traits, args: tuple[Any, ...]) -> int:
    """Bytes of the running statistics that an operator updates, and that its repetition has to copy."""
    if not traits.updates_statistics(args):
        return 0
    given = (args[place] for place in traits.statistics[:2])
    return sum(allocated_for_elements(tensor) for tensor in given if isinstance(tensor, Tensor))
