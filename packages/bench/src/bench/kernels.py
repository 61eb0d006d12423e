"""The kernels against a copy: how many times longer compressing takes than ``copy_``, decompressing than ``clone``.

Both are memory-bound, so a copy is the natural unit. The four are measured in turn, in one process, so that whatever
else the machine does hits all of them; a round's ratio compares neighbours in time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

import actcore

BITS = (4, 8, 2, 1)
MEBIBYTES = 256
ROUNDS = 9
TARGET = 2.0  # what 4 bits should reach


@dataclass(frozen=True)
class KernelTime:
    """Times of one width.

    Attributes:
        bits: of the codec.
        mebibytes: of the float32 tensor.
        threads: of torch's operators; on CUDA they mean nothing.
        compress, copy, decompress, clone: seconds of each round.
    """

    bits: int
    mebibytes: int
    threads: int
    compress: list[float]
    copy: list[float]
    decompress: list[float]
    clone: list[float]

    @property
    def compress_ratio(self) -> float:
        """Median over rounds of ``compress / copy_``."""
        return _median_ratio(self.compress, self.copy)

    @property
    def decompress_ratio(self) -> float:
        """Median over rounds of ``decompress / clone``."""
        return _median_ratio(self.decompress, self.clone)

    @property
    def best_compress_ratio(self) -> float:
        """The fastest ``compress`` over the fastest ``copy_``."""
        return min(self.compress) / min(self.copy)

    @property
    def best_decompress_ratio(self) -> float:
        """The fastest ``decompress`` over the fastest ``clone``."""
        return min(self.decompress) / min(self.clone)


def time_kernels(
    device: torch.device, threads: int, bits: Sequence[int] = BITS, mebibytes: int = MEBIBYTES, rounds: int = ROUNDS
) -> list[KernelTime]:
    """Times ``actcore.GroupAffine`` on a float32 tensor of normal values.

    Args:
        device, threads: to run on and with; the process's number of threads is restored.
        bits: the widths to time.
        mebibytes: of the tensor.
        rounds: of each width, after one round that is not counted.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(mebibytes * 2**20 // 4, generator=generator).to(device)
        return [_time_width(x, width, rounds) for width in bits]
    finally:
        torch.set_num_threads(before)


def _time_width(x: torch.Tensor, bits: int, rounds: int) -> KernelTime:
    codec = actcore.GroupAffine(bits)
    target = torch.empty_like(x)
    compressed = actcore.compress(x, codec)
    actions: list[Callable[[], object]] = [
        lambda: actcore.compress(x, codec),
        lambda: target.copy_(x),
        lambda: actcore.decompress(compressed),
        lambda: x.clone(),
    ]
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(1 + rounds):
        for action, seconds in zip(actions, times, strict=True):
            seconds.append(_time(action, x.device))
    counted = [seconds[1:] for seconds in times]
    return KernelTime(bits, x.nbytes // 2**20, torch.get_num_threads(), *counted)


def _time(action: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    result = action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    del result  # freed outside of the time: a copy_ frees nothing
    return seconds


def _median_ratio(times: Sequence[float], references: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(times, references, strict=True))
