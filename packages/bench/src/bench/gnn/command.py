"""``python -m bench gnn``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from bench.arguments import add_chart, add_shared, positive
from bench.errors import BenchError
from bench.finish import FOLDER, default, finish, require_writable
from bench.gnn import measure
from bench.gnn.datasets import DATASETS
from bench.gnn.models import MODELS
from bench.gnn.recipe import ADAPT_INTERVAL, HEADS, NORMS, Recipe
from bench.gnn.summary import REFERENCE
from bench.style import require_drawable
from integrations import LEVELS

DEFAULT_LEVELS = ("L1", "L1.1", "L1.2")
ALL_LEVELS = ("L1", "L1.1", "L1.2", "L2", "L2.1", "L2.2", "L3")  # of GACT's tables
EPOCHS, QUICK_EPOCHS = 100, 10
# Of a first run, which --seeds makes a longer one of. GCNII's many layers take as long as the three.
FIRST_SEEDS = 1
FIRST_PARTS = ("train", "memory")
FIRST_MODELS = ("gcn", "sage", "gat")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds those of this command."""
    parser.set_defaults(command=run_gnn)
    parser.add_argument(
        "--part",
        action="append",
        choices=measure.PARTS,
        help=f"of the measurements, repeatable; default: {', '.join(FIRST_PARTS)}; with --seeds all",
    )
    parser.add_argument(
        "--model",
        action="append",
        choices=MODELS,
        help=f"repeatable; default: {', '.join(FIRST_MODELS)}; with --seeds all",
    )
    parser.add_argument(
        "--level",
        action="append",
        choices=(*LEVELS, "all"),
        help=f"repeatable; default: {', '.join(DEFAULT_LEVELS)}; all: {', '.join(ALL_LEVELS)}; full precision, "
        f"{REFERENCE}, is always run",
    )
    parser.add_argument(
        "--dataset",
        default="auto",
        choices=DATASETS,
        help="auto: Cora at hand or downloaded, otherwise digits; generated-arxiv is as large as ogbn-arxiv",
    )
    parser.add_argument(
        "--data-root",
        type=Path,
        metavar="DIR",
        help="folder with planetoid/Cora/raw/..., Flickr/, Reddit/, Yelp/ or ogbn_arxiv/; default: ACTCORE_DATA, then "
        "torch-geometric's cache (PYG_HOME)",
    )
    parser.add_argument(
        "--seeds",
        type=positive,
        help=f"paired runs; default: {FIRST_SEEDS}, some minutes; 10 made the published tables",
    )
    parser.add_argument("--epochs", type=positive, help=f"of each run; default: {EPOCHS}")
    parser.add_argument("--hidden", type=positive, help="features between layers; default: by model")
    parser.add_argument("--layers", type=positive, help="of a network; default: by model")
    parser.add_argument("--heads", type=positive, default=HEADS, help="of GAT; default: %(default)s; GACT's has 3")
    parser.add_argument(
        "--norm", choices=NORMS, default="none", help="default: %(default)s; GACT's networks have batch"
    )
    parser.add_argument(
        "--adapt-interval",
        type=positive,
        default=ADAPT_INTERVAL,
        metavar="STEPS",
        help="between adaptations of the levels that adapt; default: %(default)s, as GACT's",
    )
    parser.add_argument(
        "--sample",
        type=positive,
        metavar="NODES",
        help="train on subgraphs of random walks with so many nodes at most; default: on the whole graph",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"{QUICK_EPOCHS} epochs: shows that it works, not how accurate it is",
    )
    place = f", curve by curve; what the file has is not measured again; default: {FOLDER}/gnn-DEVICE.json, begun anew"
    add_shared(parser, threads=torch.get_num_threads(), place=place)
    add_chart(parser, place=f"; default: {FOLDER}/gnn-DEVICE.png")


def run_gnn(options: argparse.Namespace) -> None:
    """The files have names of their own where none are given."""
    levels = _levels(options.level or DEFAULT_LEVELS)
    first = options.quick or options.seeds is None
    parts = list(dict.fromkeys(options.part or (FIRST_PARTS if first else measure.PARTS)))
    drawable = levels != [REFERENCE] and "memory" in parts
    if options.chart is not None:
        require_drawable(options.chart)
        if levels == [REFERENCE]:
            raise BenchError("a chart compares levels with full precision; name another level, such as --level L1")
        if not drawable:
            raise BenchError("a chart shows memory; add --part memory, or leave --chart out")
    json = options.json or default(f"gnn-{options.device}.json")
    picture = options.chart or (default(f"gnn-{options.device}.png") if drawable else None)
    require_writable(json, picture)
    results = measure.run(
        measure.Options(
            parts=parts,
            models=list(dict.fromkeys(options.model or (FIRST_MODELS if first else MODELS))),
            levels=levels,
            dataset=options.dataset,
            data_root=options.data_root,
            device=torch.device(options.device),
            seeds=options.seeds or FIRST_SEEDS,
            epochs=options.epochs or (QUICK_EPOCHS if options.quick else EPOCHS),
            threads=options.threads,
            recipe=Recipe(
                hidden=options.hidden,
                layers=options.layers,
                heads=options.heads,
                norm=options.norm,
                adapt_interval=options.adapt_interval,
                sample=options.sample,
            ),
            json=json,
            # Whoever names no file wants numbers, not those of another day.
            anew=options.json is None,
        )
    )
    finish(results, json, picture)
    print(f"written: {json}{f' and {picture}' if picture else ''}", file=sys.stderr)


def _levels(asked: list[str] | tuple[str, ...]) -> list[str]:
    """Without ``"all"``, and none twice."""
    return list(dict.fromkeys(name for one in asked for name in (ALL_LEVELS if one == "all" else (one,))))
