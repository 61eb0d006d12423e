"""``Codec``: how one tensor is stored. The two functions that use one, and the checks that codecs share."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import NoReturn, Protocol, runtime_checkable

import torch
from torch import Tensor

from actcore.compressed import Compressed
from actcore.layout import Layout
from actcore.ops import Key

_INT64, _HALF = 1 << 64, 1 << 63
_NUMBERS = (int, torch.SymInt)
_ADDRESSABLE = 1 << 60  # elements of 8 bytes
DAMAGED = "it is damaged or truncated: store the tensor again"


@runtime_checkable
class Codec(Protocol):
    """The interface of a codec, an object that stores tensors.

    Any object with these two methods is a codec; nothing needs to be registered.

    ::

        class Half:
            def compress(self, tensor, *, seed=0, stream=0):
                return actcore.Compressed.of(self, tensor, [tensor.half()])

            def decompress(self, compressed):
                return compressed.payload[0].to(compressed.dtype)

    ``decompress(compress(x))`` has the shape, dtype and device of ``x``. Built-in codecs are frozen dataclasses:
    hashable, with a readable repr, and equal if their fields are equal.
    """

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """Return the stored form of ``tensor``, built with ``Compressed.of(self, tensor, payload)``.

        A codec that rounds at random uses only (seed, stream): the same pair gives the same bytes.
        """
        ...

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor that ``compress`` stored, up to the error of the codec."""
        ...


def compress(tensor: Tensor, codec: Codec, *, seed: Key = 0, stream: Key = 0) -> Compressed:
    """Store a tensor in fewer bytes.

    Args:
        tensor: any strided tensor of a dtype that the codec supports; it is not changed.
        codec: for instance ``GroupAffine(bits=4)``.
        seed: determines the random rounding, together with ``stream``: the same pair gives the same bytes on every
            device and for any number of threads. torch's generators are not used. A 64-bit int, or an int64 tensor of
            one element on the tensor's device, which a replayed CUDA graph and a compiled region read again each time.
        stream: as ``seed``. Tensors that should round independently need different streams.

    Raises:
        TypeError: ``tensor`` is not a tensor, is sparse or jagged, or has a dtype that the codec does not support;
            ``codec`` has no ``compress`` and ``decompress``.
        ValueError: a condition of the codec is not met, such as the two values of ``BitMask``.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor must be a torch.Tensor, got {type(tensor).__name__}")
    require_codec(codec)
    compressed = codec.compress(tensor, seed=seed, stream=stream)
    if not isinstance(compressed, Compressed):
        raise TypeError(
            f"codec {codec!r} must return an actcore.Compressed from compress, got {type(compressed).__name__}; make "
            "it with actcore.Compressed.of(codec, tensor, payload)"
        )
    return compressed


def decompress(compressed: Compressed) -> Tensor:
    """Return the stored tensor: same shape, dtype, device and strides, without gradient history.

    A tensor stored under ``Raw``, such as one too small to gain, is returned itself: clone it before you write to it.

    Raises:
        TypeError: the argument is not a ``Compressed``.
        ValueError: its payload is damaged or truncated. Nothing is read out of bounds.
    """
    if not isinstance(compressed, Compressed):
        raise TypeError(f"compressed must be an actcore.Compressed, got {type(compressed).__name__}")
    if not compressed.sound:
        _require_whole(compressed)
    return compressed.codec.decompress(compressed)


def _require_whole(compressed: Compressed) -> None:
    """Raises ``ValueError`` unless all fields are there and the codec is one: a file may have left them out."""
    for of in (compressed, vars(compressed).get("codec")):
        missing = [field.name for field in fields(of) if not hasattr(of, field.name)] if is_dataclass(of) else []
        if missing:
            raise ValueError(f"a {type(of).__name__} lacks {', '.join(missing)}; {DAMAGED}")
    codec: object = compressed.codec
    if not callable(getattr(codec, "decompress", None)) or isinstance(codec, type):
        raise ValueError(f"the codec of a Compressed must have decompress, got {codec!r:.80}; {DAMAGED}")
    _require_kind_of_layout(compressed.layout)
    if not isinstance(compressed.dtype, torch.dtype):
        raise ValueError(f"the dtype of a Compressed must be a dtype, got {compressed.dtype!r:.80}; {DAMAGED}")


def _require_kind_of_layout(layout: object) -> None:
    if type(layout) is not Layout or not all(isinstance(numbers, tuple) for numbers in layout):
        raise ValueError(f"layout must be an actcore.Layout, got {layout!r:.80}; {DAMAGED}")


def require_codec(codec: object) -> None:
    """Raises ``TypeError`` for what has no ``compress`` and ``decompress``, and for a codec's class."""
    # Not isinstance(codec, Codec), which takes longer than quantising a small tensor.
    takes = callable(getattr(codec, "compress", None)) and callable(getattr(codec, "decompress", None))
    if not takes or isinstance(codec, type):
        raise TypeError(f"codec must have compress and decompress, got {codec!r}; try actcore.GroupAffine(bits=4)")


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
    payload = compressed.payload
    if type(payload) is not tuple or len(payload) != len(expected):
        _refuse_payload(compressed, expected)
    device = None
    for part, (dtype, numel) in zip(payload, expected, strict=True):
        if not isinstance(part, Tensor) or part.dtype != dtype or part.numel() != numel or not part.is_contiguous():
            _refuse_payload(compressed, expected)
        if device is None:
            device = part.device
        elif part.device != device:
            _refuse_payload(compressed, expected)


