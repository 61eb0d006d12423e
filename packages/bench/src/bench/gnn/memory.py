"""Measured memory of a graph network's training step, in a child process (``python -m bench.gnn.memory``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from bench.errors import BenchError, reason
from bench.gnn import datasets
from bench.gnn.graph import Graph
from bench.gnn.models import MODELS
from bench.gnn.recipe import DEFAULT, Recipe
from bench.gnn.sampling import Walks
from bench.memory import Memory, answer, in_child, measure_step

_MODULE = "bench.gnn.memory"  # of the child process; this file's name for itself is __main__ there


def measure(
    models: Sequence[str],
    levels: Sequence[str | None],
    dataset: str,
    data_root: Path | None,
    device: torch.device,
    threads: int,
    recipe: Recipe = DEFAULT,
) -> list[Memory]:
    """Measures models at several levels, in a child process that has the allocator's setting.

    A level that fails says so in ``not_measured``. If the process ends, as one does that takes more memory than there
    is, each model and level has one of its own.

    Args:
        models: of ``bench.gnn.models.MODELS``.
        levels: names of levels; ``None`` is the untouched model.
        dataset, data_root: as for ``bench.gnn.datasets.load``; name a dataset that is at hand, not ``"auto"``.
        device, threads: to measure on and with.
        recipe: how the networks are built; a subgraph is drawn where it says how large.
    """
    cells = [(model, level) for model in models for level in levels]
    try:
        return in_child(_MODULE, _request(cells, dataset, data_root, device, threads, recipe))
    except BenchError as error:
        if len(cells) == 1:
            [(model, level)] = cells
            return [Memory(model, level or "L0", None, None, not_measured=str(error))]
    return [
        memory
        for model, level in cells
        for memory in measure([model], [level], dataset, data_root, device, threads, recipe)
    ]


def measure_here(model: str, level: str | None, graph: Graph, recipe: Recipe = DEFAULT) -> Memory:
    """Measures one model at one level in this process, on the graph's device. What fails is said in the answer."""
    try:
        return _measured(model, level, graph, recipe)
    except Exception as error:  # whatever one cell fails with, others are to be measured
        return Memory(model, level or "L0", None, None, not_measured=reason(error))


def _measured(model: str, level: str | None, graph: Graph, recipe: Recipe) -> Memory:
    torch.manual_seed(0)
    network = MODELS[model](graph.x.shape[1], graph.classes, recipe).to(graph.x.device)
    part = graph if recipe.sample is None else Walks(graph, recipe.sample).draw()

    def forward() -> Tensor:
        logits: Tensor = network(part.x, part.edge_index)
        return logits

    return measure_step(model, level, network, forward, lambda: part.loss(forward()), graph.x.device)


def _request(
    cells: Sequence[tuple[str, str | None]],
    dataset: str,
    data_root: Path | None,
    device: torch.device,
    threads: int,
    recipe: Recipe,
) -> dict[str, object]:
    return {
        "cells": list(cells),
        "dataset": dataset,
        "data_root": None if data_root is None else str(data_root),
        "device": str(device),
        "threads": threads,
        "recipe": asdict(recipe),
    }


def _child(request: str) -> None:
    """What the child process does: reads the request, says what it found."""
    wanted = json.loads(request)
    torch.set_num_threads(wanted["threads"])
    root = None if wanted["data_root"] is None else Path(wanted["data_root"])
    graph = datasets.load(wanted["dataset"], root).to(torch.device(wanted["device"]))
    answer([measure_here(model, level, graph, Recipe(**wanted["recipe"])) for model, level in wanted["cells"]])


if __name__ == "__main__":
    _child(sys.argv[1])
