"""``Results``: everything one benchmark run found, with what is needed to repeat it; written as JSON and read back."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.kernels import KernelTime
from bench.machine import Machine
from bench.memory import Memory
from bench.training import Curve

_FORMAT = 1


@dataclass(frozen=True)
class Results:
    """What a run found: raw values only, from which tables and charts are computed.

    Attributes:
        machine: where and with what.
        dataset: name of the graph.
        data: the graph in words.
        recipe: how the models were trained, by name of the setting.
        curves: of every run.
        memories: of every model and level.
        kernels: times of the codec; empty where they were not measured.
        seconds: that training took, all runs and evaluations together.
    """

    machine: Machine
    dataset: str
    data: str
    recipe: dict[str, float]
    curves: list[Curve]
    memories: list[Memory]
    kernels: list[KernelTime] = field(default_factory=list)
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Writes JSON, each list of numbers on one line.

        Raises:
            BenchError: the file cannot be written.
        """
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1)
        text = re.sub(r"\[[-+.\deE,\s]+\]", lambda numbers: f"[{' '.join(numbers.group()[1:-1].split())}]", text)
        try:
            path.write_text(text + "\n")
        except OSError as error:
            raise BenchError(f"results cannot be written to {path} ({error.strerror}); name another file") from error

    @classmethod
    def load(cls, path: Path) -> Results:
        """Reads what ``save`` wrote.

        Raises:
            BenchError: the file cannot be read, or holds something else.
        """
        try:
            content: dict[str, Any] = json.loads(path.read_text())
            if content.pop("format") != _FORMAT:
                raise ValueError("another format")
            return cls(
                machine=Machine(**content.pop("machine")),
                curves=[Curve(**fields) for fields in content.pop("curves")],
                memories=[Memory(**fields) for fields in content.pop("memories")],
                kernels=[KernelTime(**fields) for fields in content.pop("kernels")],
                **content,
            )
        except OSError as error:
            raise BenchError(f"results cannot be read from {path} ({error.strerror})") from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BenchError(f"{path} holds no results of `python -m bench gnn --json` ({error})") from error
