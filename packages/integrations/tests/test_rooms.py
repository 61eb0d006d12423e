"""Folders import as in ``docs/explanation/architecture.md``: downwards, and no cycle has more than five files."""

import ast
from pathlib import Path

import networkx
import pytest

import integrations

ROOT = Path(integrations.__file__).parent
MOST_IN_A_CIRCLE = 5

# What users import is on the highest floor, with the files that are in no room.
HIGHEST = ("checkpoint", "saved", "rules")
# The rooms below, the upper ones first. A room may import those after it.
FLOORS = (
    *("estimate", "api", "qmodules", "fewbit", "runtime", "planner", "report", "losses"),
    *("capture", "tracing", "policies", "_utils"),
)


def module_of(path):
    parts = ("integrations", *path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_between(sources):
    """A graph of modules, from the text of each: who imports whom, for types or in a function, too."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(sources)
    for module, text in sources.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                found = {f"{node.module}.{name.name}" for name in node.names}
                found = {name if name in sources else node.module for name in found}
            elif isinstance(node, ast.Import):
                found = {name.name for name in node.names}
            else:
                continue
            graph.add_edges_from((module, other) for other in found & sources.keys() - {module})
    return graph


def circles(graph):
    """The circles that are too large."""
    return [found for found in networkx.strongly_connected_components(graph) if len(found) > MOST_IN_A_CIRCLE]


def room_of(module):
    """The room that a module is in; empty on the highest floor."""
    if module == "integrations._version":
        return "_utils"
    room = module.split(".")[1:2]
    return room[0] if room and room[0] in FLOORS else ""


def upwards(graph):
    """The imports of a room below by one above it."""
    floors = {room: floor for floor, room in enumerate(("", *FLOORS))}
    return [
        (module, other)
        for module, other in graph.edges
        if room_of(module) != room_of(other) and floors[room_of(module)] > floors[room_of(other)]
    ]


@pytest.fixture(scope="module")
def house():
    return imports_between({module_of(path): path.read_text(encoding="utf-8") for path in ROOT.rglob("*.py")})


def test_no_large_circle(house):
    assert circles(house) == []


def test_imports_run_downwards(house):
    assert upwards(house) == []


def test_each_room_is_known(house):
    rooms = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert rooms == {*HIGHEST, *FLOORS}
    assert len(house) > 200


def test_a_circle_and_an_import_upwards_are_seen():
    ring = {
        f"integrations.policies.m{place}": f"from integrations.policies import m{(place + 1) % 6}" for place in range(6)
    }
    assert len(circles(imports_between(ring))) == 1
    sources = {
        "integrations.policies.one": "def f():\n    from integrations.runtime.two import g",
        "integrations.runtime.two": "",
    }
    assert upwards(imports_between(sources)) == [("integrations.policies.one", "integrations.runtime.two")]
