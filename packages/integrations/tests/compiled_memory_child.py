"""Measures, in a process of its own, the memory of a compiled model's step: plain, under ``actcore.hooks``, compressed.

Live bytes are glibc's, the peak is the kernel's (``VmHWM``, which writing to ``clear_refs`` starts anew). Run with
``MALLOC_MMAP_THRESHOLD_=65536`` and ``MALLOC_TRIM_THRESHOLD_=0``, so that what is freed goes back at once; prints one
JSON object: of each kind what the forward leaves alive and how much the peak of the backward is above the bytes before
the step; and the report's sums.
"""

import contextlib
import gc
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

import actcore
import integrations

sys.path.insert(0, str(Path(__file__).parent))
from memory_child import live_bytes

ROWS, WIDTH, DEPTH = 2048, 256, 6  # 2 MiB a tensor
STATUS = Path("/proc/self/status")


def resident_peak():
    return next(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))


def start_peak():
    Path("/proc/self/clear_refs").write_text("5")
    return resident_peak()


def network():
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 8))


def measure(model, hooks, x):
    function = torch.compile(model, backend="aot_eager")
    for _ in range(2):  # compiles, and pays for the gradients
        with hooks:
            loss = function(x).sum()
        loss.backward()
    del loss
    gc.collect()
    live, resident = live_bytes(), start_peak()
    with hooks:
        loss = function(x).sum()
    gc.collect()
    alive = live_bytes() - live
    start_peak()
    loss.backward()
    return {"alive": alive, "peak": resident_peak() - resident}


def main():
    torch.set_num_threads(1)
    x = torch.randn(ROWS, WIDTH)
    found = {"plain": measure(network(), contextlib.nullcontext(), x)}
    codec = actcore.GroupAffine(bits=4)
    found["hooks"] = measure(network(), _Again(saved_tensors_hooks, *actcore.hooks(codec)), x)
    model = integrations.compress_model(network())
    found["compressed"] = measure(model, contextlib.nullcontext(), x)
    report = integrations.compression(model).report()
    found["report"] = {"original": report.original_bytes, "stored": report.stored_bytes}
    print(json.dumps(found))


class _Again:
    """A context that can be entered again."""

    def __init__(self, make, *arguments):
        self.make, self.arguments = make, arguments

    def __enter__(self):
        self.context = self.make(*self.arguments)
        return self.context.__enter__()

    def __exit__(self, *error):
        return self.context.__exit__(*error)


if __name__ == "__main__":
    main()
