"""Runs that an interrupted training finished: kept beside the file it was to write, and taken up by the next one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.fewbit.training import BertRun
from bench.machine import Machine


class Unfinished:
    """The finished runs of a training that has not ended.

    They are taken up only by a training of the same sentences, recipe, processor, versions and threads: others would
    be no pairs. Each run says of which commit it is.

    Attributes:
        file: where they are; ``None``: nowhere.
        runs: that are finished.
    """

    def __init__(self, results: Path | None, data: str, recipe: Mapping[str, float], machine: Machine) -> None:
        """Reads what there is.

        Args:
            results: the file that the training is to write; ``None``: nothing is kept.
            data: the sentences in words.
            recipe: of the training.
            machine: where it runs, and with what.

        Raises:
            BenchError: there are runs of another training, which this one's would take the place of.
        """
        self.file = None if results is None else partial_file(results)
        self.runs: list[BertRun] = []
        self._settings: dict[str, Any] = {
            "data": data,
            "recipe": dict(recipe),
            "processor": machine.processor,
            "versions": machine.versions,
            "threads": machine.threads,
        }
        if self.file is not None and self.file.is_file():
            try:
                content = json.loads(self.file.read_text())
                settings = dict(content["settings"])
                self.runs = [BertRun(**entry) for entry in content["runs"]]
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise BenchError(f"{self.file} cannot be taken up ({error}); delete it to start anew") from error
            if other := [name for name, value in self._settings.items() if settings.get(name, value) != value]:
                raise BenchError(
                    f"{self.file} holds runs of another training, which differ in {', '.join(other)}; name another "
                    "--json, or delete it"
                )

    def find(self, kind: str, seed: int) -> BertRun | None:
        """That run, if it is finished."""
        return next((run for run in self.runs if (run.kind, run.seed) == (kind, seed)), None)

    def add(self, run: BertRun) -> None:
        """Keeps a run that has just finished.

        Raises:
            BenchError: the file cannot be written.
        """
        self.runs.append(run)
        if self.file is None:
            return
        content = {"settings": self._settings, "runs": [asdict(one) for one in self.runs]}
        try:
            self.file.write_text(json.dumps(content) + "\n")
        except OSError as error:
            raise BenchError(f"runs cannot be kept in {self.file} ({error.strerror}); name another file") from error


def partial_file(results: Path) -> Path:
    """Where the finished runs are of a training that is to write ``results``."""
    return results.with_suffix(".partial.json")
