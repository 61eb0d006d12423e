"""Which operators' results may jump where their arguments change a little, by name.

``tracing`` follows activations call by call, and ``capture`` operator by operator; both use these lists.
"""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """The names in a text with spaces between them."""
    return frozenset(text.split())


OF_SHAPES = names(
    """empty_like zeros_like ones_like full_like rand_like randn_like randint_like
    new_empty new_empty_strided new_zeros new_ones new_full new_tensor"""
)
"""Operators that only read the shapes of their arguments."""

JUMPING = names(
    """round floor ceil trunc fix sign sgn heaviside floor_divide floordiv remainder mod fmod frac threshold hardshrink
    eq equal ne not_equal lt less le less_equal gt greater ge greater_equal
    logical_and logical_or logical_xor logical_not bernoulli poisson binomial gumbel_softmax"""
)
"""Operators whose results jump, whatever the dtype: a comparison in place has that of its argument."""

# Torch's, torchvision's and our operators, whose results tell, and collectives, which add and move.
_KNOWN = names(
    """aten prims prim torchvision actcore integrations
    c10d _c10d_functional _c10d_functional_autograd _dtensor fsdp symm_mem"""
)


def may_jump_unseen(name: str) -> bool:
    """Whether it is unknown what an operator, as ``library::operator``, does: it may pick an expert within itself, and
    return floats."""
    library, separator, _ = name.partition("::")
    return bool(separator) and library not in _KNOWN
