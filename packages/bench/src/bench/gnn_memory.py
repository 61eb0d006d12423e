"""Measured memory of a graph network's training step, in a child process (``python -m bench.gnn_memory``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import data
from bench.data import Graph
from bench.memory import Memory, answer, in_child, measure_step
from bench.models import MODELS


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
    return in_child("bench.gnn_memory", request)


def measure_here(model: str, level: str | None, graph: Graph) -> Memory:
    """Measures one model at one level in this process, on the graph's device."""
    torch.manual_seed(0)
    network = MODELS[model](graph.x.shape[1], graph.classes).to(graph.x.device)

    def forward() -> Tensor:
        logits: Tensor = network(graph.x, graph.edge_index)
        return logits

    def loss() -> Tensor:
        return F.cross_entropy(forward()[graph.train], graph.y[graph.train])

    return measure_step(model, level, network, forward, loss, graph.x.device)


def _child(request: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    root = None if wanted["data_root"] is None else Path(wanted["data_root"])
    graph = data.load(wanted["dataset"], root).to(torch.device(wanted["device"]))
    answer([measure_here(model, level, graph) for model in wanted["models"] for level in wanted["levels"]])


if __name__ == "__main__":
    _child(sys.argv[1])
