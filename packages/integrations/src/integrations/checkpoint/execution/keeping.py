"""``Keeping``: in which form what a plan keeps waits for backward; exactly, or as an actcore codec stores it."""

from __future__ import annotations

import threading
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from actcore import FLOATS, Codec, Compressed, GroupAffine, Kept, Offload, current_rank, replayable, stream_of
from integrations.checkpoint.dispatch.memory import Geometry, is_plain
from integrations.checkpoint.dispatch.versions import Version, unseen, unseen_alias
from integrations.checkpoint.graphs.graph import Graph
from integrations.saved.masks import is_masked, may_be_masked

_STEPS = threading.Lock()
_MIN_BYTES = 1024  # what is smaller is kept as it is, as the levels of compress_model have it


class Packed(Protocol):
    """What is held in the place of a tensor."""

    def unpack(self) -> Tensor:
        """The tensor, as good as it is stored."""


class Later(Protocol):
    """How a saved tensor that is made again is to be stored from then on until it is read."""

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores it. ``stored`` is the segment's: what is stored of one memory can be shared through it."""


class Keeping(Protocol):
    """How one forward keeps what its plan keeps."""

    def saved(self, tensor: Tensor, value: int) -> Packed:
        """What autograd is to hold in the place of a tensor that lies in a value's memory."""

    def read(self, tensor: Tensor, value: int) -> Packed:
        """What a repetition is to hold in the place of a tensor that it reads."""


class Exactly:
    """Keeps tensors as they are."""

    def saved(self, tensor: Tensor, value: int) -> Packed:
        """The tensor itself, with its version."""
        return Kept(unseen_alias(tensor), tensor._version)

    def read(self, tensor: Tensor, value: int) -> Packed:
        """The tensor itself, with its version."""
        return Kept.of(tensor)


class Coding:
    """Stores what a plan keeps through a codec, in forward after forward, with noise of its own in each.

    Args:
        codec: any of actcore's.
        seed: of its noise.

    Attributes:
        step: the number of the next forward.
    """

    def __init__(self, codec: Codec, seed: int = 0) -> None:
        if not (callable(getattr(codec, "compress", None)) and callable(getattr(codec, "decompress", None))):
            raise TypeError(f"codec must be a codec, such as actcore.GroupAffine(bits=8), got {codec!r}")
        self.codec = codec
        self.seed = seed
        self.step = 0

    def begin(self, graph: Graph) -> Coded:
        """For the forward that starts now, of this graph."""
        with _STEPS:  # no two forwards get the same number, in whichever thread they start
            step, self.step = self.step, self.step + 1
        return Coded(self.codec, self.seed, step, frozenset(n for n, value in enumerate(graph.values) if value.exact))


class Coded(Exactly):
    """Stores the activations that a forward keeps: one stored form for all that lies in a value's memory.

    Activations are large floating-point tensors through which gradients flow. Others, and those that are masked, are
    kept exactly: masks, indices, statistics; and what something was decided by that has to go with it.
    """

    def __init__(self, codec: Codec, seed: int, step: int, exact: frozenset[int] = frozenset()) -> None:
        self._codec, self._seed, self._step, self._exact = codec, seed, step, exact
        self._stored: WeakValueDictionary[int, _Stored] = WeakValueDictionary()
        self._count = 0

    def saved(self, tensor: Tensor, value: int) -> Packed:
        """Its place in the value's stored form."""
        return self._coded(tensor, value) or super().saved(tensor, value)

    def read(self, tensor: Tensor, value: int) -> Packed:
        """Its place in the value's stored form."""
        return self._coded(tensor, value) or super().read(tensor, value)

    def _coded(self, tensor: Tensor, value: int) -> Packed | None:
        if value in self._exact or not is_plain(tensor) or tensor.is_conj() or tensor.is_neg():
            return None
        stored = self._stored.get(value)
        if stored is None:
            stored = self._store(tensor)
            if stored is None:
                return None
            self._stored[value] = stored
        if stored.dtype is not tensor.dtype:
            return None
        return _Part(stored, Geometry.of(tensor), Version(tensor))

    def _store(self, tensor: Tensor) -> _Stored | None:
        """The whole memory in which a tensor lies; ``None`` where it is to be kept exactly."""
        storage = tensor.untyped_storage()
        if tensor.dtype not in FLOATS or storage.nbytes() < _MIN_BYTES:
            return None
        if not tensor.requires_grad or may_be_masked(tensor):
            return None
        with unseen(tensor), torch.no_grad():
            whole = tensor.new_empty(0).set_(storage)
            inner = self._codec.inner if isinstance(self._codec, Offload) else self._codec
            if isinstance(inner, GroupAffine) and tensor.device.type == "cpu" and is_masked(whole, inner.group_size):
                return None
            stream = replayable(stream_of(f"kept by a plan\0{self._count}", self._step, current_rank()), whole)
            try:
                compressed = self._codec.compress(whole, seed=self._seed, stream=stream)
            except TypeError:  # a dtype that it does not store, or a device
                return None
        self._count += 1
        return _Stored(compressed, tensor.dtype)


class _Stored:
    """A value's memory, stored."""

    __slots__ = ("__weakref__", "compressed", "dtype")

    def __init__(self, compressed: Compressed, dtype: torch.dtype) -> None:
        self.compressed = compressed
        self.dtype = dtype


class _Part:
    """In the place of a tensor that lies in memory that is stored."""

    __slots__ = ("_geometry", "_stored", "_version")

    def __init__(self, stored: _Stored, geometry: Geometry, version: Version) -> None:
        self._stored, self._geometry, self._version = stored, geometry, version

    def unpack(self) -> Tensor:
        """The tensor. Raises ``RuntimeError`` if it was changed in place since it was saved."""
        self._version.check(self._geometry)
        return self._geometry.view(self._stored.compressed.decompress())
