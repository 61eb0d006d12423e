"""Whether a tensor may have masked elements, which were replaced by the lowest number or by minus infinity.

A group with such elements and others would have steps as large as the mask's value, or infinite ones, and nothing would
be left of the others. The operators that made the elements tell, without a look at the elements that would wait for a
device. They are a list, and no list knows all ways to mask; so tensors in the CPU's memory are looked at, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from actcore import Layout
from actcore.ops import below_autograd
from integrations.policies.operators import OPERATORS, Effect
from integrations.tracing.tensors import find_node

_EFFECTS = {node: entry.effect for entry in OPERATORS if entry.effect is not None for node in entry.nodes.split()}
# With an operand that has no gradient, these may add a mask, put it beside the rest, or take it where it is further
# away.
_WITH_ANOTHER = (Effect.SUMS, Effect.PICKS, Effect.JOINS)


def may_be_masked(tensor: Tensor) -> bool:
    """Whether the last sum or choice that made the elements combined an operand without a gradient with one that has
    one, however they were moved and scaled since. The bias of attention, ``(scores + mask) / 8``, is made so; hidden
    states, sums of operands with gradients, are not."""
    waiting, met = [find_node(tensor)], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in met:
            continue
        met.add(node)
        name = node.name().removeprefix("torch::autograd::").partition("Backward")[0]
        before = [found for found, _ in node.next_functions]
        effect = _EFFECTS.get(name)
        if effect is Effect.PUTS or (effect in _WITH_ANOTHER and None in before):
            return True
        if effect in (Effect.SCALES, Effect.JOINS):
            waiting += before
        elif effect in (Effect.SAME, Effect.MOVES):
            waiting.append(before[0])
    return False


def is_masked(tensor: Tensor, group_size: int) -> bool:
    """Whether a group of the tensor's elements, as they are stored, is so wide, as masked elements make it, that codes
    would leave nothing of most of them: ``torch.ops.actcore.has_wide_group``. Reads the tensor, and so is meant for the
    CPU."""
    flat = Layout.of(tensor).flatten(tensor.detach())
    return bool(below_autograd(torch.ops.actcore.has_wide_group.default, flat, group_size))
