"""Measures, in a process of its own, what a forward leaves alive, without and with compression.

Live bytes are glibc's: ``uordblks`` (in use on the heap) and ``hblkhd`` (in blocks of their own). Run with
``MALLOC_MMAP_THRESHOLD_=65536``; prints one JSON object: per net the bytes and the report's sums.
"""

import ctypes
import gc
import json

import torch
import torch.nn.functional as F
from torch import nn

import integrations

ROWS, WIDTH = 768, 256  # 768 KiB a tensor


class Mallinfo2(ctypes.Structure):
    _names = "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def live_bytes():
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    info = mallinfo2()
    return info.uordblks + info.hblkhd


class Attention(nn.Module):
    """q, k and v of one projection, a residual, norms, and what is kept exactly between."""

    def __init__(self):
        super().__init__()
        self.norm, self.fused, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (part.view(16, -1, 4, WIDTH // 4).transpose(1, 2) for part in self.fused(h).chunk(3, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


NETS = {
    "mlp": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        nn.LeakyReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 16, 16)),
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 10),
    ),
    "attention": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Attention(), Attention(), nn.Linear(WIDTH, 8)),
}


def left_alive(model, x):
    model(x).sum().backward()  # the first pass pays for caches
    model.zero_grad()
    gc.collect()
    before = live_bytes()
    loss = model(x).sum()
    gc.collect()
    alive = live_bytes() - before
    del loss
    return alive


def main():
    torch.set_num_threads(1)
    found = {}
    for name, build in NETS.items():
        for level in ("L1", "L1.2", "lean"):
            torch.manual_seed(0)
            model, x = build(), torch.randn(ROWS, WIDTH)
            plain = left_alive(model, x)
            integrations.compress_model(model, level)
            compressed = left_alive(model, x)
            report = integrations.compression(model).report()
            found[f"{name} {level}"] = {
                "plain": plain,
                "compressed": compressed,
                "original": report.original_bytes,
                "stored": report.stored_bytes,
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
