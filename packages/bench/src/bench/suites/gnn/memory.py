"""Measured memory of a graph network's training step, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.models.data import graphs as datasets
from bench.models.data.graph import Graph
from bench.models.data.graph_sampling import Walks
from bench.models.graph_networks import DEFAULT, MODELS, Recipe
from bench.runner.child import Child
from bench.runner.memory import Memory, measure_step


def measure(
    wanted: Sequence[Memory],
    dataset: str,
    data_root: Path | None,
    device: str,
    threads: int,
    recipe: Recipe = DEFAULT,
) -> list[Memory]:
    """Measures models at levels, in one process that has the allocator's setting; another one where it ended, as one
    does that takes more memory than there is.

    Args:
        wanted: without numbers.
        dataset, data_root: as for ``bench.models.data.graphs.load``; name a dataset that is at hand, not ``"auto"``.
        device, threads: to measure on and with.
        recipe: how the networks are built; a subgraph is drawn where it says how large.
    """
    root = None if data_root is None else str(data_root)
    options = {"dataset": dataset, "data_root": root, "device": device, "recipe": asdict(recipe), "threads": threads}
    with Child() as child:
        return [child.measure(measure_on, entry, None, **options) for entry in wanted]


def measure_on(entry: Memory, *, dataset: str, data_root: str | None, device: str, recipe: Mapping[str, Any]) -> Memory:
    """Measures one model at one level in this process, on a dataset by its name."""
    return measure_here(entry, _graph(dataset, data_root, device), Recipe(**recipe))


@cache  # for all models and levels that this process is asked for
def _graph(dataset: str, data_root: str | None, device: str) -> Graph:
    root = None if data_root is None else Path(data_root)
    return datasets.load(dataset, root).to(torch.device(device))


def measure_here(entry: Memory, graph: Graph, recipe: Recipe = DEFAULT) -> Memory:
    """Measures one model at one level in this process, on the graph's device."""
    torch.manual_seed(0)
    network = MODELS[entry.model](graph.x.shape[1], graph.classes, recipe).to(graph.x.device)
    part = graph if recipe.sample is None else Walks(graph, recipe.sample).draw()

    def forward() -> Tensor:
        logits: Tensor = network(part.x, part.edge_index)
        return logits

    return measure_step(entry, network, forward, lambda: part.loss(forward()), graph.x.device)
