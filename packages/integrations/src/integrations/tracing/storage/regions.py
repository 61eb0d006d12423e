"""A saved stretch of a storage, and what autograd holds in its place.

A ``Region`` holds what its users need and no more: a sign mask, a quantised value, or the memory itself. If a later
user needs more bits, the value is replaced, and all views share the better one. If one needs the tensor exactly, the
memory is kept and everything else is dropped. Under ``Offload`` the stored form, even an exact one, is on the host and
serves the same users.

A region lives as long as autograd holds an ``Exact`` or a ``View`` of it: nothing has to be cleared. The elements that
were restored last are lent to the next view that asks for the same, as those of query, key and value do, while such a
view is still to come and no other region is restored. So at most one tensor is alive beyond what autograd itself holds.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from actcore import BitMask, Codec, Compressed, GroupAffine, Kept, Layout, Narrow, Offload, Positive, Raw
from integrations.policies.norms import Standardized
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.norm_inputs import compress_for_norm
from integrations.tracing.storage.records import Record
from integrations.tracing.tensors import Extent

_EXACT = (Raw, BitMask, Narrow)
_ROOM = 1 << 16  # up to so many elements of memory, rounded elements are restored with the gaps between them

Stream = int | Tensor
"""The stream of a tensor's noise, as a number that Python counts, or as a tensor on the device."""


class LastRestored:
    """The region of one ``Storages`` that was restored last, while views of it are still to come.

    Attributes:
        region: the region.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
    """

    __slots__ = ("__weakref__", "double", "region")

    def __init__(self) -> None:
        self.region: weakref.ref[Region] | None = None
        self.double: DoubleBackward | None = None

    def becomes(self, region: Region | None) -> None:
        """Makes another region the last one, and frees what the one before lends."""
        last = None if self.region is None else self.region()
        if last is not None and last is not region:
            last.lent = None
        self.region = None if region is None else weakref.ref(region)


