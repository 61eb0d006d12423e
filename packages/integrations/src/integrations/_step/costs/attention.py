"""``attention_flops``: the floating-point operations of torch's attention operators.

``torch.utils.flop_counter`` has formulas for most of them. Up to torch 2.11 they raise if there are fewer key/value
heads than query heads, as CUDA's operators allow, and the CPU's operator has none.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

_BATCHES = "aten::_scaled_dot_product_"
"""The beginning of the names of operators that take tensors of (batch, heads, tokens, width)."""

_ROWS = {
    "aten::_flash_attention_forward": (3, 6),
    "aten::_flash_attention_backward": (6, 9),
    "aten::_efficient_attention_forward": (4, 7),
    "aten::_efficient_attention_backward": (6, 9),
}
"""Operators that take tensors of (batch, tokens, heads, width), or sequences of several lengths one after the other:
(tokens, heads, width), or a batch of one. The numbers are the places of two arguments: where each query's sequence
begins, ``None`` for a batch; and the length of the longest sequence of keys."""


def is_attention(name: str) -> bool:
    """Return whether an operator is one of torch's attention operators.

    Args:
        name: with its library, without the overload.
    """
    return name.startswith(_BATCHES) or name in _ROWS


def attention_flops(name: str, args: tuple[Any, ...]) -> int:
    """Return the operations of a call: a forward has two products of all queries with all keys, its backward five.

    A causal mask does not lower the number, as in torch's formulas. If sequences have several lengths, the keys of each
    count as many as the longest one has.

    Args:
        name: the operator, see ``is_attention``.
        args: its arguments by position.

    Raises:
        Exception: these are not the arguments of such an operator.
    """
    backward = "backward" in name
    query, key, value = (_sizes(given) for given in args[backward : backward + 3])
    pairs = math.prod(query[:-1]) * _keys(name, args, key)
    of_width, of_value = (3, 2) if backward else (1, 1)
    return 2 * pairs * (of_width * query[-1] + of_value * value[-1])


def _keys(name: str, args: tuple[Any, ...], key: tuple[int, ...]) -> int:
    """Return the number of keys that each query meets."""
    if name not in _ROWS:
        return key[-2]
    begins, longest = _ROWS[name]
    return key[-3] if args[begins] is None else int(args[longest])


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)
