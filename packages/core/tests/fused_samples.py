"""What the tests of the fused operators share."""

import torch

from .samples import normal

# Options of poolings by name: shape, kernel, stride, padding, dilation, ceil_mode.
POOLS = {
    "halves": ((2, 3, 8, 10), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "resnet": ((2, 2, 13, 17), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "overlap": ((1, 3, 9, 7), [3, 2], [1, 1], [1, 1], [1, 1], False),
    "ceil": ((2, 2, 7, 10), [3, 3], [2, 2], [0, 0], [1, 1], True),
    "ceil that starts in the padding": ((1, 2, 5, 7), [2, 2], [2, 2], [1, 1], [1, 1], True),
    "dilated": ((2, 1, 12, 11), [3, 2], [2, 3], [1, 1], [2, 3], False),
    "one place": ((1, 2, 5, 5), [1, 1], [2, 2], [0, 0], [1, 1], False),
    "256 places": ((1, 2, 20, 20), [16, 16], [3, 3], [8, 8], [1, 1], True),
    "one row": ((3, 2, 21), [3], [2], [1], [1], False),
    "one row, five places": ((2, 2, 20), [5], [1], [2], [1], True),
    "volume": ((1, 2, 6, 7, 5), [2, 3, 2], [2, 1, 2], [1, 1, 0], [1, 2, 1], True),
    "tiles that end in a row": ((1, 2, 41, 39), [3, 3], [2, 2], [1, 1], [1, 1], False),
    "no batch": ((2, 6, 6), [2, 2], [2, 2], [0, 0], [1, 1], False),
}


def levels_for(bits, dtype=torch.float32, *, missing=0):
    """Boundaries and levels of ``bits`` bits, ``missing`` boundaries fewer than fit."""
    count = 2**bits - 1 - missing
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    boundaries = torch.linspace(-2, 2, count, dtype=compute) if count > 1 else torch.zeros(count, dtype=compute)
    return boundaries, normal(count + 1, compute, seed=1)
