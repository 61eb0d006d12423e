"""``Offload``: another codec's stored form, in host memory."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from actcore.codec import Codec, require_codec
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.device_streams import in_cuda_graph
from actcore.forms import require_int
from actcore.layout import Layout
from actcore.ops import Key

Event: TypeAlias = Any  # torch.cuda.Event; torch builds without CUDA have a stand-in
Stream: TypeAlias = Any  # torch.cuda.Stream, likewise

# Tensors that may be back on a device before they are asked for: the next one, and one that the order was wrong about.
_AHEAD = 2


@dataclass(frozen=True)
class Offload:
    """Keeps the payload of ``inner`` in pinned host memory, and copies it back when it is needed.

    Copies run on their own CUDA streams, one for each direction, concurrently with the computation; the host never
    waits. Backward needs tensors in the reverse order of storing. So decompressing one tensor also starts the copy back
    of the tensor stored before it. If the order differs, that copy is dropped and made again later. A payload that
    ``inner`` stores without a copy (``Raw``) is first copied on the device, so that a later in-place change does not
    affect it.

    The device holds the payloads of at most ``leaving`` tensors on their way to the host and of at most two on their
    way back, besides the one in use, however far the host is ahead. Storing one more makes the storing stream wait
    until the oldest copy has arrived; a copy back begins once the stream reaches the point at which it was started. The
    freed memory then serves the next tensors of the stream. With ``leaving=0`` the stream waits for each copy at once.
    A tensor that ``inner`` stores without a copy then needs no copy on the device, unless there are gaps between its
    elements.

    A tensor that is stored while a CUDA graph is captured stays on the device, as ``inner`` stores it: each replay
    would write to the same pinned memory, which the pool may have given to others by then.

    Pinned memory comes from torch's pool, which pins it once, keeps it, and reuses it when the copies have ended. The
    pool rounds each payload tensor up to a power of two unless ``PYTORCH_ALLOC_CONF`` says otherwise, so the host may
    need up to twice ``nbytes``.

    The stored form is on the host, and so are its ``device`` and ``nbytes``; ``decompress`` puts the tensor on its
    original device. Moving or saving the stored form waits for its copy. A tensor that is on the host already is stored
    by ``inner`` alone, and the stored form names that codec.

    Args:
        inner: the codec that makes the payload.
        device: where ``decompress`` puts the tensor; ``compress`` fills it in.
        leaving: how many payloads may be on their way to the host, and still on the device, once this one is stored. 2
            means the one that is being copied and the next in the queue.
        ahead: whether decompressing starts the copy back of the tensor that was stored before.

    Raises:
        TypeError: ``inner`` is not a codec or is an ``Offload`` itself; ``leaving`` is not an int, or ``ahead`` not a
            bool.
        ValueError: ``leaving`` is negative.
    """

    inner: Codec = field(default_factory=Raw)
    device: torch.device | None = None
    leaving: int = 2
    ahead: bool = True

    def __post_init__(self) -> None:
        require_codec(self.inner)
        require_int("leaving", self.leaving)
        if self.leaving < 0:
            raise ValueError(f"leaving must be at least 0, got {self.leaving}")
        if not isinstance(self.ahead, bool):
            raise TypeError(f"ahead must be a bool, got {self.ahead!r}")
        if isinstance(self.inner, Offload):
            raise TypeError(f"inner must store tensors on their device, got {self.inner!r}; use its inner codec")

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """Return the payload of ``inner`` on the host, or on the device while a CUDA graph is captured.

        Raises:
            TypeError: the tensor is on a device other than the CPU and CUDA. Errors of ``inner`` are raised as well.
        """
        device = tensor.device
        if not _leaves(device):
            return self.inner.compress(tensor, seed=seed, stream=stream)
        stays = in_cuda_graph()
        if not stays:
            _make_room(lane(device), self.leaving)
        stored = self.inner.compress(tensor, seed=seed, stream=stream)
        given = tensor.untyped_storage()._cdata
        parts = tuple(
            part.clone()
            if part.untyped_storage()._cdata == given and (stays or self.leaving or _has_gaps(part))
            else part
            for part in stored.payload
        )
        if stays:
            return Compressed(stored.codec, parts, stored.layout, stored.dtype)
        payload = _store(lane(device), parts, self.leaving)
        return Compressed(replace(self, inner=stored.codec, device=device), payload, stored.layout, stored.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor, on the device from which it was stored."""
        return self.fetch(compressed).decompress()

    def fetch(self, compressed: Compressed) -> Compressed:
        """Return the stored form of ``inner``, on the device from which it was stored."""
        if self.device is None:
            raise ValueError(f"the codec of {compressed!r} must name a device; it is damaged: store the tensor again")
        parts = _restore(lane(self.device), compressed.payload, self.ahead)
        return Compressed(self.inner, parts, compressed.layout, compressed.dtype)

    def settle(self, compressed: Compressed) -> None:
        """Wait until the payload has arrived on the host."""
        transfer = _transfer_of(compressed.payload)
        if transfer is not None:
            transfer.arrived.synchronize()