class Region:
    """Elements ``start`` to ``start + numel`` of a storage at one version, and what is stored of them.

    Attributes:
        waiting: views of its elements that backward has not read, not counting those of signs, which are decoded for
            each.
        lent: what was restored, from which stored form and on which stream, if the region is the last; and its version,
            since a backward that changes it in place does not share it.
    """

    __slots__ = (
        "__weakref__", "dense", "dtype", "kept", "last", "layout", "lazy", "lent", "numel", "record", "sign",
        "sign_record", "start", "value", "version", "waiting",
    )  # fmt: skip

    def __init__(self, tensor: Tensor, extent: Extent, last: LastRestored) -> None:
        _, self.numel, self.dense, self.layout = extent
        self.start: int = tensor.storage_offset()  # type: ignore[assignment]
        self.dtype, self.version, self.lazy = tensor.dtype, tensor._version, find_lazy_changes(tensor)
        self.value: Compressed | None = None
        self.sign: Compressed | None = None
        self.kept: Kept | None = None
        self.waiting = 0
        self.lent: tuple[Compressed, Any, Tensor, int] | None = None
        self.last = last
        self.record: Record | None = None
        self.sign_record: Record | None = None

    def covers(self, tensor: Tensor, layout: Layout) -> bool:
        """Whether the tensor, of the same storage, can be restored from this region."""
        return self.shares_elements(tensor) and self.reaches(layout, int(tensor.storage_offset()))

    def reaches(self, layout: Layout, offset: int) -> bool:
        """Whether elements that lie so in the same storage are among those of this region."""
        if layout == self.layout and offset == self.start:
            return True
        if not self.dense:
            return False
        last = offset + sum((size - 1) * step for size, step in zip(layout.shape, layout.strides, strict=True))
        return bool(self.start <= offset and last < self.start + self.numel)

    def shares_elements(self, tensor: Tensor) -> bool:
        """Whether a tensor of the same storage reads the same elements as this region. Another version does not, nor a
        view as another dtype, or one that is lazily negated or conjugated if this one is not."""
        return tensor.dtype == self.dtype and tensor._version == self.version and find_lazy_changes(tensor) == self.lazy

    def source(self, tensor: Tensor) -> Tensor:
        """This region's elements, read through any tensor of its storage."""
        return tensor.detach().as_strided(self.layout.shape, self.layout.strides, self.start)

    # ---- what the users need ----

    def keep(self, tensor: Tensor) -> None:
        """Keeps the memory itself, and drops what is stored."""
        self.kept = Kept.of(tensor)
        for record in (self.record, self.sign_record):
            if record is not None:
                record.stored_bytes, record.host = 0, False
                record.codec = "kept"
                record.why = "its storage is kept exactly for another operator"
        self.value = self.sign = None

    def store(
        self, tensor: Tensor, extent: Extent, codec: Codec, record: Record, sign: bool, seed: int, stream: Stream
    ) -> None:
        """Stores with ``codec``, unless something more exact is stored already. Raises what the codec raises."""
        # A dense tensor of as many elements covers the region, whatever its shape, and is stored in the same order.
        whole = extent.dense and extent.numel == self.numel
        if self.kept is not None:
            record.codec, record.why = "kept", "its storage is kept exactly for another operator"
        elif sign and not self._exact:
            if self.sign is None:
                self.sign = self._compress(tensor, whole, codec, record, seed, stream)
                self.sign_record = record
            else:
                record.codec, record.why = codec_name(self.sign.codec), "shares the copy that is stored already"
        elif self.value is None or fineness(codec) > fineness(self.value.codec):
            if isinstance(codec, Raw) and self.value is not None and isinstance(self.value.codec, Offload):
                codec = replace(self.value.codec, inner=codec)  # what was on the host stays there
            self.value = self._compress(tensor, whole, codec, record, seed, stream)
            _share(self.record, record)
            self.record = record
            if self._exact and self.sign is not None:
                _share(self.sign_record, record)
                self.sign = self.sign_record = None
        else:
            record.codec, record.why = codec_name(self.value.codec), "shares the copy that is stored already"

    def _compress(
        self, tensor: Tensor, whole: bool, codec: Codec, record: Record, seed: int, stream: Stream
    ) -> Compressed:
        if isinstance(codec, Raw):
            compressed = codec.compress(self.source(tensor).clone())
            record.codec, record.why = codec_name(codec), f"{record.why}; a copy, since its storage is larger"
        else:
            source = tensor if whole else self.source(tensor)
            if isinstance(inner(codec), GroupAffine) and self._has_gaps:
                source = source.detach().clone()  # in the same order: what fills its gaps has a region of its own
            if isinstance(codec, Standardized):
                compressed = codec.compress(source, seed=seed, stream=stream, operator=compress_for_norm)
            elif isinstance(inner(codec), GroupAffine):  # what goes to the host is written now
                compressed = codec.compress(source, seed=seed, stream=stream)
            else:  # this may be the user's, made of torch's operators
                with torch.no_grad():
                    compressed = codec.compress(source.detach(), seed=seed, stream=stream)
            if type(codec) is GroupAffine and compressed.codec is codec:  # most are
                record.codec, record.stored_bytes = str(codec), codec.stored_bytes(self.numel, self.dtype)
                return compressed
            record.codec = codec_name(compressed.codec)
        record.stored_bytes = compressed.nbytes
        record.host = isinstance(compressed.codec, Offload)
        return compressed

    @property
    def _has_gaps(self) -> bool:
        """Whether the elements lie so far apart in memory that it matters, as those of query, key and value in one
        product do: each of the three would be restored with the gaps, in the memory of all."""
        shape, strides = self.layout
        if self.dense or not self.layout.spaced or 0 in strides:
            return False
        return sum((size - 1) * step for size, step in zip(shape, strides, strict=True)) >= _ROOM

    @property
    def _exact(self) -> bool:
        """Whether the stored value is exact, so that signs can be read from it, too."""
        return self.value is not None and isinstance(inner(self.value.codec), Raw)

    @property
    def nbytes(self) -> int:
        """Bytes of what is stored besides the memory itself."""
        return sum(stored.nbytes for stored in (self.value, self.sign) if stored is not None)

    def elements(self, sign: bool, lends: bool = True) -> Tensor:
        """The region's elements, restored.

        Args:
            sign: whether only their signs are needed.
            lends: whether they may be lent to the next view that asks, and stay alive until then.
        """
        if self.kept is not None:
            return self.source(self.kept.unpack())
        stored = self.sign if sign and self.sign is not None else self.value
        assert stored is not None
        lent = self.lent
        if lent is None and lends and self.waiting <= 0:  # no other view is to come
            if self.last.region is not None:
                self.last.becomes(None)  # frees it before another tensor is made
            return restored(stored)
        if lent is None or lent[0] is not stored or lent[1] != used_on(lent[2]) or lent[2]._version != lent[3]:
            if not lends:
                return restored(stored)
            lent = self.lent = None
            self.last.becomes(None)  # frees it before another tensor is made
            elements = restored(stored)
            lent = (stored, used_on(elements), elements, elements._version)
        if lends:
            self.lent = lent if self.waiting > 0 else None
            self.last.becomes(self if self.waiting > 0 else None)
        return lent[2]


@dataclass(slots=True, eq=False)
class Exact:
    """What autograd holds in place of a kept tensor. The region tells later users of its storage."""

    kept: Kept
    region: Region | None = None

    def unpack(self) -> Tensor:
        return self.kept.unpack()


