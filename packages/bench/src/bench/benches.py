"""All benches, by the name of their command and of their records: the one place that knows them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from bench.activations.command import BENCH as ACTIVATIONS
from bench.checkpoint.command import BENCH as CHECKPOINT
from bench.fewbit.command import BENCH as FEWBIT
from bench.gnn.command import BENCH as GNN
from bench.llm.command import BENCH as LLM
from bench.record.bench import Bench
from bench.record.kind import Kind
from bench.search.command import BENCH as SEARCH
from bench.sensitivity.command import BENCH as SENSITIVITY
from bench.sweep.command import BENCH as SWEEP
from bench.systems.command import BENCH as SYSTEMS
from bench.text.command import BENCH as TEXT
from bench.vision.command import BENCH as VISION

_ALL = (
    GNN,
    SENSITIVITY,
    ACTIVATIONS,
    VISION,
    FEWBIT,
    CHECKPOINT,
    SYSTEMS,
    SEARCH,
    SWEEP,
    TEXT,
    LLM,
)  # in the order in which commands are listed

BENCHES: Mapping[str, Bench] = MappingProxyType({bench.kind.name: bench for bench in _ALL})


def kind_of(name: str) -> Kind:
    """A kind of record.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in BENCHES:
        raise ValueError(f"there is no bench {name!r}")
    return BENCHES[name].kind
