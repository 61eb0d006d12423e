"""``python -m bench.gpu.ceilings``: what the device can do at most, as JSON: a copy, and products of matrices."""

from __future__ import annotations

import argparse
import json
from functools import partial
from statistics import median

import torch

from bench.runner.clock import in_turn
from bench.units import GIB, MIB

_ROUNDS, _DRY_ROUNDS = 9, 2


def ceilings(device: torch.device, dry: bool) -> dict[str, dict[str, float]]:
    """By what was done: figures by their unit, the median of rounds."""
    rounds = _DRY_ROUNDS if dry else _ROUNDS
    return {"copy": {"GB/s": _copy(device, 16 * MIB if dry else GIB, rounds)}, **_products(device, dry, rounds)}


def _copy(device: torch.device, nbytes: int, rounds: int) -> float:
    source = torch.ones(nbytes // 4, device=device)
    target = torch.empty_like(source)
    [seconds] = in_turn([lambda: target.copy_(source)], rounds, device)
    return 2 * nbytes / median(seconds) / 1e9


def _products(device: torch.device, dry: bool, rounds: int) -> dict[str, dict[str, float]]:
    size = 512 if dry else 8192
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator, device=device) for _ in range(2))  # zeros are faster
    found = {}
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for name, dtype, tf32 in (
            ("matmul, fp32", torch.float32, False),
            ("matmul, TF32", torch.float32, True),
            ("matmul, bf16", torch.bfloat16, False),
        ):
            torch.backends.cuda.matmul.allow_tf32 = tf32
            one, other = a.to(dtype), b.to(dtype)
            [seconds] = in_turn([partial(torch.matmul, one, other)], rounds, device)
            found[name] = {"TFLOP/s": 2 * size**3 / median(seconds) / 1e12}
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return found


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.ceilings")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    print(json.dumps(ceilings(torch.device(options.device), options.dry)))


if __name__ == "__main__":
    _main()
