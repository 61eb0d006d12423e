"""All benchmarks and kinds of record by name, and records read, printed and drawn."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bench.recorded_tests.operators import KIND as OPERATORS
from bench.recorded_tests.operators import REPORT as OPERATORS_REPORT
from bench.recorded_tests.sweep import KIND as SWEEP
from bench.recorded_tests.sweep import REPORT as SWEEP_REPORT
from bench.results import record as files
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.runner.command import Bench
from bench.suites.curves.command import BENCH as CURVES
from bench.suites.fewbit.command import BENCH as FEWBIT
from bench.suites.gnn.command import BENCH as GNN
from bench.suites.gpu_stages import KIND as STAGES
from bench.suites.gpu_stages import REPORT as STAGE
from bench.suites.kernels.command import BENCH as KERNELS
from bench.suites.llm.command import BENCH as LLM
from bench.suites.memory.activations.command import BENCH as ACTIVATIONS
from bench.suites.memory.checkpoint.command import BENCH as CHECKPOINT
from bench.suites.memory.systems.command import BENCH as SYSTEMS
from bench.suites.search.command import BENCH as SEARCH
from bench.suites.sensitivity.command import BENCH as SENSITIVITY
from bench.suites.text.command import BENCH as TEXT
from bench.suites.vision.command import BENCH as VISION

# In the order in which commands are listed.
_ALL = (
    GNN,
    KERNELS,
    SENSITIVITY,
    ACTIVATIONS,
    VISION,
    FEWBIT,
    CHECKPOINT,
    SYSTEMS,
    SEARCH,
    TEXT,
    LLM,
    CURVES,
)

BENCHES: Mapping[str, Bench] = MappingProxyType({bench.kind.name: bench for bench in _ALL})

RECORDS: Mapping[str, tuple[Kind, Report]] = MappingProxyType(
    {
        **{name: record for bench in _ALL for name, record in bench.reports.items()},
        SWEEP.name: (SWEEP, SWEEP_REPORT),
        OPERATORS.name: (OPERATORS, OPERATORS_REPORT),
        STAGES.name: (STAGES, STAGE),
    }
)
"""Kinds and reports by name: of all commands, of tests that record, and of recorded GPU stages."""


def load(path: Path) -> Record:
    """Reads what ``save`` wrote, of any kind.

    Raises:
        BenchError: the file cannot be read, or holds something else.
    """
    return files.load(path, _find_kind)


def find_report(record: Record) -> Report:
    """What is printed and drawn of a record."""
    _, report = RECORDS[record.kind]
    return report


def _find_kind(name: str) -> Kind:
    if name not in RECORDS:
        raise ValueError(f"there is no benchmark {name!r}; choose from {', '.join(RECORDS)}")
    kind, _ = RECORDS[name]
    return kind
