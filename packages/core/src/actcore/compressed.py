"""``Compressed``: the stored form of one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from actcore.layout import Layout

if TYPE_CHECKING:
    from actcore.codec import Codec


@dataclass(frozen=True, eq=False)
class Compressed:
    """A tensor as a codec stored it: the payload and the data that undo it.

    Move it with ``to``, save it with ``torch.save`` and, after ``import actcore``, load it with ``torch.load``
    (``weights_only=True`` included; your own codec needs ``torch.serialization.add_safe_globals``). It shares no memory
    with the original tensor, except under ``Raw``.

    Attributes:
        codec: the codec that undoes it. It may differ from the codec that you passed: a tensor too small to gain is
            stored unchanged, under ``Raw``.
        payload: the stored tensors; their meaning depends on the codec.
        layout: shape and strides of the tensor, which ``decompress`` restores.
        dtype: the tensor's dtype.
    """

    codec: Codec
    payload: tuple[Tensor, ...]
    layout: Layout
    dtype: torch.dtype

    sound: ClassVar[bool] = False
    """Whether ``codec`` made it in this process, so that its fields need no check. Not so for a copy with other fields,
    and for what comes from a file, whatever that says."""

    @classmethod
    def of(cls, codec: Codec, tensor: Tensor, payload: Sequence[Tensor]) -> Compressed:
        """Return the stored form of ``tensor`` under ``codec``: the result of a codec's ``compress``."""
        return cls(codec, tuple(payload), Layout.of(tensor), tensor.dtype)

    @property
    def shape(self) -> torch.Size:
        """The tensor's shape."""
        return torch.Size(self.layout.shape)

    @property
    def device(self) -> torch.device:
        """The device of the payload, and of the tensor that ``decompress`` returns, except under ``Offload``."""
        return self.payload[0].device

    @property
    def nbytes(self) -> int:
        """Bytes of the payload; elements repeated by a stride of 0 count once."""
        return sum(map(_nbytes, self.payload))

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Compressed:
        """Return the same stored form on another device.

        Raises:
            TypeError: ``device`` is not a device. For another dtype, compress the cast tensor.
        """
        if not isinstance(device, (torch.device, str, int)):
            raise TypeError(
                f"device must be a device such as 'cuda', got {device!r}; for another dtype compress tensor.to(dtype)"
            )
        self._settle()
        moved = tuple(part.to(device, non_blocking=non_blocking) for part in self.payload)
        return replace(self, payload=moved)

    def decompress(self) -> Tensor:
        """Return the tensor, with its shape, strides, dtype and device. See ``actcore.decompress``."""
        return self.codec.decompress(self)

    def __getstate__(self) -> dict[str, object]:
        self._settle()
        return {name: value for name, value in self.__dict__.items() if name != "sound"}

    def __setstate__(self, state: Mapping[str, object]) -> None:
        if not isinstance(state, Mapping):
            raise TypeError(f"the state of a Compressed must be a mapping, got {type(state).__name__}")
        self.__dict__.update((name, value) for name, value in state.items() if name != "sound")

    def _settle(self) -> None:
        """Lets a codec that copies in the background finish (``Offload``)."""
        settle = getattr(self.codec, "settle", None)
        if settle is not None:
            settle(self)

    def __repr__(self) -> str:
        shape = tuple(self.layout.shape)
        return f"Compressed({self.codec!r}, shape={shape}, dtype={self.dtype}, nbytes={self.nbytes})"


# What a sparse tensor is made of; its own nbytes is undefined, or that of a dense tensor of its shape.
_COMPONENTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def _nbytes(part: Tensor) -> int:
    if part.layout is torch.strided:
        if part.is_contiguous():
            return part.nbytes
        return Layout.of(part).stored_numel * part.itemsize
    if components := _COMPONENTS.get(part.layout):
        return sum(getattr(part, component)().nbytes for component in components)
    return part.nbytes
