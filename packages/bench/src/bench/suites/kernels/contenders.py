"""What runs side by side in a case: actcore, plain PyTorch, and the nearest thing in other libraries.

The codecs in plain PyTorch store the same bytes, as one writes them without kernels of one's own. Other libraries take
part where they are installed. What they compute differs: bitsandbytes rounds to the nearest entry of a table, torchao
to the nearest integer and keeps 4-bit codes in a byte each. They are a measure of speed, not of error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from bench.runner.clock import Action

COMPRESS, DECOMPRESS, TRAIN = "compress", "decompress", "forward + backward"
COPY, CLONE = "copy_", "clone"
ACTCORE, TORCH, PLAIN = "actcore", "torch", "plain PyTorch"


@dataclass(frozen=True)
class Contender:
    """One thing to time.

    Attributes:
        who: whose code it is: ``"actcore"``, ``"torch"``, ``"plain PyTorch"`` or a library.
        what: ``"compress"``, ``"decompress"``, ``"forward + backward"``, or the yardsticks ``"copy_"`` and ``"clone"``.
        moved_bytes: that it must read and write at least, each once.
        action: runs it.
    """

    who: str
    what: str
    moved_bytes: int
    action: Action


@dataclass(frozen=True)
class RoundTrip:
    """A way to store a tensor, and back.

    Attributes:
        who: whose.
        compress, decompress: of a flat tensor; what is between them is its own affair.
        parts: the tensors of a stored form, which are written by the one and read by the other.
        dtypes: that it takes; ``None`` for all of the case's.
    """

    who: str
    compress: Callable[[Tensor], Any]
    decompress: Callable[[Any], Tensor]
    parts: Callable[[Any], list[Tensor]]
    dtypes: tuple[torch.dtype, ...] | None = None

    def contenders(self, x: Tensor) -> Iterator[Contender]:
        """Both ways, for the tensor ``x``."""
        if self.dtypes is not None and x.dtype not in self.dtypes:
            return
        stored = self.compress(x)
        moved = x.nbytes + sum(part.nbytes for part in self.parts(stored))
        yield Contender(self.who, COMPRESS, moved, lambda: self.compress(x))
        yield Contender(self.who, DECOMPRESS, moved, lambda: self.decompress(stored))


@dataclass(frozen=True)
class Pass:
    """An operator in training: forward, then backward with a given gradient.

    Attributes:
        who: whose.
        function: of a tensor that requires gradients.
    """

    who: str
    function: Callable[[Tensor], Tensor]

    def contenders(self, x: Tensor) -> Iterator[Contender]:
        """Forward and backward together, for the tensor ``x``."""
        saved: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        leaf = x.detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = self.function(leaf)
        # On the device: a host draws normal values of a gibibyte in seconds.
        gradient = torch.randn(y.shape, generator=torch.Generator(x.device).manual_seed(1), device=x.device).to(y)
        # What is kept besides input and result is written and read; the input or the result, kept, is only read again.
        known = {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()}
        kept = sum(part.nbytes * (1 if part.untyped_storage().data_ptr() in known else 2) for part in saved)
        moved = 2 * x.nbytes + 2 * y.nbytes + kept
        del y
        saved.clear()

        def run() -> object:
            leaf = x.detach().requires_grad_()
            y = self.function(leaf)
            return y, torch.autograd.grad(y, leaf, gradient)

        yield Contender(self.who, TRAIN, moved, run)


def yardsticks(x: Tensor) -> Iterator[Contender]:
    """A copy into memory that is there, and one into new memory: the units of the results."""
    target = torch.empty_like(x)
    yield Contender(TORCH, COPY, 2 * x.nbytes, lambda: target.copy_(x))
    yield Contender(TORCH, CLONE, 2 * x.nbytes, lambda: x.clone())


GROUP = 256


def pack(codes: Tensor, bits: int) -> Tensor:
    """``UInt8[n] -> UInt8[bits*n/8]``; n is a multiple of 8."""
    if bits == 8:
        return codes
    whole = 8 % bits == 0  # codes fit in bytes; otherwise eight of them in the low bytes of a 64-bit word
    fields = 8 // bits if whole else 8
    words = codes.view(-1, fields) if whole else codes.view(-1, fields).long()
    packed = words[:, 0].clone()
    for i in range(1, fields):
        packed |= words[:, i] << (bits * i)
    return packed if whole else packed.view(torch.uint8).view(-1, 8)[:, :bits].contiguous().view(-1)


def unpack(packed: Tensor, bits: int, numel: int) -> Tensor:
    """Undoes ``pack``."""
    if bits == 8:
        return packed
    whole = 8 % bits == 0
    fields = 8 // bits if whole else 8
    if whole:
        words = packed
    else:
        padded = packed.new_zeros(numel // 8, 8)
        padded[:, :bits] = packed.view(-1, bits)
        words = padded.view(torch.int64).view(-1)
    codes = packed.new_empty(numel // fields, fields)
    for i in range(fields):
        codes[:, i] = (words >> (bits * i)) & (2**bits - 1)
    return codes.view(-1)


def compress_groups(x: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    """``Float[n] -> (codes: UInt8[bits*n/8], low: Float[groups, 1], high: Float[groups, 1])``, rounded at random."""
    low, high = torch.aminmax(x.view(-1, GROUP), dim=1, keepdim=True)
    value = _groups(x)
    step = _step(low, high, bits)
    value = (value - low).div_(step)
    codes = value.add_(torch.rand_like(value)).floor_().clamp_(0, 2**bits - 1).to(torch.uint8)
    return pack(codes.view(-1), bits), low, high


def decompress_groups(stored: tuple[Tensor, Tensor, Tensor], bits: int, numel: int) -> Tensor:
    """Undoes ``compress_groups``, up to the rounding."""
    packed, low, high = stored
    codes = unpack(packed, bits, numel).view(-1, GROUP)
    step = _step(low, high, bits)
    return codes.to(step.dtype).mul_(step).add_(low).to(low.dtype).view(-1)


def compress_float8(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``Float[n] -> (Float8[groups, GROUP], scale: Float[groups, 1])``, rounded to nearest as torch's cast does."""
    scale = x.view(-1, GROUP).abs().amax(dim=1, keepdim=True).div_(torch.finfo(dtype).max)
    scale = torch.where(scale == 0, 1, scale)
    return _groups(x).div(scale).to(dtype), scale


