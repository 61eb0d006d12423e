"""Which versions of torch have which of its private names, as ``tools/torch_names.py`` has recorded it from each."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

HAS, LACKS, UNKNOWN = "y", "n", "?"
FILE = Path(__file__).with_name("torch_versions.json")


@cache
def recorded() -> dict[str, dict[str, str]]:
    """Version -> path of a name -> ``HAS`` or ``LACKS``; the oldest version first. A name that is used since a version
    was recorded is not in it."""
    content = json.loads(FILE.read_text(encoding="utf-8"))
    return {
        version: {path: marks[place] for path, marks in content["names"].items() if marks[place] != UNKNOWN}
        for place, version in enumerate(content["versions"])
    }


def content_with(version: str, found: dict[str, bool]) -> str:
    """The file's content with another version, or the same one anew."""
    known = recorded() | {version: {path: HAS if is_there else LACKS for path, is_there in found.items()}}
    versions = sorted(known, key=lambda one: [int(part) for part in one.split(".")])
    paths = sorted({path for names in known.values() for path in names})
    names = {path: "".join(known[one].get(path, UNKNOWN) for one in versions) for path in paths}
    return json.dumps({"versions": versions, "names": names}, indent=1) + "\n"
