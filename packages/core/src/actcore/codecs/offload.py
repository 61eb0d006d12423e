"""``Offload``: another codec's stored form, in host memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor

from actcore.codec import Codec, require_codec
from actcore.codecs.raw import Raw
from actcore.compressed import Compressed
from actcore.ops import Key

Event: TypeAlias = Any  # torch.cuda.Event; torch builds without CUDA have a stand-in

# Tensors that may be back on a device before they are asked for: the next one, and one that the order was wrong about.
_AHEAD = 2


@dataclass(frozen=True)
class Offload:
    """Keeps what ``inner`` stores in pinned host memory, and brings it back when it is needed.

    Copies run on streams of their own, one for each direction, beside the computation; the host never waits. Tensors
    are needed in the reverse order of their storing, so whenever one is decompressed, the copy back of the one that was
    stored before it is started. At most two wait on a device for their use; where the order is another, the older one
    is dropped and copied again. What ``inner`` stores without a copy (``Raw``) is copied on the device first, so that a
    change in place cannot reach it. Pinned memory comes from torch's pool, which reuses it once the copies have ended.

    The stored form is on the host, and so are its ``device`` and ``nbytes``; ``decompress`` puts the tensor on the
    device it came from. Moving or saving it waits for its copy. A tensor that is on the host already is stored by
    ``inner`` alone, and the stored form names that codec.

    Args:
        inner: what the payload is made with.
        device: where ``decompress`` puts the tensor; ``compress`` fills it in.
    """

    inner: Codec = field(default_factory=Raw)
    device: torch.device | None = None

    def __post_init__(self) -> None:
        require_codec(self.inner)
        if isinstance(self.inner, Offload):
            raise TypeError(f"inner must store tensors on their device, got {self.inner!r}; use its inner codec")

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """``inner``'s payload on the host; raises what ``inner`` raises.

        Raises:
            TypeError: besides, for a tensor on a device other than the CPU and CUDA.
        """
        stored = self.inner.compress(tensor, seed=seed, stream=stream)
        device = stored.device
        if not _leaves(device):
            return stored
        given = tensor.untyped_storage()._cdata
        parts = [part.clone() if part.untyped_storage()._cdata == given else part for part in stored.payload]
        payload = _store(lane(device), parts)
        return Compressed(Offload(stored.codec, device), payload, stored.layout, stored.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor, on the device that it was stored from."""
        if self.device is None:
            raise ValueError(f"the codec of {compressed!r} must name a device; it is damaged: store the tensor again")
        parts = _restore(lane(self.device), compressed.payload)
        return self.inner.decompress(Compressed(self.inner, parts, compressed.layout, compressed.dtype))

    def settle(self, compressed: Compressed) -> None:
        """Waits until the payload has arrived on the host."""
        transfer = _transfer_of(compressed.payload)
        if transfer is not None:
            transfer.arrived.synchronize()


def _leaves(device: torch.device) -> bool:
    """Whether a payload there has a way to go."""
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"Offload takes tensors on the CPU and on CUDA devices, got {device}; use its inner codec")
    return device.type == "cuda"


class Lane:
    """Copies between one CUDA device and the host, on a stream for each direction."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.out = torch.cuda.Stream(device)
        self.back = torch.cuda.Stream(device)

    def copy_out(self, parts: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Event]:
        """Copies on the host, and the event of their arrival."""
        self.out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.out):
            copies = []
            for part in parts:
                host = torch.empty_like(part, device="cpu", pin_memory=True)
                copies.append(host.copy_(part, non_blocking=True))
                part.record_stream(self.out)  # its block is given to nobody before the copy has ended
            return tuple(copies), self.out.record_event()

    def copy_back(self, parts: Sequence[Tensor], arrived: Event | None) -> tuple[tuple[Tensor, ...], Event]:
        """Copies on the device, and the event of their arrival; they belong to the stream of copies back."""
        if arrived is not None:
            self.back.wait_event(arrived)
        with torch.cuda.stream(self.back):
            copies = tuple(part.to(self.device, non_blocking=True) for part in parts)
            return copies, self.back.record_event()

    def hand_over(self, parts: Sequence[Tensor], arrived: Event) -> None:
        """Lets the current stream use what was copied back."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(arrived)
        for part in parts:
            part.record_stream(current)


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

    def __init__(self, payload: tuple[Tensor, ...], arrived: Event, before: _Place | None) -> None:
        # The storages are what autograd's own saving keeps, whatever tensor objects it makes of them.
        self.payload = [
            (weakref.ref(part.untyped_storage()), part.shape, part.stride(), part.dtype) for part in payload
        ]
        self.arrived = arrived
        self.place = _Place(self, before)
        self.coming: tuple[tuple[Tensor, ...], Event] | None = None

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
_ahead: dict[torch.device, list[weakref.ref[_Transfer]]] = {}  # fetched and not yet used, the oldest first
_lock = threading.Lock()  # forward and backward run in different threads


def _transfer_of(payload: Sequence[Tensor]) -> _Transfer | None:
    return _transfers.get(payload[0].untyped_storage())


def _store(lane: Lane, parts: Sequence[Tensor]) -> tuple[Tensor, ...]:
    payload, arrived = lane.copy_out(parts)
    with _lock:
        transfer = _Transfer(payload, arrived, _still_there(_last.get(lane.device)))
        _transfers[payload[0].untyped_storage()] = transfer
        _last[lane.device] = transfer.place
    return payload


def _restore(lane: Lane, payload: Sequence[Tensor]) -> tuple[Tensor, ...]:
    with _lock:
        transfer = _transfer_of(payload)
        if transfer is None:  # loaded from a file: nothing is on its way
            parts, arrived = lane.copy_back(payload, None)
        else:
            transfer.fetch(lane)
            assert transfer.coming is not None
            (parts, arrived), transfer.coming = transfer.coming, None
            _fetch_ahead(lane, transfer.place)
    lane.hand_over(parts, arrived)
    return parts


def _fetch_ahead(lane: Lane, place: _Place) -> None:
    """Starts the copy back of what was stored before; drops those that have waited longest, if there are too many."""
    waiting = [found for found in _ahead.get(lane.device, ()) if _waits(found())]
    place.before = _still_there(place.before)
    following = None if place.before is None else place.before.transfer()
    if following is not None and not _waits(following):
        following.fetch(lane)
        waiting.append(weakref.ref(following))
    for found in waiting[:-_AHEAD]:
        if (dropped := found()) is not None:
            dropped.coming = None
    _ahead[lane.device] = waiting[-_AHEAD:]


def _waits(transfer: _Transfer | None) -> bool:
    return transfer is not None and transfer.coming is not None
