"""``python -m bench gnn``: its options, and what is run."""

from __future__ import annotations

import argparse
import os
import sys

import torch

from bench.errors import BenchError
from bench.models.data import graphs
from bench.models.data.graph import Graph, Walks
from bench.models.data.graphs import DATASETS
from bench.models.graph_networks import ADAPT_INTERVAL, HEADS, MODELS, NORMS, WEIGHT_DECAY, Recipe
from bench.results.charts import require_drawable
from bench.results.record import Record
from bench.runner.clock import THREADS
from bench.runner.command import FOLDER, Bench, Options, default_file, positive
from bench.runner.memory import Memory
from bench.runner.run import Run, begun
from bench.suites.gnn import training
from bench.suites.gnn.entries import FINAL, KIND, REFERENCE, Curve
from bench.suites.gnn.kernel_time import KernelTime, time_kernels
from bench.suites.gnn.report import REPORT
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
    graph = graphs.load(asked.dataset, asked.data_root, tell=lambda line: print(line, file=sys.stderr))
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
    def trained(missing: list[Curve]) -> list[Curve]:
        first, wanted = missing[0], [curve.level for curve in missing]
        # Full precision, which times are compared with, is always trained with the others.
        levels = dict.fromkeys([None, *(None if level == REFERENCE else level for level in wanted)])
        found = training.train_in_turn(first.model, list(levels), first.seed, graph, asked.epochs, asked.recipe)
        return [curve for curve in found if curve.level in wanted]

    # Seeds outermost: an interrupted or a slow hour touches all models alike.
    groups = [
        [Curve(model, level, seed) for level in _with_full_precision(asked)]
        for seed in range(asked.seeds)
        for model in asked.models
    ]
    with training.deterministic(graph.x.device):
        going.measure_together(groups, trained, name=f"train, {graph.name}")


def _measure_memory(going: Run, asked: argparse.Namespace, dataset: str) -> None:
    going.measure_together(
        [[Memory(model, level) for level in _with_full_precision(asked)] for model in asked.models],
        lambda some: training.measure(some, dataset, asked.data_root, asked.device, asked.threads, asked.recipe),
        name=f"memory, {dataset}",
        lacks=lambda one: one.live_bytes is None,
    )


DEFAULT_LEVELS = ("L1", "L1.1", "L1.2")
ALL_LEVELS = ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")  # of GACT's tables
EPOCHS, QUICK_EPOCHS = 100, 10
# Of a first run, which --seeds makes a longer one of. GCNII's many layers take as long as the three.
FIRST_SEEDS = 1
FIRST_PARTS = ("train", "memory")
FIRST_MODELS = ("gcn", "sage", "gat")


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--part", PARTS, f"part to run, repeatable; default: {', '.join(FIRST_PARTS)}; with --seeds all")
    add.many("--model", MODELS, f"model, repeatable; default: {', '.join(FIRST_MODELS)}; with --seeds all")
    words = (
        f"level, repeatable; default: {', '.join(DEFAULT_LEVELS)}; all: {', '.join(ALL_LEVELS)}; full precision, "
        f"{REFERENCE}, is always run"
    )
    add.many("--level", (*LEVELS, "all"), words, default=DEFAULT_LEVELS)
    words = "auto: Cora if it is found or downloaded, otherwise digits; generated-arxiv is as large as ogbn-arxiv"
    add.add("--dataset", default="auto", choices=DATASETS, help=words)
    add.data_root(
        "folder with planetoid/Cora/raw/..., Flickr/, Reddit/, Yelp/ or ogbn_arxiv/; default: ACTCORE_DATA, then "
        "torch-geometric's cache (PYG_HOME)"
    )
    words = f"number of paired runs; default: {FIRST_SEEDS}, some minutes; the published tables have 10"
    add.add("--seeds", type=positive, help=words)
    add.number("--epochs", "number of epochs of each run", default=EPOCHS, quick=QUICK_EPOCHS)
    add.add("--hidden", type=positive, help="number of features between layers; default: by model")
    add.add("--layers", type=positive, help="number of layers of a network; default: by model")
    add.add("--heads", type=positive, default=HEADS, help="number of heads of GAT; default: %(default)s; GACT uses 3")
    add.add(
        "--norm", choices=NORMS, default="none", help="normalization; default: %(default)s; GACT's networks use batch"
    )
    words = "steps between adaptations of adaptive levels; default: %(default)s, as in GACT"
    add.add("--adapt-interval", type=positive, default=ADAPT_INTERVAL, metavar="STEPS", help=words)
    words = "train on random-walk subgraphs of at most this many nodes; default: on the whole graph"
    add.add("--sample", type=positive, metavar="NODES", help=words)
    words = f"{QUICK_EPOCHS} epochs: shows that it works, not how accurate it is"
    add.add("--quick", action="store_true", help=words)
    add.files(json=f"; default: {FOLDER}/gnn-DEVICE.json, overwritten", chart=f"; default: {FOLDER}/gnn-DEVICE.png")


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
    asked.json = asked.json or default_file(f"gnn-{asked.device}.json")
    asked.chart = asked.chart or (default_file(f"gnn-{asked.device}.png") if drawable else None)


def _levels(asked: list[str]) -> list[str]:
    """Without ``"all"``, and none twice."""
    return list(dict.fromkeys(name for one in asked for name in (ALL_LEVELS if one == "all" else (one,))))


def tell(record: Record, asked: argparse.Namespace) -> None:
    """Says where the files are."""
    print(f"written: {asked.json}{f' and {asked.chart}' if asked.chart else ''}", file=sys.stderr)


WHAT = "train GNNs at full precision and compressed; accuracy, memory and time"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle, tell)
