"""Where a stage runs: its device, its sizes, its folders, and the environment of its processes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[5]
"""Of the repository."""
SCRATCH = ROOT / "build" / "gpu"
"""Which git ignores."""
SITE = SCRATCH / "site"
"""What the stage ``build`` builds goes there. On a GPU it comes before what is installed."""


@dataclass(frozen=True)
class Place:
    """Where a stage runs.

    Attributes:
        device: ``"cuda"`` or ``"cpu"``.
        dry: whether sizes are small, to show that all works.
        out: the folder of results.
    """

    device: str
    dry: bool
    out: Path

    def python(self, module: str, *arguments: str | Path) -> list[str]:
        """A command that runs a module with this Python."""
        return [sys.executable, "-W", "ignore", "-m", module, *map(str, arguments)]

    def environment(self, **more: str) -> dict[str, str]:
        """Of a process: the packages of this repository, as they are."""
        return {**os.environ, "PYTHONPATH": os.pathsep.join(self._path()), "PYTHONUNBUFFERED": "1", **more}

    def make_importable(self) -> None:
        """Lets this process import what a stage has built since it began."""
        if self._built and str(SITE) not in sys.path:
            sys.path.insert(0, str(SITE))

    @property
    def _built(self) -> bool:
        return self.device == "cuda" and (SITE / "actcore").is_dir()

    def _path(self) -> list[str]:
        """The folders that packages are imported from, the first ones first."""
        found = [str(SITE)] if self._built else []
        found += [str(ROOT / "packages" / name / "src") for name in ("integrations", "bench")]
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return list(dict.fromkeys([*found, *filter(None, given)]))
