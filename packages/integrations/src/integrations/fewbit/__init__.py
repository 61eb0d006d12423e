"""fewbit: activations whose backward needs a few bits an element; linear layers that keep a sketch of their input."""

from integrations.fewbit import functional
from integrations.fewbit.catalogue import FUNCTIONS, FewBitFunction
from integrations.fewbit.modules import LinearCRS, LinearGRP, RandomizedLinear
from integrations.fewbit.variance import VarianceEstimator

__all__ = [
    "FUNCTIONS",
    "FewBitFunction",
    "LinearCRS",
    "LinearGRP",
    "RandomizedLinear",
    "VarianceEstimator",
    "functional",
]
