"""All tables of READMEs, by the name that pages and the command line know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from bench.readmes import actnn, checkpointing, claims, fewbit, gact
from bench.readmes.made import Made

TABLES: Mapping[str, Callable[[Path], Made]] = MappingProxyType(
    {
        "claims": claims.table,
        "gact": gact.table,
        "actnn": actnn.table,
        "fewbit": fewbit.table,
        "checkpointing": checkpointing.table,
    }
)