def decompress_float8(stored: tuple[Tensor, Tensor]) -> Tensor:
    """Undoes ``compress_float8``, up to the rounding."""
    codes, scale = stored
    return codes.to(_working(scale.dtype)).mul_(scale).to(scale.dtype).view(-1)


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _groups(x: Tensor) -> Tensor:
    return x.view(-1, GROUP).to(_working(x.dtype))


def _step(low: Tensor, high: Tensor, bits: int) -> Tensor:
    dtype = _working(low.dtype)
    step = (high.to(dtype) - low.to(dtype)).div_(2**bits - 1)
    return torch.where(step == 0, 1, step)


LIBRARIES = ("bitsandbytes", "torchao", "fewbit")
_GROUP = 256
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def present() -> dict[str, str]:
    """Each library's version, or why it does not take part: a text that starts with "not "."""
    return {library: _state(library) for library in LIBRARIES}


def _state(library: str) -> str:
    try:
        importlib.import_module(library)
    except ModuleNotFoundError as error:
        return f"not installed ({error})"
    except Exception as error:  # a library may fail in any way where it does not fit this torch or this machine
        return f"not usable ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'})"
    try:
        return version(library)
    except PackageNotFoundError:
        return "of unknown version"


def bitsandbytes(bits: int) -> RoundTrip:
    """Blockwise quantisation to a table: 8 bits "dynamic", 4 bits NF4. Dettmers et al., 2022 and 2023."""

    functional = importlib.import_module("bitsandbytes.functional")

    def compress(x: Tensor) -> Any:
        if bits == 8:
            return functional.quantize_blockwise(x, blocksize=_GROUP)
        return functional.quantize_4bit(x, blocksize=_GROUP, quant_type="nf4")

    def decompress(stored: Any) -> Tensor:
        if bits == 8:
            return functional.dequantize_blockwise(*stored)  # type: ignore[no-any-return]
        return functional.dequantize_4bit(*stored)  # type: ignore[no-any-return]

    def parts(stored: Any) -> list[Tensor]:
        codes, state = stored
        return [codes, state.absmax]

    return RoundTrip("bitsandbytes", compress, decompress, parts, _FLOATS)


def torchao(bits: int) -> RoundTrip:
    """Group-wise affine quantisation to int8, or to 0..15 in a byte each."""
    primitives = importlib.import_module("torchao.quantization.quant_primitives")
    block, low, high = (1, _GROUP), 0, 2**bits - 1

    def compress(x: Tensor) -> Any:
        rows = x.view(-1, _GROUP)
        kind = primitives.MappingType.ASYMMETRIC
        scale, zero = primitives.choose_qparams_affine(rows, kind, block, torch.uint8, low, high)
        codes = primitives.quantize_affine(rows, block, scale, zero, torch.uint8, low, high)
        return codes, scale, zero, x.dtype

    def decompress(stored: Any) -> Tensor:
        codes, scale, zero, dtype = stored
        rows: Tensor = primitives.dequantize_affine(
            codes, block, scale, zero, torch.uint8, low, high, output_dtype=dtype
        )
        return rows.view(-1)

    return RoundTrip("torchao", compress, decompress, lambda stored: list(stored[:3]), _FLOATS)


def fewbit_gelu(bits: int) -> Pass:
    """GELU with a gradient of few bits. Novikov et al., 2022."""
    gelu: Callable[..., Tensor] = importlib.import_module("fewbit.functional").gelu
    return Pass("fewbit", lambda x: gelu(x, bits=bits))
