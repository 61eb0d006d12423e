"""Prints how many bytes the forward of a 3-bit GELU leaves alive besides its output, in a process of its own.

Live bytes are glibc's: ``uordblks`` (in use on the heap) and ``hblkhd`` (in blocks of their own).
"""

import ctypes
import gc
import json
import sys

import torch

import actcore

BOUNDARIES = (-2.417, -0.710, -0.326, 0.0, 0.326, 0.710, 2.414)
LEVELS = (0.0, -0.088, 0.126, 0.372, 0.628, 0.874, 1.088, 1.0)


class Mallinfo2(ctypes.Structure):
    _names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def live_bytes():
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    gc.collect()
    info = mallinfo2()
    return info.uordblks + info.hblkhd


def stepwise(guard):
    return lambda x: actcore.stepwise(x, "gelu", BOUNDARIES, LEVELS, guard=guard)


LAYERS = {
    "torch": torch.nn.functional.gelu,
    **{guard: stepwise(guard) for guard in ("none", "nan", "nonfinite")},
    "levels": lambda x: actcore.round_to_levels(x, "gelu", (-0.13, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.13)),
}
torch.set_num_threads(1)
left = {}
for name, layer in LAYERS.items():
    leaf = torch.randn(int(sys.argv[1]), requires_grad=True)
    layer(leaf * 1.0).sum().backward()  # what a first call makes once
    leaf.grad = None
    # A tensor that only this layer sees, as between two layers of a model: torch's layer keeps it alive.
    x = leaf * 1.0
    before = live_bytes()
    y = layer(x)
    del x
    left[name] = live_bytes() - before + leaf.nbytes - y.nbytes
    del y, leaf
print(json.dumps(left))
