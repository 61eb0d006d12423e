#!/usr/bin/env python3
"""List every message that a user may see of an error or a warning, with its place, to be read aloud.

python tools/list_messages.py [FOLDER ...]   # default: the sources of the three packages
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = [
    Path(__file__).resolve().parents[1] / "packages" / name / "src" for name in ("core", "integrations", "bench")
]


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each message in a file; placeholders stay as they are in the source."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        raised = node.exc if isinstance(node, ast.Raise) else None
        warned = isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "warn"
        call = raised if isinstance(raised, ast.Call) else node if warned else None
        if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant | ast.JoinedStr):
            yield call.lineno, ast.unparse(call.args[0])


def main() -> None:
    """Print the messages, file by file."""
    for folder in map(Path, sys.argv[1:]) if len(sys.argv) > 1 else SOURCES:
        for path in sorted(folder.rglob("*.py")):
            for line, text in sorted(messages(path)):
                print(f"{path.name}:{line}: {text}")


if __name__ == "__main__":
    main()
