"""``python -m integrations doctor``: versions and operators, and which versions of torch have which private names."""

from __future__ import annotations

import argparse
import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import actcore
from integrations._utils.torch_internals import NAMES
from integrations._utils.torch_names import Name
from integrations._utils.torch_versions import HAS, LACKS, UNKNOWN, recorded
from integrations._version import __version__

# Libraries whose models and trainers are known, beside torch.
_LIBRARIES = ("torch", "transformers", "peft", "accelerate", "timm", "torch-geometric", "lightning")

_WIDTH = 190  # of the longest name, its feature and six versions

_WORDS = {HAS: "yes", LACKS: "no", UNKNOWN: "?"}


def add_to(commands: Any) -> None:
    """Adds the command to those of ``python -m integrations``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="versions, operators, and which versions of torch have which private names"
    )
    parser.set_defaults(command=run_doctor)


def run_doctor(options: argparse.Namespace) -> None:
    """Prints the tables.

    Raises:
        RuntimeError: a name is missing that a feature needs.
    """
    console = Console()
    console = Console(width=max(console.width, _WIDTH))  # without a terminal it is narrower, which would cut names
    console.print(_facts())
    gone = [name for name in NAMES.values() if not name.is_there]
    console.print(_names(gone))
    console.print(
        f"torch {torch.__version__} has {len(NAMES) - len(gone)} of {len(NAMES)} private names that integrations uses."
    )
    if needed := [name for name in gone if not name.spared]:
        features = ", ".join(sorted({name.feature for name in needed}))
        raise RuntimeError(
            f"torch {torch.__version__} lacks private names that these features need: {features}. Do not use them, "
            "or install a version of torch that has the names"
        )


def _facts() -> Table:
    table = Table("what", "is", box=None, pad_edge=False)
    table.add_row("actcore-integrations", __version__)
    for name, value in actcore.build_info().items():
        table.add_row(f"actcore: {name}", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
    for library in _LIBRARIES:
        table.add_row(library, _get_version(library))
    return table


def _get_version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _names(gone: list[Name]) -> Table:
    """The names by the features that take them, with the versions of torch that are known and the torch at hand, which
    is looked at. Those that any of these lacks come first."""
    here = torch.__version__.partition("+")[0]
    versions = recorded()
    others = [number for number in versions if number != here]
    columns = sorted([*others, here], key=lambda number: [int(part) for part in re.findall(r"\d+", number)])
    table = Table("private name of torch", "used by", box=None, pad_edge=False)
    for number in columns:
        table.add_column(f"{number} here" if number == here else number)

    def cells(name: Name) -> list[str]:
        found = {number: _WORDS[versions[number].get(name.path, UNKNOWN)] for number in others}
        found[here] = "yes" if name not in gone else "no; not needed" if name.spared else "NO"
        return [found[number] for number in columns]

    rows = [(name.path, name.feature, *cells(name)) for name in NAMES.values()]
    for row in sorted(rows, key=lambda row: (set(row[2:]) == {"yes"}, row[1], row[0])):
        table.add_row(*row)
    return table
