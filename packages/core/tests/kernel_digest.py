"""Prints a digest of what every operator gives with the kernel set named on the command line, one line a case.

A process of its own, because a process chooses its kernel set once.
"""

import hashlib
import os
import sys

os.environ["ACTCORE_CPU"] = sys.argv[1]

import torch
from samples import BITS, DTYPES, FORMATS, INTEGERS, NUMELS, as_bytes, hard_ranges, integers, normal, not_finite

from actcore import build_info

ops = torch.ops.actcore
torch.set_num_threads(1)


def show(case, *tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(as_bytes(tensor).numpy().tobytes())
    print(digest.hexdigest()[:16], case)


def show_group_affine(case, x):
    for bits in BITS:
        for stochastic in (True, False):
            codes, bounds = ops.group_affine_compress(x, bits, 96, stochastic, 5, 7)
            value = ops.group_affine_decompress(codes, bounds, x.numel(), bits, 96)
            show(f"{case} {x.dtype} bits={bits} stochastic={stochastic}", codes, bounds, value)
    show(f"clamped {case} {x.dtype}", *ops.group_affine_clamped_compress(x, 5, 96, True, 5, 7, -1.25, 0.75))
    numel = x.numel()
    for count, channels in ((1, 0), (33, 33)) if numel else ():
        x = x.reshape(-1)[: numel // count * count]
        inner = x.numel() // count or 1
        stored = ops.group_affine_standardized_compress(x, 5, 96, True, 5, 7, count, inner, channels)
        value = ops.group_affine_standardized_decompress(*stored, x.numel(), inner, channels, 5, 96)
        show(f"standardised {case} {x.dtype}", *stored, value)
        codes, bounds, (means, deviations) = stored
        order = (x.numel(), inner, channels, 5, 96, "relu")
        value = ops.group_affine_standardized_activation(codes, bounds, deviations, means, x.view(-1), *order)
        show(f"activated {case} {x.dtype}", value)
    show(f"wide {case} {x.dtype}", ops.has_wide_group(x, 96))


def show_float8(case, x):
    for format in FORMATS.values():
        for stochastic in (True, False):
            codes, bounds = ops.float8_compress(x, format, 96, stochastic, 5, 7)
            value = ops.float8_decompress(codes, bounds, format, 96)
            show(f"{case} {x.dtype} {format} stochastic={stochastic}", codes, bounds, value)


assert build_info()["cpu_kernels"] == sys.argv[1]
for dtype in DTYPES:
    for numel in NUMELS:
        show_group_affine(numel, normal(numel, dtype))
        show_float8(numel, normal(numel, dtype))
    for case, x in (hard_ranges(dtype) | not_finite(dtype)).items():
        show_group_affine(case, x)
        show_float8(case, x)
        show(f"positive {case}", ops.positive_mask(x))
        mask = (x > 1).to(dtype)
        show(f"mask {case}", *ops.bit_mask_compress(mask, 0.0, 1.0))
        show(f"unmask {case}", ops.bit_mask_decompress(ops.positive_mask(x), x.numel(), dtype, -1.0, 2.0))
    widths = torch.tensor([3, 1, 8, 5, 2, 7, 4, 6, 8])
    show(f"rows {dtype}", *ops.group_affine_rows_compress(normal(9 * 333, dtype), widths, 2000, 96, True, 5, 7))
for dtype in INTEGERS:
    for numel in NUMELS:
        for low, high in (
            (0, 7),
            (-9 if dtype.is_signed else 9, 100),
            (torch.iinfo(dtype).min, torch.iinfo(dtype).max),
        ):
            packed, misfit = ops.narrow_compress(integers(numel, low, high, dtype), low, high)
            back = ops.narrow_decompress(packed, numel, dtype, low, high)
            show(f"narrow {dtype} {numel} {low} {high}", packed, misfit, back)
for bits in BITS:
    for numel in NUMELS:
        codes = torch.arange(numel).remainder(2**bits).to(torch.uint8)
        packed, misfit = ops.pack_bits(codes, bits)
        show(f"pack {bits} {numel}", packed, misfit, ops.unpack_bits(packed, bits, numel))
