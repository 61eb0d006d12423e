"""Training runs side by side: the same model and seed at several levels, a few epochs each in turn.

Paired runs draw the same initial weights and the same dropout masks: each has its own state of torch's generators, set
from the seed. Taking turns makes them comparable in time, too: whatever else the machine does hits all of them, and
ratios are taken within a round.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.errors import BenchError, reason
from bench.models.data import graphs
from bench.models.data.graph import Graph, Walks, evaluated
from bench.models.graph_networks import DEFAULT, MODELS, Recipe
from bench.runner.child import Child
from bench.runner.memory import Memory, measure_step
from bench.suites.gnn.entries import BLOCK, REFERENCE, Curve
from integrations import LEVELS

LEARNING_RATE = 0.01


class Run:
    """A model in training.

    Args:
        model: one of ``bench.models.graph_networks.MODELS``.
        level: one of ``integrations.LEVELS``; ``None`` leaves the model untouched.
        seed: decides initial weights, dropout and the rounding of compression.
        graph: on the device to train on.
        recipe: how the network is built and trained.
    """

    def __init__(self, model: str, level: str | None, seed: int, graph: Graph, recipe: Recipe = DEFAULT) -> None:
        self.graph = graph
        self._walks = None if recipe.sample is None else Walks(graph, recipe.sample)
        self._part = graph  # to train on in the next step
        self.curve = Curve(model, level or REFERENCE, seed)
        self._devices = [graph.x.device] if graph.x.is_cuda else []
        with torch.random.fork_rng(self._devices):
            torch.manual_seed(seed)
            self.network = MODELS[model](graph.x.shape[1], graph.classes, recipe).to(graph.x.device)
            self._generators = self._generator_states()
        if level is not None:
            from integrations.pyg import compress_model  # imports PyG, which takes seconds

            options = {"adapt_interval": recipe.adapt_interval} if LEVELS[level].adaptive else {}
            compress_model(self.network, level=level, seed=seed, **options)
        self._optimizer = torch.optim.Adam(self.network.parameter_groups(), lr=LEARNING_RATE)

    def train(self, epochs: int) -> None:
        """Trains some more epochs, and evaluates after each. Only training is timed, drawing subgraphs is not."""
        seconds = 0.0
        steps = 1 if self._walks is None else self._walks.steps
        with self._own_generators():
            for _ in range(epochs):
                losses = []
                for _ in range(steps):
                    if self._walks is not None:
                        self._part = self._walks.draw()
                    start = self._now()
                    loss = self._step()
                    seconds += self._now() - start
                    losses.append(loss.item())
                self.curve.losses.append(sum(losses) / steps)
                self._evaluate()
        self.curve.block_seconds.append(seconds)

    def _step(self) -> torch.Tensor:
        graph = self._part
        self.network.train()
        self._optimizer.zero_grad()
        loss = graph.loss(self.network(graph.x, graph.edge_index))
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def _evaluate(self) -> None:
        graph = self.graph
        self.network.eval()
        logits = evaluated(self.network, graph)
        self.curve.validation.append(graph.score(logits, graph.validation))
        self.curve.test.append(graph.score(logits, graph.test))

    def _now(self) -> float:
        for device in self._devices:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    @contextmanager
    def _own_generators(self) -> Iterator[None]:
        with torch.random.fork_rng(self._devices):
            cpu, *cuda = self._generators
            torch.set_rng_state(cpu)
            for device, state in zip(self._devices, cuda, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
            self._generators = self._generator_states()

    def _generator_states(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in self._devices)]


def train_in_turn(
    model: str,
    levels: Sequence[str | None],
    seed: int,
    graph: Graph,
    epochs: int,
    recipe: Recipe = DEFAULT,
) -> list[Curve]:
    """Trains one model at several levels, ``BLOCK`` epochs each in turn. What fails ends its own run alone.

    Args:
        model, seed, graph, recipe: as for ``Run``.
        levels: of each run; with ``None``, which is full precision, the others' turns are compared.
        epochs: of each run.

    Returns:
        The curves, in the order of ``levels``.
    """
    found: list[Run | Curve] = []  # in the order of the levels, a curve where there is no run
    for level in levels:
        try:
            run = Run(model, level, seed, graph, recipe)
        except BenchError:
            raise  # what was asked for cannot be, for no run
        except Exception as error:
            found.append(Curve(model, level or REFERENCE, seed, failure=reason(error)))
        else:
            found.append(run)
    runs = [one for one in found if isinstance(one, Run)]
    for start in range(0, epochs, BLOCK):
        turn = min(BLOCK, epochs - start)
        # Every run is first in some rounds: what runs first finds the caches as the others' evaluations left them.
        shift = start // BLOCK % len(runs) if runs else 0
        for run in runs[shift:] + runs[:shift]:
            try:
                run.train(turn)
            except Exception as error:  # such as memory that is not there
                run.curve = replace(run.curve, failure=reason(error))
        runs = [run for run in runs if not run.curve.failure]
    curves = [one.curve if isinstance(one, Run) else one for one in found]
    plain = next((curve for curve, level in zip(curves, levels, strict=True) if level is None), None)
    if plain is None or plain.failure:
        return curves
    turns = list(plain.block_seconds)
    return [curve if curve.failure else replace(curve, plain_seconds=turns) for curve in curves]


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Same seed, same bits. CPU kernels are deterministic for a number of threads; CUDA's are asked to be."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device.type == "cuda")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


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
    return graphs.load(dataset, root).to(torch.device(device))


def measure_here(entry: Memory, graph: Graph, recipe: Recipe = DEFAULT) -> Memory:
    """Measures one model at one level in this process, on the graph's device."""
    torch.manual_seed(0)
    network = MODELS[entry.model](graph.x.shape[1], graph.classes, recipe).to(graph.x.device)
    part = graph if recipe.sample is None else Walks(graph, recipe.sample).draw()

    def forward() -> Tensor:
        logits: Tensor = network(part.x, part.edge_index)
        return logits

    return measure_step(entry, network, forward, lambda: part.loss(forward()), graph.x.device)
