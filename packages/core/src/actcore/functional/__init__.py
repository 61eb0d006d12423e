"""Layers whose backward needs few bits an element: ReLU, dropout, max pooling, and functions with stepwise derivatives.

Each computes what its namesake in ``torch.nn.functional`` does and keeps for backward, in place of a tensor, the bits
that backward needs. They work under ``torch.func.grad``, ``vjp`` and ``vmap`` (not ``jvp``), have second derivatives,
and ``torch.compile`` makes one graph of them. Channels-last and transposed inputs give outputs of the same memory
order.
"""

from actcore.functional.arguments import in_memory_order, restored
from actcore.functional.levels import round_to_levels
from actcore.functional.masked import dropout, relu
from actcore.functional.pool import max_pool1d, max_pool2d, max_pool3d
from actcore.functional.stepwise import stepwise

__all__ = [
    "dropout",
    "in_memory_order",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "relu",
    "restored",
    "round_to_levels",
    "stepwise",
]
