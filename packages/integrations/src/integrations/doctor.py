"""``python -m integrations doctor``: versions and operators, and which of torch's private names this torch has."""

from __future__ import annotations

import argparse
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import actcore
from integrations._torch import NAMES
from integrations._version import __version__

# Libraries whose models and trainers are known, beside torch.
_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "timm", "torch-geometric", "lightning")

_WIDTH = 130


def add_to(commands: Any) -> None:
    """Adds the command to those of ``python -m integrations``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="versions, operators, and which private names of torch are here"
    )
    parser.set_defaults(command=run_doctor)
    parser.add_argument("--names", action="store_true", help="each private name of torch, not only those that are gone")


def run_doctor(options: argparse.Namespace) -> None:
    """Prints the tables.

    Raises:
        RuntimeError: a name is missing that a feature needs.
    """
    console = Console()
    console = Console(width=max(console.width, _WIDTH))  # without a terminal it is narrower, which would cut names
    console.print(_facts())
    gone = [name for name in NAMES.values() if not name.is_there]
    if options.names or gone:
        console.print(_names(options.names))
    else:
        console.print(
            f"torch {torch.__version__} has all {len(NAMES)} private names that are used (--names lists them)."
        )
    if needed := [name for name in gone if not name.spared]:
        features = ", ".join(sorted({name.feature for name in needed}))
        raise RuntimeError(
            f"torch {torch.__version__} lacks names that are not done without: leave alone {features}, or use a torch "
            "that has them"
        )


def _facts() -> Table:
    table = Table("what", "is", box=None, pad_edge=False)
    table.add_row("actcore-integrations", __version__)
    for name, value in actcore.build_info().items():
        table.add_row(f"actcore: {name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    for library in _LIBRARIES:
        table.add_row(library, _version_of(library))
    return table


def _version_of(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _names(all_names: bool) -> Table:
    """The names by the features that need them, so that a missing feature is seen at once."""
    table = Table("what takes it", "private name of torch", "here", box=None, pad_edge=False)
    by_feature = defaultdict(list)
    for name in NAMES.values():
        by_feature[name.feature].append(name)
    for feature, names in sorted(by_feature.items()):
        for name in names:
            if all_names or not name.is_there:
                here = "yes" if name.is_there else "no; done without" if name.spared else "NO"
                table.add_row(feature, name.path, here)
    return table
