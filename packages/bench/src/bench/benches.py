"""All benches, by the name of their command and of their records: the one place that knows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.llm import measure as llm_measure
from bench.llm import report as llm_report
from bench.llm import results as llm_results
from bench.record.bench import Bench
from bench.record.kind import Kind

_ALL: tuple[Bench, ...] = (
    Bench(
        llm_results.KIND,
        "language models: the loss of large vocabularies, whole and in chunks",
        llm_measure.options,
        llm_measure.run,
        llm_report.REPORT,
    ),
)

BENCHES: Mapping[str, Bench] = MappingProxyType({bench.kind.name: bench for bench in _ALL})


def kind_of(name: str) -> Kind:
    """A kind of record.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in BENCHES:
        raise ValueError(f"there is no bench {name!r}")
    return BENCHES[name].kind
