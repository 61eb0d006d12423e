"""Texts on record, which a test compares with what the library gives today, and which are renewed only on purpose."""

import difflib
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "snapshots"
RENEW = "ACTCORE_RENEW_SNAPSHOTS"
_MOST_LINES = 60


def is_renewed():
    return bool(os.environ.get(RENEW))


def assert_on_record(name, found):
    """Compare a text with the file of that name; write the file if the environment asks for it.

    Args:
        name: of a file in ``snapshots/``.
        found: the text that the library gives today, which ends with a line break.
    """
    path = FOLDER / name
    if is_renewed():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
        return
    recorded = path.read_text(encoding="utf-8") if path.exists() else ""
    if found == recorded:
        return
    texts = recorded.splitlines(), found.splitlines()
    changes = list(difflib.unified_diff(*texts, "on record", "found", lineterm="", n=0))
    shown = "\n".join(line[:300] for line in changes[:_MOST_LINES])
    left_out = f"\n... and {len(changes) - _MOST_LINES} lines more" if len(changes) > _MOST_LINES else ""
    pytest.fail(
        f"{name} is no longer what is on record. Users see this, so it changes only on purpose. If it is meant, renew "
        f"the record with {RENEW}=1 pytest {Path(os.environ['PYTEST_CURRENT_TEST'].split('::')[0]).name}, review its "
        f"diff, and tell users in CHANGELOG.md.\n{shown}{left_out}",
        pytrace=False,
    )
