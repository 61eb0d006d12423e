"""All benches, by the name of their command, and all kinds of record: the one place that knows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.cli.activations import BENCH as ACTIVATIONS
from bench.cli.bench import Bench
from bench.cli.checkpoint import BENCH as CHECKPOINT
from bench.cli.fewbit import BENCH as FEWBIT
from bench.cli.gnn import BENCH as GNN
from bench.cli.kernels import BENCH as KERNELS
from bench.cli.llm import BENCH as LLM
from bench.cli.search import BENCH as SEARCH
from bench.cli.sensitivity import BENCH as SENSITIVITY
from bench.cli.systems import BENCH as SYSTEMS
from bench.cli.text import BENCH as TEXT
from bench.cli.vision import BENCH as VISION
from bench.recorded_tests.operators import KIND as OPERATORS
from bench.recorded_tests.operators import REPORT as OPERATORS_REPORT
from bench.recorded_tests.sweep import KIND as SWEEP
from bench.recorded_tests.sweep_report import REPORT as SWEEP_REPORT
from bench.results.record import Kind
from bench.results.report import Report
from bench.suites.gpu_stages import KIND as STAGES
from bench.suites.gpu_stages import REPORT as STAGE

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


def kind_of(name: str) -> Kind:
    """A kind of record.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in RECORDS:
        raise ValueError(f"there is no bench {name!r}; there are {', '.join(RECORDS)}")
    kind, _ = RECORDS[name]
    return kind
