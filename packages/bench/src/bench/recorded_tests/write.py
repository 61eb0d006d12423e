"""Write what a test measures into a record, subject by subject."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from bench.errors import BenchError
from bench.recorded_tests.operators import KIND as OPERATORS
from bench.recorded_tests.sweep import KIND as SWEEP
from bench.results.entry import Entry
from bench.results.machine import PACKAGES, Machine
from bench.results.record import Kind
from bench.runner.run import Run

KINDS: Mapping[str, Kind] = MappingProxyType({kind.name: kind for kind in (OPERATORS, SWEEP)})


def measure_subjects(
    file: Path, kind: str, settings: dict[str, Any], subjects: Sequence[Any], measure: Callable[[Any], Any]
) -> list[Any]:
    """Measure subjects and write each result at once. Subjects that the file has, and that did not fail, are left out.

    Args:
        file: of the record; it may be there.
        kind: name of the record.
        settings: that make numbers differ; ``device`` is ``"cpu"`` if it is not among them.
        subjects: each with coordinates in ``place``.
        measure: returns a dataclass with the names of the kind's entry. What it raises is kept as the failure.

    Returns:
        What was measured now.

    Raises:
        AssertionError: a subject failed; the others were measured.
        BenchError: the folder is not there, or the file has results of other settings.
    """
    if not file.parent.is_dir():
        raise BenchError(f"{file} cannot be written: there is no folder {file.parent}; make it first")
    [entry] = KINDS[kind].entries
    device = torch.device(settings.get("device", "cpu"))
    machine = Machine.here(device, torch.get_num_threads(), (*PACKAGES, *KINDS[kind].packages))
    command = shlex.join(["python", "-m", "pytest", *sys.argv[1:]])
    run = Run(KINDS[kind], replace(machine, command=command), settings, file)
    by_place = {tuple(subject.place): subject for subject in subjects}
    found = []

    def measured(blank: Entry) -> Entry:
        found.append(measure(by_place[blank.place]))
        return entry.of(asdict(found[-1]))

    run.measure([entry(*place) for place in by_place], measured)
    failed = [one for one in run.record.of(entry) if one.failure and one.place in by_place]
    if failed:
        raise AssertionError("; ".join(f"{one.label}: {one.failure}" for one in failed))
    return found