class View:
    """What autograd holds in place of a stored tensor: a view of a region."""

    __slots__ = ("layout", "offset", "region", "sign", "waits")

    def __init__(self, region: Region, layout: Layout, offset: int, sign: bool) -> None:
        self.region, self.layout, self.offset, self.sign = region, layout, offset, sign
        self.waits = not sign
        region.waiting += self.waits

    def unpack(self) -> Tensor:
        self._is_read()
        if self.sign and self.region.last.region is not None:
            self.region.last.becomes(None)  # frees it before another tensor is made
        return self.get_view(self.region.elements(self.sign, lends=not self.sign))

    def beside(self) -> Beside:
        """The same view for a repetition. It does not count as a view that is still to come."""
        self._is_read()
        return Beside(self)

    def _is_read(self) -> None:
        if self.waits:
            self.waits = False
            self.region.waiting -= 1

    def get_view(self, elements: Tensor) -> Tensor:
        """The tensor, as a view of the region's elements."""
        region, layout = self.region, self.layout
        same = elements.stride() == layout.strides and elements.shape == layout.shape and self.offset == region.start
        if same or not region.dense:
            return elements
        offset = elements.storage_offset() + self.offset - region.start
        return elements.as_strided(layout.shape, layout.strides, offset)


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """What the call of a repetition holds in place of a stored tensor. What it restores lives while its operator runs:
    later operators make tensors of their own, and backward may read this one much later."""

    view: View

    def unpack(self) -> Tensor:
        view = self.view
        return view.get_view(view.region.elements(view.sign, lends=False))


def restored(stored: Compressed) -> Tensor:
    """Restore a stored form. What a user's own codec returns is laid out in memory as the tensor was, since views are
    taken of that memory.

    Raises:
        TypeError: such a codec returned no tensor, or one of another shape or dtype.
    """
    found = stored.codec.decompress(stored)
    if is_ours(stored.codec):
        return found
    shape, strides = stored.layout
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or found.dtype != stored.dtype:
        got = f"{tuple(found.shape)} in {found.dtype}" if isinstance(found, Tensor) else repr(found)
        raise TypeError(
            f"{type(inner(stored.codec)).__name__}.decompress must return a tensor of the shape and dtype that was "
            f"compressed, {shape} in {stored.dtype}, got {got}"
        )
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))
    if found.stride() == strides or reach != found.numel():  # the second has gaps, of which no views are taken
        return found
    return torch.empty_strided(shape, strides, dtype=found.dtype, device=found.device).copy_(found)


def is_ours(codec: Codec) -> bool:
    """Whether a codec is one of these packages, and not a user's own."""
    return type(inner(codec)).__module__.partition(".")[0] in ("actcore", "integrations")


def used_on(tensor: Tensor) -> Any:
    """The stream on which a tensor would be used. One that was restored on another stream may not be complete there."""
    real = tensor.is_cuda and torch.cuda.is_initialized()  # a fake one needs no GPU
    return torch.cuda.current_stream(tensor.device) if real else None


AS_IN_MEMORY = (False, False)
"""What ``find_lazy_changes`` returns of a tensor whose elements are read as they lie in memory."""


def find_lazy_changes(tensor: Tensor) -> tuple[bool, bool]:
    """What torch does to the elements in memory when they are read: conjugate, negate."""
    return tensor.is_neg(), tensor.is_conj()


def inner(codec: Codec) -> Codec:
    """The codec that makes the stored form, wherever that is kept."""
    return codec.inner if isinstance(codec, Offload) else codec


def is_sign(codec: Codec) -> bool:
    """Whether only signs are stored."""
    return isinstance(inner(codec), Positive)


def _share(earlier: Record | None, record: Record) -> None:
    """Notes in an earlier record that ``record`` counts the bytes that serve it now."""
    if earlier is not None:
        earlier.stored_bytes = 0
        earlier.codec, earlier.why = record.codec, "shares a copy with more bits"


def codec_name(codec: Codec) -> str:
    """The name that a record has for a codec."""
    if isinstance(codec, Offload):
        return f"{codec_name(codec.inner)}, on the host"
    return "copied" if isinstance(codec, Raw) else str(codec)


def fineness(codec: Codec) -> tuple[int, bool, int]:
    """How much a codec keeps, to compare: bits an element, then whether the elements are stored normalised, then how
    few share bounds. Exact codecs keep most. A user's codec is not compared: what is stored already serves."""
    codec = inner(codec)
    if not isinstance(codec, GroupAffine):
        return (64 if isinstance(codec, _EXACT) else 0, False, 0)
    return (codec.bits, isinstance(codec, Standardized), -codec.group_size)
