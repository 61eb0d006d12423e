"""fewbit: activations whose backward needs a few bits an element; linear layers that keep a sketch of their input."""

from integrations.fewbit.catalogue import FUNCTIONS, FewBitFunction
from integrations.fewbit.fit import approximate, estimate_error
from integrations.fewbit.steps import LevelTable, StepTable
from integrations.fewbit.tables import level_table, table

__all__ = [
    "FUNCTIONS",
    "FewBitFunction",
    "LevelTable",
    "StepTable",
    "approximate",
    "estimate_error",
    "level_table",
    "table",
]
