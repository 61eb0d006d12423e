"""Which operators' results may jump where their arguments change a little, by name.

``tracing`` follows activations call by call, and ``capture`` operator by operator; both use these names.
"""

from __future__ import annotations

from integrations.policies.operators import OPERATORS

OF_SHAPES = frozenset(name for entry in OPERATORS if entry.reads_shape for name in entry.names)
"""Operators that only read the shapes of their arguments."""

JUMPING = frozenset(name for entry in OPERATORS if entry.discontinuous for name in entry.names)
"""Operators whose results jump, whatever the dtype: a comparison in place has that of its argument."""

# Torch's, torchvision's and our operators, whose results tell, and collectives, which add and move.
_KNOWN = frozenset(
    {
        *("aten", "prims", "prim", "torchvision", "actcore", "integrations"),
        *("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem"),
    }
)


def may_jump_unseen(name: str) -> bool:
    """Whether it is unknown what an operator, as ``library::operator``, does: it may pick an expert within itself, and
    return floats."""
    library, separator, _ = name.partition("::")
    return bool(separator) and library not in _KNOWN
