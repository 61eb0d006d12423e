"""``attention_flops``: the floating-point operations of torch's attention operators.

``torch.utils.flop_counter`` has formulas for most of them. Up to torch 2.11 these raise if there are fewer key/value
heads than query heads, which CUDA's operators allow. The CPU's operator has no formula.
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
"""Operators that take tensors of shape (batch, tokens, heads, width), or packed sequences of several lengths: (tokens,
heads, width), or a batch of one. The numbers are the positions of two arguments: the starts of the query sequences
(``None`` for a batch), and the length of the longest key sequence."""


def is_attention(name: str) -> bool:
    """Return whether an operator is one of torch's attention operators.

    Args:
        name: the operator's name with its library, without the overload.
    """
    return name.startswith(_BATCHES) or name in _ROWS


def attention_flops(name: str, args: tuple[Any, ...]) -> int:
    """Return the operations of a call: a forward has two products of all queries with all keys, its backward five.

    As in torch's formulas, a causal mask does not lower the number. Sequences of several lengths count as if each had
    as many keys as the longest one.

    Args:
        name: the operator, see ``is_attention``.
        args: its arguments by position.

    Raises:
        Exception: the arguments do not match the operator.
    """
    backward = "backward" in name
    query, key, value = (_sizes(given) for given in args[backward : backward + 3])
    pairs = math.prod(query[:-1]) * _keys(name, args, key)
    of_width, of_value = (3, 2) if backward else (1, 1)
    return 2 * pairs * (of_width * query[-1] + of_value * value[-1])


def _keys(name: str, args: tuple[Any, ...], key: tuple[int, ...]) -> int:
    """Return the number of keys for each query."""
    if name not in _ROWS:
        return key[-2]
    begins, longest = _ROWS[name]
    return key[-3] if args[begins] is None else int(args[longest])


def _sizes(tensor: Tensor) -> tuple[int, ...]:
    return tuple(int(size) for size in tensor.shape)
