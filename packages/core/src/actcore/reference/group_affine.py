"""The group-affine codec, slow and readable."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import torch
from torch import Tensor

from actcore.reference.bits import pack_bits, unpack_bits
from actcore.reference.philox import noise


def group_affine_compress(
    x: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, position: int = 0
) -> tuple[Tensor, Tensor]:
    """Codes and bounds of each group; ``csrc/codec/group_affine.h`` explains the formulas.

    ``position`` is that of the first element in the sequence of noise.
    """
    flat = x.reshape(-1)
    numel = flat.numel()
    if numel == 0:
        return torch.empty(0, dtype=torch.uint8), flat.new_empty((0, 2))
    # Padding repeats the last element, so that it changes no group's range.
    padded = torch.cat([flat, flat[-1:].expand(-numel % group_size)]).view(-1, group_size)
    compute = padded.to(_compute_dtype(x.dtype))
    finite = compute.isfinite()
    low = compute.where(finite, torch.inf).amin(1) + 0.0
    high = compute.where(finite, -torch.inf).amax(1) + 0.0
    broken = ~finite.all(1)
    kept = ~broken | (low == high) | ((low < high) & (bits > 1))
    low, high = low.where(kept, torch.nan), high.where(kept, torch.nan)
    first, second = high.where(low < high, torch.nan), low
    bounds = torch.stack([first.where(broken, low), second.where(broken, high)], 1)

    levels = 2**bits - 1 - broken.to(compute.dtype)  # of finite elements
    scale, origin, width = _scaled(low, high)
    per_unit = (levels * 256.0 if stochastic else levels) / width
    factor = per_unit.where(width > 0, 0.0)
    offset = (compute * scale[:, None] - origin[:, None]).where(finite & kept[:, None], 0.0)
    steps = torch.round(offset * factor[:, None]).long().reshape(-1)[:numel]
    codes = (steps + noise(seed, stream, position + numel)[position:]) >> 8 if stochastic else steps
    codes = codes.where((finite | ~kept[:, None]).reshape(-1)[:numel], 2**bits - 1)
    return pack_bits(codes.to(torch.uint8), bits), bounds.to(x.dtype)


def group_affine_clamped_compress(
    x: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, least: float, most: float
) -> tuple[Tensor, Tensor]:
    """Codes and bounds of the elements as they are clamped."""
    return group_affine_compress(x.clamp(least, most), bits, group_size, stochastic, seed, stream)


def group_affine_standardized_compress(
    x: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, statistics: int, inner: int,
    channels: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Codes and bounds of the elements less their mean and over their deviation, which are the third."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if not x.numel():
        return *group_affine_compress(x, bits, group_size, stochastic, seed, stream), torch.empty(2, 0, dtype=wide)
    exact = x.reshape(-1).double()
    of = _statistics(x.numel(), statistics, inner, channels)
    sizes = torch.bincount(of, minlength=statistics)
    mean = torch.zeros(statistics, dtype=torch.float64).index_add_(0, of, exact) / sizes
    squares = torch.zeros(statistics, dtype=torch.float64).index_add_(0, of, (exact - mean[of]).square())
    found = torch.stack([mean, (squares / sizes).sqrt()]).to(wide)
    given = (bits, group_size, stochastic, seed, stream, statistics, inner, channels)
    return *group_affine_standardized_codes(x, found, *given), found


def group_affine_standardized_codes(
    x: Tensor, found: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, statistics: int,
    inner: int, channels: int,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The codes and bounds for statistics that were found, as the operator's, which adds in another order."""
    mean, deviation = found
    of = _statistics(x.numel(), statistics, inner, channels)
    least = math.sqrt(torch.finfo(mean.dtype).tiny)
    standard = (x.reshape(-1).to(mean.dtype) - mean[of]) * deviation.clamp(min=least).reciprocal()[of]
    return group_affine_compress(standard.to(x.dtype), bits, group_size, stochastic, seed, stream)