def _has_gaps(part: Tensor) -> bool:
    """Whether torch copies a tensor on its device first, since its elements do not fill one stretch of memory."""
    return not Layout.of(part).dense


def _leaves(device: torch.device) -> bool:
    """Whether a payload there has a way to go."""
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"Offload takes tensors on the CPU and on CUDA devices, got {device}; use its inner codec")
    return device.type == "cuda"


class Crossing:
    """A copy between host and device, and the memory of ``stream`` on the device that it reads or writes.

    That memory goes back to the allocator with the crossing, which lets ``stream`` wait for the copy first: whatever
    takes the memory next there comes after it. ``Tensor.record_stream`` would keep the memory from everybody until the
    host sees that the copy has ended. A host that is ahead sees it too late: the allocator would always take more.
    """

    def __init__(self, parts: tuple[Tensor, ...], arrived: Event, stream: Stream, side: Stream) -> None:
        self.parts = parts
        self.arrived = arrived
        self.stream = stream
        self._side = side

    def hand_over(self, current: Stream) -> tuple[Tensor, ...]:
        """Lets ``current`` use what was copied, and leaves the memory to it."""
        parts, self.parts = self.parts, ()
        current.wait_event(self.arrived)
        if current != self.stream:
            for part in parts:
                part.record_stream(current)
        return parts

    def __del__(self) -> None:
        if not self.parts or sys.is_finalizing():
            return
        if in_cuda_graph():  # which must not wait for what began before it
            for part in self.parts:
                part.record_stream(self._side)
        else:
            self.stream.wait_event(self.arrived)


class Lane:
    """Copies between one CUDA device and the host, on a stream for each direction."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._out = torch.cuda.Stream(device)
        self._back = torch.cuda.Stream(device)

    def current(self) -> Stream:
        """The stream that computes."""
        return torch.cuda.current_stream(self.device)

    def copy_out(self, parts: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Crossing]:
        """Copies on the host of what the current stream has made, and their way there."""
        current = self.current()
        self._out.wait_stream(current)
        with torch.cuda.stream(self._out):
            copies = tuple(
                torch.empty_like(part, device="cpu", pin_memory=True).copy_(part, non_blocking=True) for part in parts
            )
            return copies, Crossing(tuple(parts), self._out.record_event(), current, self._out)

    def copy_back(self, parts: Sequence[Tensor], arrived: Event | None) -> Crossing:
        """The way of copies on the device, which begins where the current stream is, and when ``parts`` are there."""
        current = self.current()
        copies = tuple(torch.empty_like(part, device=self.device) for part in parts)
        self._back.wait_stream(current)  # the memory may be in use until there
        if arrived is not None:
            self._back.wait_event(arrived)
        with torch.cuda.stream(self._back):
            for copy, part in zip(copies, parts, strict=True):
                copy.copy_(part, non_blocking=True)
            return Crossing(copies, self._back.record_event(), current, self._back)


lane = lru_cache(maxsize=None)(Lane)
"""The lane of a device."""


class _Place:
    """Where a payload stands in the order of storing. It outlives the payload, so that its neighbours meet."""

    __slots__ = ("before", "transfer")

    def __init__(self, transfer: _Transfer, before: _Place | None) -> None:
        self.transfer = weakref.ref(transfer)
        self.before = before


def _still_there(place: _Place | None) -> _Place | None:
    """The nearest place, from this one backwards, whose payload has not gone."""
    while place is not None and place.transfer() is None:
        place = place.before
    return place


class _Transfer:
    """One payload on its way out and back. It lives as long as the payload's memory."""

    def __init__(self, payload: tuple[Tensor, ...], leaving: Crossing, before: _Place | None) -> None:
        # The storages are what autograd's own saving keeps, whatever tensor objects it makes of them.
        self.payload = [
            (weakref.ref(part.untyped_storage()), part.shape, part.stride(), part.dtype) for part in payload
        ]
        self.arrived = leaving.arrived
        self.place = _Place(self, before)
        self.leaving: Crossing | None = leaving
        self.coming: Crossing | None = None

    def fetch(self, lane: Lane) -> None:
        """Starts the copy back, if the payload is still there and not on its way."""
        if self.coming is not None:
            return
        parts = []
        for reference, shape, strides, dtype in self.payload:
            storage = reference()
            if storage is None:
                return
            parts.append(torch.empty(0, dtype=dtype).set_(storage, 0, shape, strides))
        self.coming = lane.copy_back(parts, self.arrived)


