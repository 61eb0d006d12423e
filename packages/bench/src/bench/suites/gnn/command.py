"""``python -m bench gnn``: its options, and what is run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench.cli.arguments import positive
from bench.cli.bench import FOLDER, Bench, default
from bench.cli.options import Options
from bench.errors import BenchError
from bench.models.data import graphs as datasets
from bench.models.data.graph import Graph
from bench.models.data.graph_sampling import Walks
from bench.models.data.graphs import DATASETS
from bench.models.graph_networks import ADAPT_INTERVAL, HEADS, MODELS, NAMES, NORMS, WEIGHT_DECAY, Recipe
from bench.results.charts import require_drawable
from bench.results.record import Record
from bench.runner.clock import THREADS
from bench.runner.memory import Memory
from bench.runner.run import Run, begun
from bench.suites.gnn import training
from bench.suites.gnn import training as memory
from bench.suites.gnn.entries import FINAL, KIND, REFERENCE, Curve
from bench.suites.gnn.report import REPORT, rows
from bench.suites.kernels import KernelTime, time_kernels
from integrations import LEVELS

PARTS = ("train", "memory", "kernels")


def run(asked: argparse.Namespace) -> Record:
    """Trains, measures memory and times the kernels where the file has nothing yet, with progress bars on stderr.

    Raises:
        BenchError: the dataset cannot be used, the recipe has no sense, or the file holds other results.
    """
    device = torch.device(asked.device)
    if device.type == "cuda":
        # What cuBLAS needs to be deterministic; it reads this when it starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    graph = datasets.load(asked.dataset, asked.data_root, tell=lambda line: print(line, file=sys.stderr))
    _require_sense(asked, graph)
    settings = {
        "data": str(graph),
        "recipe": _recipe(asked),
        "dataset": graph.name,
        "measure": graph.measure,
    }
    going = begun(KIND, asked, **settings)
    if "train" in asked.parts:
        _train(going, asked, graph.to(device))
    if "memory" in asked.parts:
        _measure_memory(going, asked, graph.name.lower())
    if "kernels" in asked.parts and not going.record.of(KernelTime):
        with Console(stderr=True).status("timing the kernels"):
            going.add(*time_kernels(device, THREADS))
    return going.record


def _recipe(asked: argparse.Namespace) -> dict[str, float | str]:
    return {
        **asked.recipe.words(),
        "Adam lr": training.LEARNING_RATE,
        "weight decay": WEIGHT_DECAY,
        "epochs": asked.epochs,
        "final loss over epochs": min(FINAL, asked.epochs),
    }


def _require_sense(asked: argparse.Namespace, graph: Graph) -> None:
    """Before anything is measured, that every network and subgraph can be made."""
    with torch.device("meta"):
        for model in asked.models:
            MODELS[model](graph.x.shape[1], graph.classes, asked.recipe)
    if asked.recipe.sample is not None:
        Walks(graph, asked.recipe.sample)


def _with_full_precision(asked: argparse.Namespace) -> list[str]:
    """With full precision, which comes first."""
    return [REFERENCE, *(level for level in asked.levels if level != REFERENCE)]


def _train(going: Run, asked: argparse.Namespace, graph: Graph) -> None:
    # Seeds outermost: an interrupted or a slow hour touches all models alike.
    groups = [
        [Curve(model, level, seed) for level in _with_full_precision(asked)]
        for seed in range(asked.seeds)
        for model in asked.models
    ]
    left = [missing for group in groups if (missing := [curve for curve in group if not going.has(curve)])]
    total = asked.epochs * sum(len(_with_reference(missing)) for missing in left)
    with training.deterministic(graph.x.device), _epochs(graph.name, total) as bar:

        def trained(missing: Sequence[Curve]) -> list[Curve]:
            first, levels = missing[0], _with_reference(missing)
            names = [None if level == REFERENCE else level for level in levels]
            found = training.train_in_turn(
                first.model, names, first.seed, graph, asked.epochs, bar.advance, asked.recipe
            )
            wanted = {curve.level for curve in missing}
            return [curve for curve in found if curve.level in wanted]

        for missing in left:
            going.measure_together([missing], trained, advance=lambda _: None)
            model, seed = missing[0].model, missing[0].seed
            if seed == asked.seeds - 1:  # the last of this model
                bar.tell(_accuracies(model, going.record))
            elif not bar.is_live:
                bar.tell(f"{model}, seed {seed + 1} of {asked.seeds}: {going.record.seconds / 60:.1f} minutes")


def _with_reference(missing: Sequence[Curve]) -> list[str]:
    """Levels, with full precision before them: what their time is compared with is always trained with them."""
    return list(dict.fromkeys([REFERENCE, *(curve.level for curve in missing)]))


def _accuracies(model: str, record: Record) -> str:
    """A model's row, before the table is there."""
    found = [row for row in rows(record) if row.model == model and row.accuracy is not None]
    each = (f"{'fp32' if row.level == REFERENCE else row.level} {row.accuracy:.1f} %" for row in found)
    return f"{NAMES.get(model, model)}, test {record.settings['measure']}: {', '.join(each)}"


def _measure_memory(going: Run, asked: argparse.Namespace, dataset: str) -> None:
    going.measure_together(
        [[Memory(model, level) for level in _with_full_precision(asked)] for model in asked.models],
        lambda some: memory.measure(some, dataset, asked.data_root, asked.device, asked.threads, asked.recipe),
        name=f"memory, {dataset}",
        lacks=lambda one: one.live_bytes is None,
    )


