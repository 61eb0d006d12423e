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
