"""``BackwardRecorder``: records backward as it runs: its steps, what they read, and how many bytes it has made."""

from __future__ import annotations

import weakref
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload, current_autograd_node, current_graph_task_id
from integrations.capture.dispatch.memory import Memory, allocated_for, get_key, is_plain, is_wrapper
from integrations.capture.recording import PASSING, OperatorRun, Recording
from integrations.capture.wrapper_memory import Apart, bytes_of_gradient
from integrations.tracing.tensors import find_local


class BackwardRecorder:
    """The steps of backward.

    Args:
        recording: where they are recorded.
        memory: the storages that hold values, and those that backward makes.
        apart: counts the memory of tensors that keep their elements in others.

    Attributes:
        opened: an operator on DTensors whose operators on parts run now; ``None`` once one of them has run.
    """

    def __init__(self, recording: Recording, memory: Memory, apart: Apart) -> None:
        self._recording, self._memory, self._apart = recording, memory, apart
        self.opened: OpOverload | None = None
        self._watches: list[weakref.ref[Any]] = []
        self._node: object = self  # no node runs yet
        self._task: int | None = None  # the engine's task that runs backward itself
        self._reading = False  # whether the node has read values and made nothing so far
        self._working = False  # whether it has made something
        self._makers: dict[int, object] = {}  # by storage that backward makes: the node that made it
        self._lent: dict[int, list[weakref.ref[Any]]] = {}  # by value: the storages from which nodes read it
        self._sum: tuple[weakref.ref[Any], int] | None = None  # the last operator, if it is a sum
        self._live = 0
        self._standing = 0  # bytes of the parameters' gradients that are complete
        self._taken: dict[int, int] = {}  # by storage of a gradient that the forward has made: its bytes

    def read(self, value: int) -> None:
        """Notes that the running node reads a saved value."""
        self._turn(reads=True)
        self._recording.steps[-1].append(value)
        self._reading = not self._working

    def lent(self, value: int, tensor: Tensor) -> None:
        """Record the tensor that a node reads for a saved value. The node may return its memory as a gradient."""
        self._lent.setdefault(value, []).append(weakref.ref(tensor.untyped_storage()))

    def released(self, value: int) -> None:
        """Notes that autograd has let go of a value."""
        if self._recording.steps and value in self._recording.steps[-1]:
            self._node = self  # the node has done its work: what runs next sums up gradients
        for reference in self._lent.pop(value, ()):
            storage = reference()
            if storage is not None and self._memory.value_at(storage._cdata) is None:
                # The memory of the value is a gradient now: count it for backward.
                self._hold(storage, self._recording.values[value].nbytes)

    def accumulated(self, gradient: Tensor, stays: bool = True) -> None:
        """Notes that a parameter's gradient is complete. If the parameter had one before, this one is added to it and
        freed.

        Args:
            gradient: the gradient.
            stays: whether the step leaves it. Otherwise ``reduced`` follows.
        """
        nbytes = bytes_of_gradient(gradient)
        part = find_local(gradient)
        if part is None and not is_plain(gradient):
            self._standing += nbytes if stays and is_wrapper(gradient) else 0
            return
        own = gradient if part is None else part
        if self._memory.value_in(own) != PASSING:
            # Forward has made it, as a loss in chunks does, and the parameter takes it over from autograd.
            self._live += nbytes
            self._taken[get_key(own)] = nbytes
        self._standing += nbytes if stays else 0

    def reduced(self, gradient: Tensor, shard: int) -> None:
        """Notes that the ranks' gradients of a parameter are reduced, which frees this rank's.

        Args:
            gradient: this rank's.
            shard: bytes of the reduced one that the step adds to those that stay.
        """
        part = find_local(gradient)
        own = gradient if part is None else part
        self._live += shard - (self._taken.pop(get_key(own), 0) if is_plain(own) else 0)
        self._standing += shard

    def finish(self) -> None:
        """Ends the recording."""
        self._settle()
        self._watches.clear()

    def run(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of backward, and notes it."""
        self._turn()
        if self._reading:
            # What a node reads is recomputed before the node makes anything, so this is an event of its own.
            self._reading = False
            self._begin(list(self._recording.steps[-1]))
        out = func(*args, **kwargs)
        results = tuple(out) if isinstance(out, (list, tuple)) else (out,)
        made = 0
        for _, tensor in self._memory.new(results, args, kwargs):
            nbytes = allocated_for(tensor)
            made += nbytes
            self._hold(tensor.untyped_storage(), nbytes)
            self._makers[get_key(tensor)] = _running()
        self._apart.note(results, args, kwargs)
        call = self._recording.calls.note(func, args, kwargs, results)
        self._recording.runs.append(OperatorRun(len(self._recording.steps) - 1, self._live + self._apart.live, call))
        self._working = True
        opened, self.opened = self.opened, None
        sums = func is torch.ops.aten.add.Tensor and func is not opened  # of DTensors, the engine sums nothing in place
        # Nor into a view, whose base refers to the same memory, such as the transposed gradient of a linear's weight.
        if sums and is_plain(args[0]) and args[0]._base is None and self._maker(args[0]) != _running():
            self._sum = weakref.ref(args[0].untyped_storage()), made
        return out

    def _hold(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """Count memory of backward as long as it is alive."""
        self._memory.storages.put(storage, PASSING)
        self._watches.append(weakref.ref(storage, partial(self._freed, nbytes)))
        self._live += nbytes

    def _maker(self, tensor: Tensor) -> object:
        return self._makers.get(get_key(tensor))

    def _settle(self) -> None:
        """Detects that the engine has summed up gradients, if the first part of a sum was another node's and was freed
        with it. The engine sums in place, but where a mode sees it."""
        if self._sum is None:
            return
        (part, nbytes), self._sum = self._sum, None
        if part() is None:
            run = self._recording.runs[-1]
            self._recording.runs[-1] = replace(run, live=run.live - nbytes)

    def _freed(self, nbytes: int, _: object) -> None:
        self._live -= nbytes

    def _turn(self, reads: bool = False) -> None:
        """Begins a step if another node runs now.

        A backward inside of a node's own, such as that of recomputed attention, begins no step, since what the outer
        node has read is alive until that node is over; unless its nodes read saved values, too.
        """
        self._settle()
        name, task = _running(), current_graph_task_id()
        if self._task is None and task != -1:  # what the backward starts from is made outside of the engine
            self._task = task
        inside = task not in (-1, self._task) and not reads
        if (name != self._node and not inside) or not self._recording.steps:
            self._node, self._reading, self._working = name, False, False
            self._begin([])

    def _begin(self, reads: list[int]) -> None:
        self._recording.steps.append(reads)
        self._recording.other.append(self._live + self._apart.live)
        self._recording.standing.append(self._standing)


def _running() -> object:
    """The node of backward that runs, by name and number: a reference would keep it alive, with what it holds."""
    node = current_autograd_node()
    return None if node is None else (node.name(), node._sequence_nr())