def _refuse_payload(compressed: Compressed, expected: tuple[tuple[torch.dtype, int], ...]) -> NoReturn:
    require_tensors(compressed)
    payload = compressed.payload
    found = [(part.dtype, part.numel()) for part in payload]
    if found != list(expected):
        raise ValueError(
            f"the payload of {compressed!r} must hold {list(expected)} (dtype, elements), got {found}; {DAMAGED}"
        )
    if len({part.device for part in payload}) > 1:
        devices = ", ".join(str(part.device) for part in payload)
        raise ValueError(f"the payload of {compressed!r} must be on one device, got {devices}; {DAMAGED}")
    strides = ", ".join(str(part.stride()) for part in payload)
    raise ValueError(f"the payload of {compressed!r} must be contiguous, got strides {strides}; {DAMAGED}")


def made(codec: Codec, payload: tuple[Tensor, ...], layout: Layout, dtype: torch.dtype) -> Compressed:
    """What ``compress`` of a codec of actcore returns."""
    if torch.compiler.is_compiling():
        return Compressed(codec, payload, layout, dtype)
    # As the constructor of a frozen class has it, in a third of the time: small tensors feel it.
    compressed = _new(Compressed)
    fields = compressed.__dict__
    fields["codec"], fields["payload"], fields["layout"], fields["dtype"] = codec, payload, layout, dtype
    fields["sound"] = True
    return compressed


_new = object.__new__


def trusted(codec: Codec, compressed: Compressed) -> bool:
    """Whether this codec, or its equal, made it in this process: a codec may be handed what another one made."""
    return compressed.sound and (compressed.codec is codec or compressed.codec == codec)


def require_form(codec: Codec, compressed: Compressed, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raises ``ValueError`` for a codec's fields, a dtype or a layout that ``compress`` cannot have stored.

    A stored form that comes from a file has fields that no constructor has seen.
    """
    if (check := getattr(codec, "__post_init__", None)) is not None:
        try:
            check()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{codec!r} cannot have stored this: {error}; {DAMAGED}") from error
    if compressed.dtype not in dtypes:
        raise ValueError(f"{codec!r} stores no tensors of dtype {compressed.dtype}; {DAMAGED}")
    require_layout(compressed)


def require_tensors(compressed: Compressed) -> None:
    """Raises ``ValueError`` unless the payload is a tuple of tensors."""
    payload = compressed.payload
    if not isinstance(payload, tuple) or not all(isinstance(part, Tensor) for part in payload):
        raise ValueError(f"the payload must be a tuple of tensors, got {payload!r}; {DAMAGED}")


def require_layout(compressed: Compressed) -> None:
    """Raises ``ValueError`` for a shape and strides that no tensor has."""
    _require_kind_of_layout(compressed.layout)
    shape, strides = compressed.layout
    sound = len(shape) == len(strides)
    numel = reach = 1
    for size, step in zip(shape, strides, strict=False):
        sound = sound and type(size) in _NUMBERS and type(step) in _NUMBERS and size >= 0 and step >= 0
        if not sound:
            break
        numel *= size or 1
        reach += (size or 1) * step
    if not sound:
        raise ValueError(
            f"layout must have a size and a stride, neither negative, for each dimension, "
            f"got {compressed.layout!r}; {DAMAGED}"
        )
    if numel >= _ADDRESSABLE or reach >= _ADDRESSABLE:
        raise ValueError(f"layout must fit in memory, got {compressed.layout!r}; {DAMAGED}")


def stored_elements(layout: Layout, tensor: Tensor) -> Tensor:
    """The tensor's elements for ``below_autograd``: contiguous, of any shape, in the order in which they are stored."""
    return tensor if tensor.is_contiguous() else layout.flatten(without_history(tensor))


def without_history(tensor: Tensor) -> Tensor:
    """The tensor, detached if it has a gradient history."""
    return tensor.detach() if tensor.requires_grad else tensor


def as_int64(name: str, value: Key) -> int:
    """A seed or stream as the int64 of the same 64 bits, which is what operators take."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int or an int64 tensor of one element, got {value!r}")
    if not -_HALF <= value < _INT64:
        raise ValueError(f"{name} must fit in 64 bits, got {value}")
    return _signed(value)


def noise_key(tensor: Tensor, seed: Key, stream: Key) -> tuple[int, int] | tuple[Tensor, Tensor]:
    """Seed and stream as operators take them: two ints, or two tensors where one of them is a tensor."""
    if isinstance(seed, int) and isinstance(stream, int) and _fits(seed) and _fits(stream):  # as most are
        return seed - _INT64 if seed >= _HALF else seed, stream - _INT64 if stream >= _HALF else stream
    if not isinstance(seed, Tensor) and not isinstance(stream, Tensor):
        return as_int64("seed", seed), as_int64("stream", stream)
    return key_tensor("seed", seed, tensor.device), key_tensor("stream", stream, tensor.device)


def _fits(value: int) -> bool:
    return 0 <= value < _INT64 and not isinstance(value, bool)


def _signed(value: int) -> int:
    """The int64 of the same bits."""
    return value - _INT64 if value >= _HALF else value


def key_tensor(name: str, value: Key, device: torch.device) -> Tensor:
    """A seed or stream as an int64 tensor of one element on ``device``."""
    if not isinstance(value, Tensor):
        return torch.full((1,), as_int64(name, value), dtype=torch.int64, device=device)
    if value.dtype != torch.int64:
        raise TypeError(f"{name} must be an int or an int64 tensor of one element, got {value.dtype}")
    if value.numel() != 1:
        raise ValueError(f"{name} must have one element, got {value.numel()}")
    if value.device != device:
        raise ValueError(f"{name} must be on the tensor's device {device}, got {value.device}; move it with .to")
    return value
