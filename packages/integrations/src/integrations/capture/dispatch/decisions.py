"""Operators that decide: for arguments that differ a little, they may give a wholly different result.

Examples are a comparison, a sort, the choice of an expert. What backward recomputes from rounded values decides as the
forward did, except near a tie. There the gradient belongs to another function than the loss, however the rounding
falls: that is no noise, and no mean over steps removes it.

Others amplify: near a pole, an error of what they read grows without bound, in their results or in their derivatives.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import OpOverload
from integrations.capture.dispatch.memory import iter_tensors
from integrations.policies.discontinuous_ops import JUMPING, OF_SHAPES, may_jump_unseen
from integrations.policies.operators import OPERATORS


class Decides(Enum):
    """What an operator decides by the elements that it reads."""

    NOTHING = "its results change little where its arguments do"
    WHOLE_NUMBERS = "its results are places or whole numbers, or go with such"
    EXACTLY = "what it reads and what it makes are only right beside each other"


def _aten(names: Iterable[str]) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names)


def _listed(names: str) -> frozenset[str]:
    return _aten(names.split())


_OF_SHAPES = _aten(OF_SHAPES)
_DRAWN = "aten::bernoulli", "p"  # draws as rand_like does; the other overloads read probabilities, and decide

# Their integers and truth values are drawn, or are a kernel's notes for its own backward.
_NOTES = _listed(
    """native_dropout _fused_dropout _native_multi_head_attention
    _scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
    _scaled_dot_product_fused_attention_overrideable
    _flash_attention_forward _efficient_attention_forward _cudnn_attention_forward
    _cudnn_rnn mkldnn_rnn_layer miopen_rnn cudnn_batch_norm _batch_norm_with_update"""
)

# Our operators do not decide either: their bytes are stored forms and steps of smooth derivatives; exceptions are a
# ReLU's signs and a pool's indices.
_OURS = frozenset({"actcore", "integrations"})
_OURS_DECIDING = frozenset({"actcore::relu_mask", "actcore::positive_mask", "actcore::max_pool"})

_JUMPING = _aten(JUMPING)
_ROUNDING_MODE = "_mode"  # the overloads of div that round

# Backward looks for the results among the arguments: neither may be rounded or recomputed from rounded values.
_FOUND_AGAIN = _aten(name for entry in OPERATORS if entry.searches for name in entry.names)
# By operator: the place of its order. A norm of order inf picks its largest element.
_OF_ORDER = {"aten::linalg_vector_norm": 1, "aten::norm": 1, "aten::_cdist_forward": 2}

# By operator: the places of the arguments whose errors it amplifies near a pole. The pole is of the first of them.
_POLES = {f"aten::{name}": entry.poles for entry in OPERATORS if entry.poles for name in entry.names}


def reads_elements(function: OpOverload) -> bool:
    """Whether an operator's results depend on the elements of its arguments."""
    schema = function._schema
    return schema.name not in _OF_SHAPES and (schema.name, schema.overload_name) != _DRAWN


def decides(
    function: OpOverload, args: tuple[Any, ...], results: Iterable[Any], differentiated: bool = False
) -> Decides:
    """What an operator decides.

    Args:
        function: the operator.
        args: the positional arguments of its call.
        results: the call's results.
        differentiated: whether an argument is the part of a DTensor that has a gradient.
    """
    name = _get_name(function)
    has_gradient = torch.is_grad_enabled() and (differentiated or _has_gradient(args))
    if not reads_elements(function) or name in _NOTES:
        return Decides.NOTHING
    if function.namespace in _OURS and name not in _OURS_DECIDING:
        return Decides.NOTHING
    dtypes = {tensor.dtype for tensor in iter_tensors(results)}
    jumps = name in _JUMPING or may_jump_unseen(name) or function._schema.overload_name.endswith(_ROUNDING_MODE)
    if torch.bool in dtypes or jumps or (has_gradient and _by_order(name, args)):
        return Decides.EXACTLY
    # Only the indices of the largest elements of a dimension are returned, and backward reads nothing else.
    places = any(not dtype.is_floating_point and not dtype.is_complex for dtype in dtypes)
    if places:
        return Decides.WHOLE_NUMBERS
    return Decides.EXACTLY if name in _FOUND_AGAIN and has_gradient else Decides.NOTHING


def amplified(function: OpOverload, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an operator whose errors it may amplify without bound, if the first of them is slightly off:
    that one may be near a pole of the operator."""
    name = _get_name(function)
    if name == "aten::pow" and len(args) > 1 and isinstance(args[1], (int, float)) and args[1] >= 1:
        return ()  # it is finite at 0, as its derivative is
    return tuple(args[place] for place in _POLES.get(name, ()))


def _get_name(function: OpOverload) -> str:
    """The operator's name, the same for its form in place."""
    name: str = function._schema.name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def _by_order(name: str, args: tuple[Any, ...]) -> bool:
    place = _OF_ORDER.get(name)
    if place is None or len(args) <= place:
        return False
    order = args[place]
    return isinstance(order, (int, float)) and abs(order) == float("inf")


def _has_gradient(args: tuple[Any, ...]) -> bool:
    return any(tensor.requires_grad for tensor in iter_tensors(args))


def may_be_rounded(tensor: Tensor) -> bool:
    """Whether a repetition may read a rounded tensor in this one's place."""
    return tensor.requires_grad and tensor.is_floating_point()
