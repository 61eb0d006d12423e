"""Fake kernels of the fused operators, and how autograd, ``torch.func`` and ``vmap`` see them.

Each operator that has a gradient gets an ``autograd.Function``, which is what ``actcore.relu`` and the others call:
unlike a formula registered on the operator it works under ``torch.func``. The same formula is registered on the raw
operator too, for graphs that ``torch.compile`` makes of it. Every backward is linear in the gradient and is such a
Function itself, so second derivatives are right.

Forward-mode derivatives (``torch.func.jvp``) raise: ``torch.compile`` refuses a Function that has them.
"""

from actcore.fused import fakes as fakes  # registers
from actcore.fused import rules as rules  # registers
from actcore.fused.levels import RoundToLevels
from actcore.fused.masked import Dropout, Relu, dropout_scale
from actcore.fused.pool import MaxPool
from actcore.fused.stepwise import Stepwise

__all__ = ["FUSED_OPERATORS", "Dropout", "MaxPool", "Relu", "RoundToLevels", "Stepwise", "dropout_scale"]

FUSED_OPERATORS = (
    "relu_mask",
    "dropout_mask",
    "mask_backward",
    "stepwise",
    "stepwise_codes",
    "stepwise_backward",
    "level_codes",
    "max_pool",
    "max_pool_backward",
    "window_index_pack",
    "window_index_unpack",
)
