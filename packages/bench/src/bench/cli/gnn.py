"""``python -m bench gnn``: its options, and what makes it a bench."""

from __future__ import annotations

import argparse
import sys

import torch

from bench.cli.arguments import positive
from bench.cli.bench import FOLDER, Bench, default
from bench.cli.options import Options
from bench.errors import BenchError
from bench.models.data.graphs import DATASETS
from bench.models.graph_networks import ADAPT_INTERVAL, HEADS, MODELS, NORMS, Recipe
from bench.results.charts import require_drawable
from bench.results.record import Record
from bench.suites.gnn import measure
from bench.suites.gnn.report import REPORT
from bench.suites.gnn.results import KIND, REFERENCE
from integrations import LEVELS

DEFAULT_LEVELS = ("L1", "L1.1", "L1.2")
ALL_LEVELS = ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")  # of GACT's tables
EPOCHS, QUICK_EPOCHS = 100, 10
# Of a first run, which --seeds makes a longer one of. GCNII's many layers take as long as the three.
FIRST_SEEDS = 1
FIRST_PARTS = ("train", "memory")
FIRST_MODELS = ("gcn", "sage", "gat")


def options(add: Options) -> None:
    """Those of the command."""
    add.many(
        "--part", measure.PARTS, f"of the measurements, repeatable; default: {', '.join(FIRST_PARTS)}; with --seeds all"
    )
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
    asked.parts = asked.parts or list(FIRST_PARTS if first else measure.PARTS)
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
BENCH = Bench(KIND, WHAT, options, measure.run, REPORT, settle, tell)
