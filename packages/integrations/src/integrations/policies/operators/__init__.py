"""The registry of operators: one entry for each operator of torch that the library knows something about.

Eager and compiled code, the capture, the cost model and the planner read it. An operator of torch that has no entry is
kept exactly, never repeated, and counted by its memory traffic. ``docs/how-to/extend.md`` adds one.
"""

from integrations.policies.operators.memory import MEMORY
from integrations.policies.operators.operator import Aten, Effect, Gain, Kernel, Operator
from integrations.policies.operators.pointwise import POINTWISE
from integrations.policies.operators.products import PRODUCTS
from integrations.policies.operators.reductions import REDUCTIONS

__all__ = ["OPERATORS", "Aten", "Effect", "Gain", "Kernel", "Operator"]

OPERATORS: tuple[Operator, ...] = (*PRODUCTS, *REDUCTIONS, *POINTWISE, *MEMORY)
