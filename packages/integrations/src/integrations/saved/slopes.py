"""What an activation saves, as the few bits that tell its derivative: for which calls, by which policy, in which form."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from actcore import FLOATS, SavedTensor
from integrations.fewbit.catalogue import FUNCTIONS
from integrations.fewbit.codebook import Codebook
from integrations.fewbit.representatives import saves_one
from integrations.fewbit.shipped import SMOOTH
from integrations.levels import Level
from integrations.saved.arguments import Arguments
from integrations.saved.forms import Held
from integrations.saved.policy import Decision, Policy

WHY = "backward asks only for the derivative, of which these bits tell the nearest level"
"""The reason in a row."""

_NO_CURVATURE = (
    "an activation whose derivative is stored in a few bits has no second derivative, and create_graph=True would give "
    "another number for it; store its input in bits (slope_bits=None) where gradients are differentiated"
)


def codebook_of(name: str, given: Arguments, in_place: bool, bits: int, dtype: torch.dtype) -> Codebook | None:
    """The codec for what a call saves; ``None`` where it is no activation that has one for these arguments.

    Args:
        name: of the called function, as ``operator_name`` has it.
        given: its arguments.
        in_place: whether its name says that it overwrites its input; an argument may say so, too.
        bits: of the derivative.
        dtype: of the saved tensor.
    """
    after, function = 1, name
    if name == "gelu":
        after, function = 2, "gelu_tanh" if given.get(1, "approximate", "none") == "tanh" else "gelu"
    if function not in SMOOTH or dtype not in FLOATS:
        return None
    defaults = FUNCTIONS[function].defaults
    parameters = [given.get(position, name, default) for position, (name, default) in enumerate(defaults.items(), 1)]
    flags = [*given.args[after + len(defaults) :], given.kwargs.get("inplace", False)]
    if not all(isinstance(flag, bool) for flag in flags):
        return None  # torch.nn.functional's functions take there whether to work in place, and aten's elu takes scales
    if not all(type(number) in (int, float) and math.isfinite(number) for number in parameters):
        return None
    what = saves_one(function, in_place or any(flags))
    if not what:
        return None
    codebook = Codebook(function, bits, tuple(map(float, parameters)), result=what == "result")
    return None if codebook.representatives(dtype) is None else codebook


@dataclass(frozen=True)
class Slopes:
    """A policy that stores what an activation saves by its derivative, and all else as another one says.

    Attributes:
        policy: the other.
        bits: of the derivative, 1 to 8.
        level: says what is too small, and which modules are kept exactly.
    """

    policy: Policy
    bits: int
    level: Level

    def decide(self, saved: SavedTensor) -> Decision:
        """The other's decision, which holds where the call's arguments allow no codebook."""
        decision = self.policy.decide(saved)
        too_small = saved.shape.numel() * saved.dtype.itemsize < self.level.min_bytes
        if too_small or saved.module in self.level.keep or not _has_slope(saved):
            return decision
        return replace(decision, slope_bits=self.bits)


def _has_slope(saved: SavedTensor) -> bool:
    """Whether it is what a call of a smooth function saves, if torch's function of that name saves one tensor."""
    function = saved.operator.split(" ", 1)[0]  # "elu with another alpha"
    if function not in SMOOTH or saved.dtype not in FLOATS or saved.role not in ("input", "result", "internal"):
        return False
    return bool(saves_one(function) or saves_one(function, in_place=True))


@dataclass(frozen=True, eq=False)
class Slope(Held):
    """The codes of a ``Codebook``, for the first derivative alone."""

    def unpack(self) -> Tensor:
        """Elements with the levels for slopes.

        Raises:
            RuntimeError: autograd asks with a graph of this backward to come, in which they would mean nothing.
        """
        if torch.is_grad_enabled():
            raise RuntimeError(_NO_CURVATURE)
        return super().unpack()
