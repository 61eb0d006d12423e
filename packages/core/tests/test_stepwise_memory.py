"""What a 3-bit GELU keeps between forward and backward, measured by the C library's allocator."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NUMEL = 8 * 2**20


@pytest.fixture(scope="module")
def left():
    """Bytes alive after forward besides the output, by layer."""
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("not measured: live bytes come from mallinfo2 of glibc 2.33 or later")
    child = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("gelu_memory_child.py"), str(NUMEL)],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.mark.parametrize("layer", ["none", "nan", "nonfinite", "levels"])
def test_three_eighths_of_a_byte_an_element(left, layer):
    assert NUMEL * 3 / 8 <= left[layer] <= 1.01 * NUMEL * 3 / 8


def test_torch_keeps_the_input(left):
    """Four bytes an element, so the measure sees what is kept. Besides: a node of the graph and a page."""
    assert 4 * NUMEL <= left["torch"] <= 4 * NUMEL + 64 * 1024