class _Bar:
    """Counts epochs on stderr, with a line for each model that is done; where that is no terminal, for each seed."""

    def __init__(self, bar: Progress, name: str, total: int) -> None:
        self._bar, self._name = bar, name
        self._task = bar.add_task(name, total=total)

    def advance(self, what: str, epochs: int) -> None:
        self._bar.update(self._task, advance=epochs, description=f"{self._name}: {what}")

    @property
    def is_live(self) -> bool:
        """Whether somebody sees the bar move."""
        return self._bar.console.is_terminal

    def tell(self, line: str) -> None:
        self._bar.console.print(line, highlight=False)


@contextmanager
def _epochs(name: str, total: int) -> Iterator[_Bar]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar, name, total)


DEFAULT_LEVELS = ("L1", "L1.1", "L1.2")
ALL_LEVELS = ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")  # of GACT's tables
EPOCHS, QUICK_EPOCHS = 100, 10
# Of a first run, which --seeds makes a longer one of. GCNII's many layers take as long as the three.
FIRST_SEEDS = 1
FIRST_PARTS = ("train", "memory")
FIRST_MODELS = ("gcn", "sage", "gat")


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--part", PARTS, f"of the measurements, repeatable; default: {', '.join(FIRST_PARTS)}; with --seeds all")
    add.many("--model", MODELS, f"repeatable; default: {', '.join(FIRST_MODELS)}; with --seeds all")
    words = (
        f"repeatable; default: {', '.join(DEFAULT_LEVELS)}; all: {', '.join(ALL_LEVELS)}; full precision, {REFERENCE}, "
        "is always run"
    )
    add.many("--level", (*LEVELS, "all"), words, default=DEFAULT_LEVELS)
    words = "auto: Cora at hand or downloaded, otherwise digits; generated-arxiv is as large as ogbn-arxiv"
    add.add("--dataset", default="auto", choices=DATASETS, help=words)
    add.data_root(
        "folder with planetoid/Cora/raw/..., Flickr/, Reddit/, Yelp/ or ogbn_arxiv/; default: ACTCORE_DATA, then "
        "torch-geometric's cache (PYG_HOME)"
    )
    words = f"paired runs; default: {FIRST_SEEDS}, some minutes; 10 made the published tables"
    add.add("--seeds", type=positive, help=words)
    add.number("--epochs", "of each run", default=EPOCHS, quick=QUICK_EPOCHS)
    add.add("--hidden", type=positive, help="features between layers; default: by model")
    add.add("--layers", type=positive, help="of a network; default: by model")
    add.add("--heads", type=positive, default=HEADS, help="of GAT; default: %(default)s; GACT's has 3")
    add.add("--norm", choices=NORMS, default="none", help="default: %(default)s; GACT's networks have batch")
    words = "between adaptations of the levels that adapt; default: %(default)s, as GACT's"
    add.add("--adapt-interval", type=positive, default=ADAPT_INTERVAL, metavar="STEPS", help=words)
    words = "train on subgraphs of random walks with so many nodes at most; default: on the whole graph"
    add.add("--sample", type=positive, metavar="NODES", help=words)
    words = f"{QUICK_EPOCHS} epochs: shows that it works, not how accurate it is"
    add.add("--quick", action="store_true", help=words)
    add.device()
    add.threads(torch.get_num_threads())
    add.json(
        f", curve by curve; what the file has is not measured again; default: {FOLDER}/gnn-DEVICE.json, begun anew"
    )
    add.chart(f"; default: {FOLDER}/gnn-DEVICE.png")


def settle(asked: argparse.Namespace) -> None:
    """Finds what a first run has, and the files' own names where none are given.

    Raises:
        BenchError: a chart is asked for of what is not measured.
    """
    first = asked.quick or asked.seeds is None
    asked.parts = asked.parts or list(FIRST_PARTS if first else PARTS)
    asked.models = asked.models or list(FIRST_MODELS if first else MODELS)
    asked.levels = _levels(asked.levels)
    asked.seeds = asked.seeds or FIRST_SEEDS
    names = ("hidden", "layers", "heads", "norm", "adapt_interval", "sample")
    asked.recipe = Recipe(**{name: getattr(asked, name) for name in names})
    drawable = asked.levels != [REFERENCE] and "memory" in asked.parts
    if asked.chart is not None:
        require_drawable(asked.chart)
        if asked.levels == [REFERENCE]:
            raise BenchError("a chart compares levels with full precision; name another level, such as --level L1")
        if not drawable:
            raise BenchError("a chart shows memory; add --part memory, or leave --chart out")
    asked.anew = asked.json is None  # whoever names no file wants numbers, not those of another day
    asked.json = asked.json or default(f"gnn-{asked.device}.json")
    asked.chart = asked.chart or (default(f"gnn-{asked.device}.png") if drawable else None)


def _levels(asked: list[str]) -> list[str]:
    """Without ``"all"``, and none twice."""
    return list(dict.fromkeys(name for one in asked for name in (ALL_LEVELS if one == "all" else (one,))))


def tell(record: Record, asked: argparse.Namespace) -> None:
    """Says where the files are."""
    print(f"written: {asked.json}{f' and {asked.chart}' if asked.chart else ''}", file=sys.stderr)


WHAT = "train GNNs at full precision and compressed; accuracy, memory and time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle, tell)
