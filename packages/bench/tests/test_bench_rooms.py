"""Imports of the benchmarks run downwards: each folder imports those below it alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import bench

FLOORS = ("cli", "recorded_tests", "suites", "runner", "ways", "models", "results")
"""From top to bottom."""

SOURCE = Path(bench.__file__).parent


def imported(file: Path) -> set[str]:
    """The folders of the benchmarks that a file imports."""
    nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
    modules = [node.module.split(".") for node in nodes if node.module]
    return {parts[1] for parts in modules if parts[0] == "bench" and len(parts) > 1}


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_run_downwards(floor):
    above = set(FLOORS[: FLOORS.index(floor)])
    files = list((SOURCE / floor).rglob("*.py"))
    assert files
    assert {str(file.relative_to(SOURCE)): found for file in files if (found := imported(file) & above)} == {}


def test_pyg_is_imported_where_it_is_used():
    """Torch's compiler and transformers come with it, which would take each process seconds."""
    slow = ("torch_geometric", "transformers", "timm", "integrations.pyg")
    found = {
        (str(file.relative_to(SOURCE)), line)
        for file in SOURCE.rglob("*.py")
        for line in file.read_text("utf-8").splitlines()
        if line.startswith(tuple(f"{word} {name}" for word in ("from", "import") for name in slow))
    }
    assert found == set()