_transfers: weakref.WeakKeyDictionary[torch.UntypedStorage, _Transfer] = weakref.WeakKeyDictionary()
_last: dict[torch.device, _Place] = {}
_leaving: dict[torch.device, list[weakref.ref[_Transfer]]] = {}  # with memory on the device, the oldest first
_ahead: dict[torch.device, list[weakref.ref[_Transfer]]] = {}  # fetched and not yet used, the oldest first
_lock = threading.Lock()  # forward and backward run in different threads


def _transfer_of(payload: Sequence[Tensor]) -> _Transfer | None:
    return _transfers.get(payload[0].untyped_storage())


def _make_room(lane: Lane, leaving: int) -> None:
    """Lets memory of the device go, so that the next payload is one of the last ``leaving``."""
    with _lock:
        _let_go(lane, max(leaving - 1, 0))


def _let_go(lane: Lane, remain: int) -> None:
    """Gives back the device's memory of all but the last ``remain`` payloads that are on their way out."""
    leaving = _leaving.get(lane.device, [])
    begin = max(len(leaving) - remain, 0)
    for found in leaving[:begin]:
        if (transfer := found()) is not None:
            transfer.leaving = None
    del leaving[:begin]


def _store(lane: Lane, parts: Sequence[Tensor], leaving: int) -> tuple[Tensor, ...]:
    payload, crossing = lane.copy_out(parts)
    with _lock:
        transfer = _Transfer(payload, crossing, _still_there(_last.get(lane.device)))
        _transfers[payload[0].untyped_storage()] = transfer
        _last[lane.device] = transfer.place
        _leaving.setdefault(lane.device, []).append(weakref.ref(transfer))
        del crossing
        _let_go(lane, leaving)
    return payload


def _restore(lane: Lane, payload: Sequence[Tensor], ahead: bool) -> tuple[Tensor, ...]:
    with _lock:
        transfer = _transfer_of(payload)
        if transfer is None or in_cuda_graph():  # loaded from a file, or there since before the capture
            coming = lane.copy_back(payload, None)
        else:
            _let_go(lane, 0)  # backward has begun
            transfer.fetch(lane)
            assert transfer.coming is not None
            coming, transfer.coming = transfer.coming, None
            if ahead:
                _fetch_ahead(lane, transfer.place)
    return coming.hand_over(lane.current())


def _fetch_ahead(lane: Lane, place: _Place) -> None:
    """Starts the copy back of what was stored before; drops those that have waited longest, if there are too many."""
    waiting = [found for found in _ahead.get(lane.device, ()) if _waits(found())]
    place.before = _still_there(place.before)
    following = None if place.before is None else place.before.transfer()
    if following is not None and not _waits(following):
        with suppress(torch.OutOfMemoryError):  # it is fetched when it is needed, if there is room by then
            following.fetch(lane)
            waiting.append(weakref.ref(following))
    for found in waiting[:-_AHEAD]:
        if (dropped := found()) is not None:
            dropped.coming = None
    _ahead[lane.device] = waiting[-_AHEAD:]


def _waits(transfer: _Transfer | None) -> bool:
    return transfer is not None and transfer.coming is not None
