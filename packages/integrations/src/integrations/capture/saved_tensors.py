"""``SavedTensors``: the tensors that autograd saves while a step is recorded, and how long it holds each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from actcore.double_backward import builds_graph
from integrations._utils.torch_internals import conj, neg_view
from integrations.capture.backward import BackwardRecorder
from integrations.capture.dispatch.memory import Geometry
from integrations.capture.recording import Recording
from integrations.tracing.double_backward import has_numbers, is_read
from integrations.tracing.storage.forms import Part


class SavedTensors:
    """The saved tensors of a recorded step.

    Args:
        recording: where they are recorded.
        fake: whether the tensors are fake; of real ones autograd gets copies.
        pausing: opens a block in which nothing is recorded.

    Attributes:
        backward: records backward; ``None`` before it has begun.
        double_backward: whether a backward with ``create_graph=True`` has read saved numbers.
    """

    def __init__(self, recording: Recording, fake: bool, pausing: Callable[[], AbstractContextManager[None]]) -> None:
        self.backward: BackwardRecorder | None = None
        self.double_backward = False
        self._recording, self._fake, self._pausing = recording, fake, pausing
        self._values = recording.values
        self._finished = False
        self._copies: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by value: a copy of its memory
        self._counts: Counter[int] = Counter()  # by value: how many saved tensors lie in its memory

    @property
    def held(self) -> int:
        """The bytes of the values that autograd currently saves."""
        return sum(self._values[value].nbytes for value, count in self._counts.items() if count)

    def pack(self, value: int, tensor: Tensor) -> Saved:
        """Return what autograd holds in the place of a tensor, which lies in the memory of a value."""
        self._recording.ops[-1].packs.append(value)
        self._counts[value] += 1
        return Saved(self, value, tensor, None if self._fake else self._copy(value, tensor))

    def _copy(self, value: int, tensor: Tensor) -> Tensor:
        """A copy of a tensor's memory. If autograd held the memory itself, nothing would tell who else does."""
        found = self._copies.get(value)
        if found is None:
            with self._pausing():
                found = torch.empty(0, dtype=torch.uint8, device=tensor.device)
                found.set_(tensor.untyped_storage().clone())
            self._copies[value] = found
        return found

    def unpack(self, saved: Tensor | Saved | Part) -> Tensor:
        """The tensor, or a fake one of the same metadata."""
        if isinstance(saved, Tensor):
            return saved
        if isinstance(saved, Part):
            return saved.unpack()
        tensor = self._unpacked(saved)
        if self.backward is not None and saved.copy is None:  # a copy lives on for the value's other saved tensors
            self.backward.lent(saved.value, tensor)
        return tensor

    def _unpacked(self, saved: Saved) -> Tensor:
        if builds_graph() and has_numbers(saved.geometry.dtype) and is_read(saved, exactly=True):
            self.double_backward = True
        if self.backward is not None:
            self.backward.read(saved.value)
        geometry = saved.geometry
        with self._pausing():
            if saved.copy is not None:
                return geometry.view(saved.copy)
            tensor = torch.empty_strided(geometry.size, geometry.stride, dtype=geometry.dtype, device=saved.device)
        if geometry.conjugate:
            tensor = conj(tensor)
        return neg_view(tensor) if geometry.negative else tensor

    def released(self, value: int) -> None:
        """Autograd has let go of a value."""
        if self._finished:
            return
        self._counts[value] -= 1
        self._values[value].saved = max(self._values[value].saved, self._recording.events - 1)
        if self.backward is not None:
            self.backward.released(value)

    def finish(self) -> None:
        """Ends the recording."""
        self._finished = True


class Saved:
    """Replaces a saved tensor."""

    __slots__ = ("copy", "device", "geometry", "of", "value")

    def __init__(self, of: SavedTensors, value: int, tensor: Tensor, copy: Tensor | None) -> None:
        self.of = of
        self.value = value
        self.geometry = Geometry.of(tensor)
        self.device = tensor.device
        self.copy = copy

    def unpack(self) -> Tensor:
        """The tensor, or a fake one, as the part of a DTensor."""
        return self.of.unpack(self)

    def __del__(self) -> None:
        self.of.released(self.value)
