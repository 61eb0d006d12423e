"""Times of the codec beside copies, which ``python -m bench gnn`` records."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import actcore
from bench.results.entry import Entry, at, metric, part, series
from bench.runner.clock import in_turn, median_ratio, threads

BITS = (4, 8, 2, 1)
MEBIBYTES = 256
ROUNDS = 9
TARGET = 2.0  # what 4 bits should reach


@part("kernels", "times of the codec at one width")
class KernelTime(Entry):
    """One width."""

    bits: int = at("of the codec")
    mebibytes: int = metric("MiB", "of the float32 tensor", default=0)
    threads: int = metric("", "of torch's operators; on CUDA they mean nothing", default=0)
    compress: list[float] = series("s", "of each round")
    copy: list[float] = series("s", "of each round")
    decompress: list[float] = series("s", "of each round")
    clone: list[float] = series("s", "of each round")

    @property
    def compress_ratio(self) -> float:
        """Median over rounds of ``compress / copy_``."""
        return median_ratio(self.compress, self.copy)

    @property
    def decompress_ratio(self) -> float:
        """Median over rounds of ``decompress / clone``."""
        return median_ratio(self.decompress, self.clone)

    @property
    def best_compress_ratio(self) -> float:
        """The fastest ``compress`` over the fastest ``copy_``."""
        return min(self.compress) / min(self.copy)

    @property
    def best_decompress_ratio(self) -> float:
        """The fastest ``decompress`` over the fastest ``clone``."""
        return min(self.decompress) / min(self.clone)


def time_kernels(
    device: torch.device,
    thread_count: int,
    bits: Sequence[int] = BITS,
    mebibytes: int = MEBIBYTES,
    rounds: int = ROUNDS,
) -> list[KernelTime]:
    """Times ``actcore.GroupAffine`` on a float32 tensor of normal values.

    Args:
        device, thread_count: to run on and with.
        bits: the widths to time.
        mebibytes: of the tensor.
        rounds: of each width, after one round that is not counted.
    """
    with threads(thread_count):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(mebibytes * 2**20 // 4, generator=generator).to(device)
        return [_time_width(x, width, rounds) for width in bits]


def _time_width(x: torch.Tensor, bits: int, rounds: int) -> KernelTime:
    codec = actcore.GroupAffine(bits)
    target = torch.empty_like(x)
    compressed = actcore.compress(x, codec)
    times = in_turn(
        [
            lambda: actcore.compress(x, codec),
            lambda: target.copy_(x),
            lambda: actcore.decompress(compressed),
            lambda: x.clone(),
        ],
        rounds,
        x.device,
    )
    return KernelTime(bits, x.nbytes // 2**20, torch.get_num_threads(), *times)
