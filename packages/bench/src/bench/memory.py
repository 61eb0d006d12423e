"""Measured memory of one training step, compressed and not, in a child process (``python -m bench.memory``).

Two quantities, each the median of ``REPEATS`` steps after a warm-up step that pays for caches:

* live bytes after the forward: what the forward left allocated, its result included;
* the activation peak: the most bytes during forward and backward, less those before the step, with ``.grad`` unset, and
  less the bytes of the gradients.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F

import integrations
from bench import data
from bench.data import Graph
from bench.errors import BenchError
from bench.models import MODELS
from bench.process_memory import ENVIRONMENT, Counters, counters
from integrations.pyg import compress_model

REPEATS = 3


@dataclass(frozen=True)
class Memory:
    """Bytes of one step of one model at one level.

    Attributes:
        model, level: which; level ``"L0"`` is the untouched model.
        live_bytes, peak_bytes: as measured, see the module; ``None`` where not measured.
        original_bytes, stored_bytes: what the report says of the saved tensors; ``None`` for the untouched model.
        not_measured: why nothing was measured; empty otherwise.
    """

    model: str
    level: str
    live_bytes: int | None
    peak_bytes: int | None
    original_bytes: int | None = None
    stored_bytes: int | None = None
    not_measured: str = ""


def measure(
    models: Sequence[str],
    levels: Sequence[str | None],
    dataset: str,
    data_root: Path | None,
    device: torch.device,
    threads: int,
) -> list[Memory]:
    """Measures models at several levels, in a child process that has the allocator's setting.

    Args:
        models: of ``bench.models.MODELS``.
        levels: names of levels; ``None`` is the untouched model.
        dataset, data_root: as for ``bench.data.load``; name a dataset that is at hand, not ``"auto"``.
        device, threads: to measure on and with.

    Raises:
        BenchError: the child process failed.
    """
    request = {
        "models": list(models),
        "levels": list(levels),
        "dataset": dataset,
        "data_root": None if data_root is None else str(data_root),
        "device": str(device),
        "threads": threads,
    }
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "bench.memory", json.dumps(request)],
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["it wrote nothing"])[-1]
        raise BenchError(f"the process that measures memory ended with code {child.returncode}: {last}")
    return [Memory(**fields) for fields in json.loads(child.stdout.splitlines()[-1])]


def measure_here(model: str, level: str | None, graph: Graph) -> Memory:
    """Measures one model at one level in this process, on the graph's device."""
    torch.manual_seed(0)
    network = MODELS[model](graph.x.shape[1], graph.classes).to(graph.x.device)
    if level is not None:
        compress_model(network, level=level)
    _forward(network, graph).backward()  # the warm-up

    live, peak, reason = None, None, ""
    found = counters(graph.x.device)
    if isinstance(found, str):
        reason = found
    else:
        live = int(statistics.median(_live_bytes(network, graph, found) for _ in range(REPEATS)))
        peak = int(statistics.median(_peak_bytes(network, graph, found) for _ in range(REPEATS)))
    if level is None:
        return Memory(model, "L0", live, peak, not_measured=reason)
    report = integrations.compression(network).report()
    return Memory(model, level, live, peak, report.original_bytes, report.stored_bytes, reason)


def _forward(network: torch.nn.Module, graph: Graph) -> torch.Tensor:
    logits = network(graph.x, graph.edge_index)
    return F.cross_entropy(logits[graph.train], graph.y[graph.train])


def _live_bytes(network: torch.nn.Module, graph: Graph, count: Counters) -> int:
    gc.collect()
    before = count.live()
    logits = network(graph.x, graph.edge_index)  # held, so that what autograd saved is alive
    after = count.live()
    del logits
    return after - before


def _peak_bytes(network: torch.nn.Module, graph: Graph, count: Counters) -> int:
    network.zero_grad(set_to_none=True)
    gc.collect()
    before = count.start_peak()
    _forward(network, graph).backward()
    gradients = sum(parameter.grad.nbytes for parameter in network.parameters() if parameter.grad is not None)
    return count.peak() - before - gradients


def _child(request: str) -> None:
    """What the child process does: reads the request, prints the result as one line of JSON."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    root = None if wanted["data_root"] is None else Path(wanted["data_root"])
    graph = data.load(wanted["dataset"], root).to(torch.device(wanted["device"]))
    found = [measure_here(model, level, graph) for model in wanted["models"] for level in wanted["levels"]]
    print(json.dumps([asdict(memory) for memory in found]))


if __name__ == "__main__":
    _child(sys.argv[1])
