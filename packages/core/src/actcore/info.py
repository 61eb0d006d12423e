"""What was built, and whether it works here: ``build_info`` and the checks behind ``python -m actcore``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import actcore._native as _native
from actcore import _library, reference
from actcore._version import __version__
from actcore.dtypes import FLOATS
from actcore.fused import FUSED_OPERATORS
from actcore.ops import CPU_OPERATORS, GRAPH_OPERATORS, OPERATORS, WRITING_OPERATORS

_SEED, _STREAM = 2026, 7


def build_info() -> dict[str, Any]:
    """Return versions of actcore and torch, the compiler, the CPU kernels and the CUDA architectures.

    Returns:
        A dictionary of plain values: ``version``, ``built_with_torch``, ``torch``, ``compiler``, ``cpu_kernels`` (in
        use), ``runnable_cpu_kernels``, ``threads``, ``cuda_version`` and ``cuda_architectures`` of the CUDA operators
        (empty if they were not built), and ``cuda_missing``, the reason why they are not loaded.
    """
    return {
        "version": __version__,
        "built_with_torch": _native.torch_version,
        "torch": torch.__version__,
        "compiler": _native.compiler,
        "cpu_kernels": _native.cpu_kernels(),
        "runnable_cpu_kernels": _native.runnable_cpu_kernels(),
        "threads": torch.get_num_threads(),
        "cuda_version": _native.cuda_version,
        "cuda_architectures": _native.cuda_architectures.split(),
        "cuda_missing": _library.cuda_missing,
    }


def devices() -> list[torch.device]:
    """The devices that the operators can be checked on: the CPU, and the current GPU when one is usable."""
    found = [torch.device("cpu")]
    if torch.cuda.is_available() and not _library.missing_on(current := _current_gpu()):
        found.append(current)
    return found


def unusable_gpu() -> str:
    """Why the operators do not run on the current GPU; empty where they do, and where there is none."""
    return _library.missing_on(_current_gpu()) if torch.cuda.is_available() else ""


def _current_gpu() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device())


def check_operators(device: torch.device) -> Iterator[tuple[str, bool]]:
    """Compares every operator with the reference and yields its name and whether they agree: bit for bit, and the
    statistics that one finds within their rounding."""
    results = dict.fromkeys((*OPERATORS, *WRITING_OPERATORS, *GRAPH_OPERATORS), True)
    if device.type == "cpu":
        for x in (torch.linspace(-3, 5, 1000), torch.tensor([1.0, 2.0, -1e9, 3.0])):
            results["has_wide_group"] &= _agrees("has_wide_group", (x, 256), device)
    else:
        for operator in CPU_OPERATORS:
            del results[operator]
    for x, given in _standardized():
        compresses, restores = _standardizes(x, given, device)
        results["group_affine_standardized_compress"] &= compresses
        results["group_affine_standardized_decompress"] &= restores
    for arguments in _activated():
        results["group_affine_standardized_activation"] &= _agrees(
            "group_affine_standardized_activation", arguments, device
        )
    for name, agrees in _written(device):
        results[name] &= agrees
    for name, agrees in _graphs(device):
        results[name] &= agrees
    for operator, arguments in _calls():
        results[operator] &= _agrees(operator, arguments, device)
    for dtype in FLOATS:
        x = torch.linspace(-3, 5, 1000, dtype=torch.float64).sin().to(dtype)
        sign = torch.ops.actcore.positive_mask(x.to(device))
        results["positive_mask"] &= _same(sign, reference.pack_bits((x > 0).to(torch.uint8), 1))
        mask = (x > 0).to(dtype) * 2
        packed, misfit = torch.ops.actcore.bit_mask_compress(mask.to(device), 0.0, 2.0)
        results["bit_mask_compress"] &= _same(packed, reference.pack_bits((x > 0).to(torch.uint8), 1))
        results["bit_mask_compress"] &= misfit.item() == 0
        results["bit_mask_decompress"] &= _same(
            torch.ops.actcore.bit_mask_decompress(packed, x.numel(), dtype, 0.0, 2.0), mask
        )
    for bits in range(1, 9):
        small = (torch.arange(1000) * 37 % 2**bits).to(torch.uint8)
        packed, misfit = torch.ops.actcore.pack_bits(small.to(device), bits)
        results["pack_bits"] &= _same(packed, reference.pack_bits(small, bits)) and misfit.item() == 0
        results["unpack_bits"] &= _same(torch.ops.actcore.unpack_bits(packed, bits, 1000), small)
    yield from results.items()
    yield from _check_fused_operators(device)


def _check_fused_operators(device: torch.device) -> Iterator[tuple[str, bool]]:
    """The same for the fused operators. Function values are ReLU's: others differ between libraries."""
    results = dict.fromkeys(FUSED_OPERATORS, True)

    def compare(name: str, *arguments: Any) -> Any:
        expected = getattr(reference, name)(*arguments)
        moved = [value.to(device) if isinstance(value, torch.Tensor) else value for value in arguments]
        got = getattr(torch.ops.actcore, name)(*moved)
        pairs = zip(got, expected, strict=True) if isinstance(expected, tuple) else [(got, expected)]
        results[name] &= all(_same(one, other) for one, other in pairs)
        return expected

    pools = (
        ([3], [2], [1], [1], True),
        ([2, 3], [1, 2], [1, 1], [2, 1], False),
        ([2, 2, 2], [2] * 3, [0] * 3, [1] * 3, True),
    )
    for dtype in FLOATS:
        x = torch.linspace(-3, 5, 1000, dtype=torch.float64).sin().to(dtype)
        compare("relu_mask", x)
        _, mask = compare("dropout_mask", x, 0.3, _SEED, _STREAM)
        compare("mask_backward", x, mask, 1.5)
        table = torch.linspace(-1, 1, 256, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        for bits in range(1, 9):
            _, codes = compare("stepwise", x, "relu", [], table[: 2**bits - 1], bits)
            compare("stepwise_codes", x, table[: 2**bits - 1], bits)
            compare("stepwise_backward", x, codes, table[: 2**bits], bits)
            compare("stepwise_codes", x, table[: 2**bits - 1] + 1, bits, True, "nonfinite")
            codes = compare("level_codes", x, x, table[: 2**bits], bits, _SEED, _STREAM, None, "nan")
            compare("stepwise_backward", x, codes, table[: 2**bits], bits, True)
        for options in pools:
            image = x[: 4 * 5 * 6 * 3].view(3, 4, 5, 6)
            output, packed = compare("max_pool", image, *options)
            compare("max_pool_backward", output, packed, list(image.shape), *options)
            indices = compare("window_index_unpack", packed, list(image.shape), *options)
            compare("window_index_pack", indices, list(image.shape), *options)
    yield from results.items()


def _standardized() -> Iterator[tuple[torch.Tensor, tuple[Any, ...]]]:
    """Tensors with the arguments of what standardises them: end to end, and channels last."""
    for dtype in FLOATS:
        x = torch.linspace(-3, 5, 1050, dtype=torch.float64).sin().to(dtype)
        for inner, channels in ((5, 0), (15, 35)):
            yield x, (4, 64, True, _SEED, _STREAM, 70, inner, channels)


def _standardizes(x: torch.Tensor, given: tuple[Any, ...], device: torch.device) -> tuple[bool, bool]:
    """Whether the two operators agree with the reference: on what follows from the statistics that the first finds bit
    for bit, and on these up to their rounding.

    At most 64 elements are added before a sum goes on in float64. Of elements that are about as far from zero as from
    each other, that moves mean and deviation by at most 64 units of the last place of both together; then each is
    rounded.
    """
    *stored, found = (part.cpu() for part in torch.ops.actcore.group_affine_standardized_compress(x.to(device), *given))
    codes = reference.group_affine_standardized_codes(x, found, *given)
    expected = reference.group_affine_standardized_compress(x, *given)[2]
    near = (found - expected).abs() <= 65 * torch.finfo(found.dtype).eps * expected.abs().sum(0)
    bits, size, *_, inner, channels = given
    back = (*stored, found, x.numel(), inner, channels, bits, size)
    compresses = bool(near.all()) and all(map(_same, stored, codes))
    return compresses, _agrees("group_affine_standardized_decompress", back, device)


def _activated() -> Iterator[tuple[Any, ...]]:
    """Arguments of ``group_affine_standardized_activation``. Functions but ReLU differ between libraries."""
    for x, given in _standardized():
        bits, size, *_, statistics, inner, channels = given
        codes, bounds, found = reference.group_affine_standardized_compress(x, *given)
        scales, shifts = torch.linspace(-2, 2, statistics).to(found.dtype), found[0].contiguous()
        for added, function in ((None, "none"), (x, "none"), (None, "relu"), (x, "relu")):
            yield codes, bounds, scales, shifts, added, x.numel(), inner, channels, bits, size, function


def _written(device: torch.device) -> Iterator[tuple[str, bool]]:
    """The operators that write into given tensors, and whether they agree with the reference."""
    for x, given in _standardized():
        bits, size, stochastic, seed, stream, _, inner, channels = given
        wide = torch.promote_types(x.dtype, torch.float32)
        means, factors = torch.linspace(-1, 1, 70, dtype=wide), torch.linspace(0.5, 3, 70, dtype=wide)
        options = (bits, size, stochastic, seed, stream)
        expected = reference.group_affine_standardized_compress_given(x, *options, means, factors, inner, channels)
        written = [torch.empty_like(part, device=device) for part in expected]
        torch.ops.actcore.group_affine_standardized_compress.given(
            x.to(device), *options, means.to(device), factors.to(device), inner, channels, *written
        )
        agree = all(_same(one, other) for one, other in zip(written, expected, strict=True))
        yield "group_affine_standardized_compress.given", agree


def _graphs(device: torch.device) -> Iterator[tuple[str, bool]]:
    """The operators for graphs, which have one tensor for all that the others return, and whether they agree."""
    ops, stream = torch.ops.actcore, torch.tensor([_STREAM])
    for dtype in FLOATS:
        x = torch.linspace(-3, 5, 1000, dtype=torch.float64).sin().to(dtype)
        codes, bounds = reference.group_affine_compress(x, 3, 256, True, _SEED, _STREAM)
        gap = torch.zeros(-codes.numel() % (2 * dtype.itemsize), dtype=torch.uint8)
        payload = torch.cat([codes, gap, bounds.view(-1).view(torch.uint8)])
        got = ops.group_affine_compress.graph(x.to(device), 3, 256, True, _SEED, stream.to(device))
        yield "group_affine_compress.graph", _same(got, payload)
        back = reference.group_affine_decompress(codes, bounds, 1000, 3, 256)
        got = ops.group_affine_decompress.graph(payload.to(device), 1000, dtype, 3, 256)
        yield "group_affine_decompress.graph", _same(got, back)
        mask = reference.pack_bits((x > 0).to(torch.uint8), 1)
        yield "positive_mask.graph", _same(ops.positive_mask.graph(x.to(device)), mask)
        signs = (x > 0).to(dtype)
        yield "bit_mask_compress.graph", _same(ops.bit_mask_compress.graph(signs.to(device), 0.0, 1.0), mask)
        got = ops.bit_mask_decompress.graph(mask.to(device), 1000, dtype, 0.0, 1.0)
        yield "bit_mask_decompress.graph", _same(got, signs)


def _calls() -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Calls of the operators that have a namesake in the reference, on the CPU."""
    for dtype in FLOATS:
        x = torch.linspace(-3, 5, 1000, dtype=torch.float64).sin().to(dtype)
        key = (_SEED, _STREAM)
        for bits in range(1, 9):
            arguments = (x, bits, 256, True)
            yield from _with_both_keys("group_affine_compress", arguments, key)
            yield "group_affine_clamped_compress", (*arguments, *key, -0.5, 0.75)
            codes, bounds = reference.group_affine_compress(*arguments, *key)
            yield "group_affine_decompress", (codes, bounds, x.numel(), bits, 256)
        widths = torch.tensor([3, 1, 8, 5])
        of_rows = (x, widths, 250 * 17 // 8 + 4, 96, True)
        yield from _with_both_keys("group_affine_rows_compress", of_rows, key)
        codes, bounds, _ = reference.group_affine_rows_compress(*of_rows, *key)
        yield "group_affine_rows_decompress", (codes, bounds, widths, x.numel(), 96)
        for format in (torch.float8_e4m3fn, torch.float8_e5m2):
            yield from _with_both_keys("float8_compress", (x, format, 256, True), key)
            codes, bounds = reference.float8_compress(x, format, 256, True, *key)
            yield "float8_decompress", (codes, bounds, format, 256)
    for low, high in ((-5, 5), (0, 255), (-300, 2707), (-(2**40), 2**62)):
        integers = low + torch.arange(1000) * ((high - low) // 1000) + torch.arange(1000) % 11
        yield "narrow_compress", (integers, low, high)
        yield "narrow_decompress", (reference.narrow_compress(integers, low, high)[0], 1000, torch.int64, low, high)


def _with_both_keys(
    operator: str, arguments: tuple[Any, ...], key: tuple[int, int]
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    yield operator, (*arguments, *key)
    yield f"{operator}.tensor", (*arguments, *(torch.tensor([part]) for part in key))


def _agrees(operator: str, arguments: tuple[Any, ...], device: torch.device) -> bool:
    name, _, overload = operator.partition(".")
    own = [argument.to(device) if isinstance(argument, torch.Tensor) else argument for argument in arguments]
    got = getattr(getattr(torch.ops.actcore, name), overload or "default")(*own)
    if overload:
        arguments = (*arguments[:-2], *(part.item() for part in arguments[-2:]))
    expected = getattr(reference, name)(*arguments)
    if isinstance(got, torch.Tensor):
        got, expected = (got,), (expected,)
    return all(_same(one, other) for one, other in zip(got, expected, strict=True))


def _same(got: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.equal(got.cpu(), expected)
