"""Prints a digest of what every operator gives with the kernel set named on the command line, one line a case.

A process of its own, because a process chooses its kernel set once.
"""

import hashlib
import os
import sys

os.environ["ACTCORE_CPU"] = sys.argv[1]

import torch
from samples import BITS, DTYPES, NUMELS, as_bytes, hard_ranges, normal, not_finite

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


assert build_info()["cpu_kernels"] == sys.argv[1]
for dtype in DTYPES:
    for numel in NUMELS:
        show_group_affine(numel, normal(numel, dtype))
    for case, x in (hard_ranges(dtype) | not_finite(dtype)).items():
        show_group_affine(case, x)
        show(f"positive {case}", ops.positive_mask(x))
        mask = (x > 1).to(dtype)
        show(f"mask {case}", *ops.bit_mask_compress(mask, 0.0, 1.0))
        show(f"unmask {case}", ops.bit_mask_decompress(ops.positive_mask(x), x.numel(), dtype, -1.0, 2.0))
for bits in BITS:
    for numel in NUMELS:
        codes = torch.arange(numel).remainder(2**bits).to(torch.uint8)
        packed, misfit = ops.pack_bits(codes, bits)
        show(f"pack {bits} {numel}", packed, misfit, ops.unpack_bits(packed, bits, numel))
