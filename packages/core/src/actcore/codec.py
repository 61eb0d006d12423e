"""``Codec``: how one tensor is stored. The two functions that use one, and the checks that codecs share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from actcore.compressed import Compressed

_INT64 = 1 << 64
_ADDRESSABLE = 1 << 60  # elements of 8 bytes
_DAMAGED = "it is damaged or truncated: store the tensor again"


@runtime_checkable
class Codec(Protocol):
    """A way to store a tensor. Any object with these two methods is one; nothing needs to be registered.

    ``decompress(compress(x))`` has x's shape, dtype and device. Built-in codecs are frozen dataclasses: equal when
    their fields are, hashable, with a readable repr.
    """

    def compress(self, tensor: Tensor, *, seed: int = 0, stream: int = 0) -> Compressed:
        """The stored form of ``tensor``, built with ``Compressed.of(self, tensor, payload)``.

        A codec that rounds at random draws from (seed, stream) alone: same pair, same bytes.
        """
        ...

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor that ``compress`` stored, up to the codec's error."""
        ...


def compress(tensor: Tensor, codec: Codec, *, seed: int = 0, stream: int = 0) -> Compressed:
    """Stores a tensor in fewer bytes.

    Args:
        tensor: any strided tensor of a dtype that the codec takes; left as it is.
        codec: for instance ``GroupAffine(bits=4)``.
        seed: with ``stream`` decides the random rounding: the same pair gives the same bytes, on every device and
            for any number of threads. torch's generators are not touched.
        stream: tensors that should round independently get different streams.

    Raises:
        TypeError: ``tensor`` is not a tensor, is sparse or jagged, or has a dtype that the codec does not take;
            ``codec`` has no ``compress`` and ``decompress``.
        ValueError: the codec's own conditions, such as ``BitMask``'s two values, do not hold.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}")
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise TypeError(f"codec must have compress and decompress, got {codec!r}; try actcore.GroupAffine(bits=4)")
    return codec.compress(tensor, seed=seed, stream=stream)


def decompress(compressed: Compressed) -> Tensor:
    """The tensor that was stored: same shape, dtype, device and strides, and no gradient history.

    Raises:
        TypeError: the argument is not a ``Compressed``.
        ValueError: its payload is damaged or truncated. Nothing is read out of bounds.
    """
    if not isinstance(compressed, Compressed):
        raise TypeError(f"compressed must be an actcore.Compressed, got {type(compressed).__name__}")
    return compressed.codec.decompress(compressed)


def require_strided(codec: Codec, tensor: Tensor) -> None:
    """Raises ``TypeError`` for a tensor whose elements are not addressed by strides."""
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise TypeError(
            f"{codec!r} takes strided tensors, got layout {tensor.layout} and dtype {tensor.dtype}; "
            "keep the tensor as it is (actcore.Raw()), or compress its components (values, indices)"
        )


def require_dtype(codec: Codec, tensor: Tensor, allowed: tuple[torch.dtype, ...], way_out: str) -> None:
    """Raises ``TypeError`` for a dtype that the codec does not take."""
    if tensor.dtype not in allowed:
        names = ", ".join(str(dtype).removeprefix("torch.") for dtype in allowed)
        raise TypeError(f"{codec!r} takes {names}, got {tensor.dtype}; {way_out}")


def require_payload(compressed: Compressed, *expected: tuple[torch.dtype, int]) -> None:
    """Raises ``ValueError`` unless the payload has exactly these dtypes and numbers of elements, on one device."""
    require_tensors(compressed)
    found = [(part.dtype, part.numel()) for part in compressed.payload]
    if found != list(expected):
        raise ValueError(
            f"the payload of {compressed!r} must hold {list(expected)} (dtype, elements), got {found}; {_DAMAGED}"
        )
    if any(part.device != compressed.device for part in compressed.payload):
        devices = ", ".join(str(part.device) for part in compressed.payload)
        raise ValueError(f"the payload of {compressed!r} must be on one device, got {devices}; {_DAMAGED}")
    if not all(part.is_contiguous() for part in compressed.payload):
        strides = ", ".join(str(part.stride()) for part in compressed.payload)
        raise ValueError(f"the payload of {compressed!r} must be contiguous, got strides {strides}; {_DAMAGED}")


def require_form(codec: Codec, compressed: Compressed, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raises ``ValueError`` for a codec's fields, a dtype or a layout that ``compress`` cannot have stored.

    A stored form that comes from a file has fields that no constructor has seen.
    """
    if (check := getattr(codec, "__post_init__", None)) is not None:
        try:
            check()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{codec!r} cannot have stored this: {error}; {_DAMAGED}") from error
    if compressed.dtype not in dtypes:
        raise ValueError(f"{codec!r} stores no tensors of dtype {compressed.dtype}; {_DAMAGED}")
    require_layout(compressed)


def require_tensors(compressed: Compressed) -> None:
    """Raises ``ValueError`` unless the payload is a tuple of tensors."""
    payload = compressed.payload
    if not isinstance(payload, tuple) or not all(isinstance(part, Tensor) for part in payload):
        raise ValueError(f"the payload must be a tuple of tensors, got {payload!r}; {_DAMAGED}")


def require_layout(compressed: Compressed) -> None:
    """Raises ``ValueError`` for a shape and strides that no tensor has."""
    shape, strides = compressed.layout.shape, compressed.layout.strides
    sound = len(shape) == len(strides)
    numel = reach = 1
    for size, step in zip(shape, strides, strict=False):
        sound = sound and isinstance(size, int) and isinstance(step, int) and size >= 0 and step >= 0
        if not sound:
            break
        numel *= size or 1
        reach += (size or 1) * step
    if not sound:
        raise ValueError(
            f"layout must have a size and a stride, neither negative, for each dimension, "
            f"got {compressed.layout!r}; {_DAMAGED}"
        )
    if numel >= _ADDRESSABLE or reach >= _ADDRESSABLE:
        raise ValueError(f"layout must fit in memory, got {compressed.layout!r}; {_DAMAGED}")


def as_int64(name: str, value: int) -> int:
    """A seed or stream as the int64 of the same 64 bits, which is what operators take."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")
    if not -(_INT64 // 2) <= value < _INT64:
        raise ValueError(f"{name} must fit in 64 bits, got {value}")
    return value - _INT64 if value >= _INT64 // 2 else value
