import os
import subprocess
import sys

import pytest
import torch

from bench.models.data.graphs import digits
from bench.models.graph_networks import MODELS, Recipe
from bench.runner import process_memory
from bench.runner.child import here
from bench.runner.memory import AGREEMENT, Memory, saved_bytes
from bench.runner.process_memory import ENVIRONMENT, counters
from bench.suites.gnn.training import measure, measure_here

CPU = torch.device("cpu")

# 64 MiB stay, 96 MiB more are there for a moment.
KNOWN_ALLOCATION = """
import torch
from bench.runner.process_memory import counters
count = counters(torch.device("cpu"))
if isinstance(count, str):
    print(count)
else:
    torch.ones(1000).sum()
    live, start = count.live(), count.start_peak()
    kept = torch.ones(64 * 2**18)
    torch.ones(96 * 2**18)
    print(count.live() - live, count.peak() - start)
"""


def run_child(code, **environment):
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert child.returncode == 0, child.stderr
    return child.stdout.strip()


@pytest.mark.undisturbed
def test_the_counters_agree_with_arithmetic_on_a_known_allocation():
    found = run_child(KNOWN_ALLOCATION, **ENVIRONMENT)
    if not found[0].isdigit():
        pytest.skip(f"memory cannot be measured here: {found}")
    live, peak = map(int, found.split())
    assert live == pytest.approx(64 * 2**20, abs=64 * 2**10)
    assert peak == pytest.approx(160 * 2**20, rel=0.01)


def test_without_the_allocator_s_setting_nothing_is_measured(monkeypatch):
    monkeypatch.delenv("MALLOC_MMAP_THRESHOLD_", raising=False)
    if process_memory.platform.system() == "Linux" and os.access("/proc/self/clear_refs", os.W_OK):
        assert counters(CPU) == "the process must be started with MALLOC_MMAP_THRESHOLD_=65536"
    else:
        assert isinstance(counters(CPU), str)


def test_on_another_system_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(process_memory.platform, "system", lambda: "Darwin")
    assert str(counters(CPU)).startswith("needs Linux with glibc 2.33 or later, got Darwin")


@pytest.fixture(scope="module")
def memories():
    return measure([Memory("gcn", level) for level in ("L0", "L1")], "digits", None, "cpu", threads=1)


def test_the_reported_saving_is_what_the_process_frees(memories):
    plain, compressed = memories
    if plain.not_measured:
        pytest.skip(f"memory cannot be measured here: {plain.not_measured}")
    saved = plain.live_bytes - compressed.live_bytes
    assert saved == pytest.approx(compressed.original_bytes - compressed.stored_bytes, rel=AGREEMENT)
    assert compressed.peak_bytes < plain.peak_bytes


def test_a_child_that_fails_says_why():
    [failed] = measure([Memory("gcn", "L0")], "nowhere", None, "cpu", threads=1)
    assert "dataset must be one of" in failed.failure


def test_a_level_that_fails_says_why():
    found = here(measure_here, Memory("gcn", "L9"), graph=digits())
    assert "level must be one of" in found.failure
    assert found.live_bytes is None


def test_what_layers_cache_is_not_what_a_forward_saves():
    """The norm of the graph that a GCN computes once was counted: measured and reported bytes seemed to differ."""
    graph = digits()
    network = MODELS["gcn"](64, 10, Recipe(hidden=16))
    forward = lambda: network(graph.x, graph.edge_index)  # noqa: E731
    forward()
    weight = network.convolutions[0]._cached_edge_index[1]
    with_it = saved_bytes(network, forward)
    for convolution in network.convolutions:
        assert convolution._cached_edge_index[1].nbytes == weight.nbytes
        convolution.cached, convolution._cached_edge_index = False, None
    assert saved_bytes(network, forward) >= with_it + 3 * weight.nbytes
