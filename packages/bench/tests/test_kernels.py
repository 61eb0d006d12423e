import pytest
import torch

from bench.kernels import KernelTime, time_kernels


def test_ratios_against_values_computed_by_hand():
    time = KernelTime(4, 256, 2, compress=[2.0, 9.0, 4.0], copy=[1.0, 3.0, 1.0], decompress=[3.0], clone=[2.0])
    assert time.compress_ratio == 3.0  # of 2, 3 and 4
    assert time.best_compress_ratio == 2.0
    assert time.decompress_ratio == time.best_decompress_ratio == 1.5


def test_every_width_is_timed_and_threads_are_restored():
    before = torch.get_num_threads()
    times = time_kernels(torch.device("cpu"), threads=2, bits=(4, 1), mebibytes=1, rounds=3)
    assert torch.get_num_threads() == before
    assert [(time.bits, time.mebibytes, time.threads) for time in times] == [(4, 1, 2), (1, 1, 2)]
    for time in times:
        for seconds in (time.compress, time.copy, time.decompress, time.clone):
            assert len(seconds) == 3
            assert min(seconds) > 0
        assert time.compress_ratio == pytest.approx(
            sorted(a / b for a, b in zip(time.compress, time.copy, strict=True))[1]
        )