def group_affine_standardized_decompress(
    codes: Tensor, bounds: Tensor, statistics: Tensor, numel: int, inner: int, channels: int, bits: int,
    group_size: int,
) -> Tensor:  # fmt: skip
    """The elements times the deviation, plus the mean."""
    standard = group_affine_decompress(codes, bounds, numel, bits, group_size)
    mean, deviation = statistics
    of = _statistics(numel, len(mean), inner, channels)
    value: Tensor = (standard.to(mean.dtype) * deviation[of] + mean[of]).to(bounds.dtype)
    return value


def group_affine_standardized_compress_given(
    x: Tensor, bits: int, group_size: int, stochastic: bool, seed: int, stream: int, means: Tensor, factors: Tensor,
    inner: int, channels: int,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Codes and bounds of the elements less their mean, times their factor; and the means with the inverse
    factors."""
    of = _statistics(x.numel(), len(means), inner, channels)
    standard = (x.reshape(-1).to(means.dtype) - means[of]) * factors[of]
    stored = group_affine_compress(standard.to(x.dtype), bits, group_size, stochastic, seed, stream)
    return *stored, torch.stack([means, factors.reciprocal()])


def group_affine_standardized_activation(
    codes: Tensor, bounds: Tensor, scales: Tensor, shifts: Tensor, added: Tensor | None, numel: int, inner: int,
    channels: int, bits: int, group_size: int, function: str,
) -> Tensor:  # fmt: skip
    """The elements as they were normalized, times the scale, plus the shift, plus what is added, through the function,
    each of which rounds."""
    order = (numel, inner, channels, bits, group_size)
    value = group_affine_standardized_decompress(codes, bounds, torch.stack([shifts, scales]), *order)
    if added is not None:
        value = value + added.reshape(-1)
    return value if function == "none" else _FUNCTIONS[function](value)


_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def _statistics(numel: int, count: int, inner: int, channels: int) -> Tensor:
    """Of which statistic each element is."""
    element = torch.arange(numel)
    if channels:
        each = numel // inner // count
        return (element // channels // inner * channels + element % channels) // each
    return element // inner % count


def has_wide_group(x: Tensor, group_size: int) -> Tensor:
    """Whether codes would leave nothing of most elements of a group: no finite bounds, or at least two elements, a
    sixteenth of all and a quarter of those between the bounds, are not zero and below a thousandth of the range."""
    for group in x.reshape(-1).to(_compute_dtype(x.dtype)).split(group_size) if x.numel() else ():
        if not group.isfinite().all():
            return torch.ones(1, dtype=torch.int32)
        low, high = group.min(), group.max()
        between = (group > low) & (group < high)
        lost = int((between & (group != 0) & (group.abs() < high / 1000 - low / 1000)).sum())
        if lost > 1 and 16 * lost >= group.numel() and 4 * lost >= int(between.sum()):
            return torch.ones(1, dtype=torch.int32)
    return torch.zeros(1, dtype=torch.int32)


def group_affine_decompress(codes: Tensor, bounds: Tensor, numel: int, bits: int, group_size: int) -> Tensor:
    """``low + code * step`` with one rounding, and the upper bound itself for the top code; of a group with elements
    that are not finite, NaN for the top code, and the upper bound for the one before."""
    unpacked = unpack_bits(codes, bits, numel)
    group = torch.arange(numel) // group_size
    first, second = bounds.to(_compute_dtype(bounds.dtype)).unbind(1)
    broken = ~(first <= second)
    low, high = second.where(broken, first), second.where(~broken | ~(first > second), first)
    levels = 2**bits - 1 - broken.long()
    scale, origin, width = _scaled(low, high)
    step = (width / levels).where(levels > 0, torch.nan)  # the only code of finite elements is the upper bound's
    value = _fma(unpacked, step[group], origin[group]) / scale[group]
    value = torch.where(unpacked == levels[group], high[group], value)
    return torch.where(unpacked > levels[group], torch.nan, value).to(bounds.dtype)


def group_affine_rows_compress(
    x: Tensor, bits: Tensor, nbytes: int, group_size: int, stochastic: bool, seed: int, stream: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Each row by itself, with its own width and the noise of its place in the whole."""
    rows = x.reshape(len(bits), x.numel() // max(len(bits), 1))
    groups = (rows.shape[1] + group_size - 1) // group_size
    codes = torch.zeros(nbytes, dtype=torch.uint8)
    bounds = torch.full((len(bits), groups, 2), torch.nan, dtype=x.dtype)
    offsets, fits = _row_offsets(bits, rows.shape[1], nbytes)
    for row, offset in offsets.items():
        position = row * rows.shape[1]
        packed, bounds[row] = group_affine_compress(
            rows[row], int(bits[row]), group_size, stochastic, seed, stream, position
        )
        codes[offset : offset + len(packed)] = packed
    return codes, bounds.view(-1, 2), torch.tensor([int(not fits)], dtype=torch.int32)


def group_affine_rows_decompress(
    codes: Tensor, bounds: Tensor, bits: Tensor, numel: int, group_size: int
) -> tuple[Tensor, Tensor]:
    """Each row by itself; one that is not stored is NaN."""
    size = numel // max(len(bits), 1)
    values = torch.full((len(bits), size), torch.nan, dtype=bounds.dtype)
    offsets, fits = _row_offsets(bits, size, len(codes))
    for row, offset in offsets.items():
        packed = codes[offset : offset + (size * int(bits[row]) + 7) // 8]
        own_bounds = bounds.view(len(bits), -1, 2)[row]
        values[row] = group_affine_decompress(packed, own_bounds, size, int(bits[row]), group_size)
    return values.view(-1), torch.tensor([int(not fits)], dtype=torch.int32)


def _row_offsets(bits: Tensor, row_size: int, nbytes: int) -> tuple[dict[int, int], bool]:
    """First byte of each row that is stored, and whether all are: widths from 1 to 8 that end within ``nbytes``."""
    offsets, end = {}, 0
    for row, width in enumerate(bits.tolist()):
        if 1 <= width <= 8:
            begin, end = end, end + (row_size * width + 7) // 8
            if end <= nbytes:
                offsets[row] = begin
    return offsets, len(offsets) == len(bits)


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _scaled(low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A power of two that keeps high - low finite and its steps normal; low and the range, multiplied by it."""
    tiny, raised = (2.0**-900, 2.0**512) if low.dtype == torch.float64 else (2.0**-100, 2.0**64)
    width = high - low
    scale = torch.ones_like(width)
    scale[width.isinf()] = 0.5
    scale[(width > 0) & (width < tiny)] = raised
    origin = low * scale
    return scale, origin, high * scale - origin


def _fma(code: Tensor, step: Tensor, origin: Tensor) -> Tensor:
    """``code * step + origin``, rounded once. PyTorch has no fma, so the sum is made exactly and then rounded."""
    if step.dtype == torch.float64:
        exact = [_exact(c, s, o) for c, s, o in zip(code.tolist(), step.tolist(), origin.tolist(), strict=True)]
        return torch.tensor(exact, dtype=torch.float64)
    product, origin = code.double() * step.double(), origin.double()  # exact: 8 + 24 bits
    total = product + origin
    # What the float64 sum lost (Knuth's TwoSum). Where it lost anything, an odd last bit keeps the second rounding,
    # to float32, from seeing a tie that is not there.
    back = total - product
    lost = (product - (total - back)) + (origin - back)
    pattern = total.view(torch.int64)
    even = (pattern & 1) == 0
    toward = torch.where((lost > 0) == (total > 0), 1, -1)
    total = torch.where((lost != 0) & even & total.isfinite(), (pattern + toward).view(torch.float64), total)
    return total.float()


def _exact(code: int, step: float, origin: float) -> float:
    if step != step or origin != origin:
        return float("nan")
    return float(code * Fraction(step) + Fraction(origin))
