"""The nearest thing in other libraries, where they are installed. Nothing here is needed to run the benchmark.

Each function imports its library, so it is called only where ``present`` has found it.

What they compute differs: bitsandbytes rounds to the nearest entry of a table, torchao to the nearest integer and keeps
4-bit codes in a byte each. They are a measure of speed, not of error.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from bench.suites.kernels.contenders import Pass, RoundTrip

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
