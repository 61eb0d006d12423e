"""The numbers, tables and charts that are made of measured times."""

import dataclasses

import pytest

from bench.results.machine import Machine
from bench.results.record import Record
from bench.suites.kernels.entries import Measurement, Timing

from .rendering import printed

KIB = 2**10


def timing(who, what, seconds, moved=1000):
    return Timing(who, what, moved, seconds)


@pytest.fixture
def entry():
    return Measurement(
        "GroupAffine, 4 bits",
        4,
        "float32",
        256 * 2**20,
        {"compress": 1.3, "decompress": 1.1},
        None,
        [
            timing("torch", "copy_", [1.0, 2.0, 1.0], 2000),
            timing("torch", "clone", [2.0, 2.0, 2.0], 2000),
            timing("actcore", "compress", [1.25, 2.0, 2.0]),
            timing("actcore", "decompress", [3.0, 3.0, 3.0]),
            timing("plain PyTorch", "compress", [9.0, 20.0, 11.0]),
        ],
    )


@pytest.fixture
def kernel_results(entry):
    small = dataclasses.replace(entry, nbytes=4 * KIB, targets={})
    training = Measurement(
        "relu", 0, "float32", 2**20, {}, None,
        [
            timing("torch", "copy_", [1.0]),
            timing("torch", "clone", [1.0]),
            timing("actcore", "forward + backward", [3.0]),
            timing("torch", "forward + backward", [4.0]),
        ],
    )  # fmt: skip
    machine = Machine("a processor", 2, "Linux", {"torch": "2.15.0"}, "0123456789abcdef", True, "python", "today")
    libraries = {"bitsandbytes": "0.50", "fewbit": "not installed (No module named 'fewbit')"}
    settings = {"device": "cpu", "rounds": 3, "libraries": libraries}
    return Record("kernels", machine, settings, [entry, small, training], ["torchao beside it: no"], 90.0)


def test_numbers_of_a_measurement_by_hand(entry):
    compress, decompress = entry.get("actcore", "compress"), entry.get("actcore", "decompress")
    assert entry.ratio(compress) == 1.25  # of 1.25, 1 and 2
    assert entry.ratio(decompress) == 1.5
    assert entry.achievable(compress) == 0.5 / 1.25
    assert entry.achievable(decompress) == 0.5 / 3.0  # of 3, 1.5 and 3 copies
    assert compress.logical_io_gbps == 1000 / 2.0 / 1e9
    assert entry.reached(compress) is True
    assert entry.reached(decompress) is False
    assert entry.reached(entry.get("plain PyTorch", "compress")) is None
    assert entry.call_microseconds("actcore") == 5e6  # of 4.25, 5 and 5 seconds
    assert entry.call_microseconds("plain PyTorch") is None


def test_on_a_gpu_the_target_is_a_fraction_of_the_copy_s_bytes_a_second(entry):
    entry = dataclasses.replace(entry, targets={}, least_achievable=0.3)
    assert entry.reached(entry.get("actcore", "compress")) is True
    assert entry.reached(entry.get("actcore", "decompress")) is False


def test_the_tables(kernel_results):
    text = printed(kernel_results, 132)
    for part in (
        "compress, 256 MiB a tensor", "1.25 ✓", "1.50 ✗", "10.0", "logical_io_gbps", "logical_io_vs_", "achievable_%",
        "relu", "0.75", "5000000.0 ✗", "bitsandbytes 0.50", "No module named 'fewbit'",
        "Left out: torchao beside it: no", "a processor, 2 threads", "commit 0123456789 with changes",
    ):  # fmt: skip
        assert part in text, part
