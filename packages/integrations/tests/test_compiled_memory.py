"""A compiled region under compression: live bytes are the report's, and the peak of backward falls with them; and the
loss in chunks of a compiled model."""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TENSOR = 2 * 2**20

pytestmark = pytest.mark.undisturbed


def run_child(name, *arguments):
    """What a script prints that measures its own process."""
    if not sys.platform.startswith("linux") or not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("not measured: live bytes come from mallinfo2 of glibc 2.33 or later")
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("not measured: the kernel does not start the resident peak anew")
    child = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name(name), *arguments],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


@pytest.fixture(scope="module")
def measured():
    return run_child("compiled_memory_child.py")


def test_what_is_left_alive(measured):
    """The report's bytes. Besides: graph nodes, Python's objects and allocations' headers, as in test_report_memory,
    and the result of the loss, its gradient's and the forward's, of 64 KiB."""
    report = measured["report"]
    assert 0 <= measured["compressed"]["alive"] - report["stored"] < 256 * 1024
    assert 0 <= measured["plain"]["alive"] - report["original"] < 256 * 1024
    assert report["original"] > 5 * report["stored"]


def test_the_peak_of_backward_falls(measured):
    """Plain, all 12 activations are alive when backward begins; under Python's hooks all are when it begins to unpack.
    Here there are the stored bytes and the few tensors of the step that is running: gradients of a layer's input and
    output and what was restored for it, at most 6 of them at a time with the derivative's own."""
    plain, hooks, compressed = (measured[kind]["peak"] for kind in ("plain", "hooks", "compressed"))
    assert plain > 11 * TENSOR
    assert hooks > 11 * TENSOR
    assert compressed < measured["report"]["stored"] + 6 * TENSOR


def test_a_loss_in_chunks_takes_what_it_takes_in_eager_code():
    """It made 16 MiB of logits three times. A chunk's logits are of 4 MiB less its gradients."""
    found = run_child("compiled_loss_child.py", "aot_eager")
    logits = 16 * 2**20
    assert found["whole compiled"] > 2.5 * logits
    assert found["chunked compiled"] < found["chunked eager"] + 2**20 < logits / 2
