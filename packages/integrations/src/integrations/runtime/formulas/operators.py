"""Which torch functions are cheap enough to be repeated in backward, and how they are repeated without side effects.

Each of them makes one tensor, draws nothing, and takes about the time of reading and writing memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from integrations._utils.autocast import autocast_on
from integrations.policies.arguments import Arguments
from integrations.policies.operators import OPERATORS, Gain
from integrations.policies.rules import operator_name
from integrations.tracing.call import Call
from integrations.tracing.tensors import find_local, is_dtensor

Function = Callable[..., Any]

_GAINS = {name: entry.gain for entry in OPERATORS if entry.gain is not None for name in entry.names}
_ROWS = frozenset(name for entry in OPERATORS if entry.by_row for name in entry.names)
_SAMPLES = frozenset({"batch_norm", "group_norm"})
_JOINING = frozenset({"cat", "stack"})
_NEED_EXACT = (Gain.QUOTIENT, Gain.UNBOUNDED)
# What is behind a larger factor is cut down by an operator of a small range, of which its error may be a large part.
_STEEPEST = 4.0
# Activations that torch's layers ask by position to work in place.
_IN_PLACE = frozenset(
    {
        *("relu", "relu6", "leaky_relu", "elu", "celu", "silu", "mish"),
        *("hardswish", "hardtanh", "hardsigmoid"),
    }
)
CASTING = frozenset({"linear", "conv1d", "conv2d", "conv3d", "mm", "bmm", "addmm", "baddbmm"})
"""Operators whose arguments autocast casts, and that save these in the order in which they were given."""
CASTS = (torch.bfloat16, torch.float16)
"""The dtypes to which autocast casts."""

KNOWN: dict[Function, bool | None] = {}
"""By torch function: whether what it reads has to be exact; ``None`` for one that is not repeated."""


class Again(NamedTuple):
    """A call as backward repeats it.

    Attributes:
        function, args, kwargs: the function and its arguments.
    """

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def needs_exact(function: Function) -> bool | None:
    """Whether a function is repeated only with exact arguments; ``None`` if it is not repeated."""
    found = KNOWN.get(function, _UNASKED)
    if found is _UNASKED:
        known = _GAINS.get(operator_name(function))
        found = KNOWN[function] = None if known is None else known in _NEED_EXACT
    return found  # type: ignore[return-value]


_UNASKED = object()
_SAVING_RESULTS = frozenset(name for entry in OPERATORS if entry.saves_result for name in entry.names)


def amplifies(call: Call) -> bool:
    """Whether what a call reads has to be exact, since its result would amplify an error."""
    second = call.given.get(1, "exponent" if call.name == "pow" else "other")
    if call.name == "pow":
        return not (isinstance(second, int | float) and second >= 1)
    by_number = _GAINS.get(call.name) is Gain.QUOTIENT and isinstance(second, int | float) and not _is_reflected(call)
    return bool(needs_exact(call.function)) and not by_number


def _is_reflected(call: Call) -> bool:
    """Whether a call has its operands in reverse order, as ``1 / x`` has."""
    return str(getattr(call.function, "__name__", "")).startswith("__r")


def stays_on_rank(call: Call, result: Any) -> bool:
    """Whether a call can be repeated without communication. Of a DTensor, each rank computes its part from parts that
    are placed alike, or that it has whole. ``False`` for a DTensor that the call has overwritten: its part does not
    count its versions.

    Args:
        call: the call, of a function that is repeated.
        result: the tensor that the call returns, or that it saves for backward.
    """
    if not is_dtensor(result):
        return not any(map(is_dtensor, call.arguments))
    dims = _count_apart(call, result)
    if not all(one.is_replicate() or (one.is_shard() and one.dim < dims) for one in result.placements):
        return False
    return all(_is_local(given, call, result) for given in call.arguments)


def _is_local(given: Any, call: Call, result: Any) -> bool:
    """Whether each rank can compute its part of the result from its own part of an argument."""
    if not is_dtensor(given):  # torch takes larger ones only under implicit_replication(), where backward may not run
        return bool(given.numel() == 1)
    if given is result or given.device_mesh != result.device_mesh:
        return False
    if call.name not in _JOINING and all(one.is_replicate() for one in given.placements):
        return True
    # A dimension that is broadcast is sharded in another way than the result's.
    return bool(given.placements == result.placements) and all(
        one.is_replicate() or (given.dim() == result.dim() and given.shape[one.dim] == result.shape[one.dim])
        for one in result.placements
    )


def _count_apart(call: Call, result: Tensor) -> int:
    """How many of the first dimensions a call computes each index of by itself. A norm reads the others as a whole, and
    may add up over ranks inside, whatever the placement of its result."""
    if call.name in _ROWS:
        return result.dim() - len(tuple(call.given.get(1, "normalized_shape")))
    return 1 if call.name in _SAMPLES else result.dim()


def again_saved(call: Call, saved: Tensor) -> Again | None:
    """How backward repeats the call that is about to return a result which it saves; ``None`` if what it saves may be
    another tensor than what it returns.

    Args:
        call: the call that is running.
        saved: the tensor; of a DTensor, this rank's part.
    """
    given = call.given
    if call.name in _SAVING_RESULTS:
        return Again(call.function, given.args, given.kwargs)
    if call.name != "rms_norm":
        return None
    # This is what torch multiplies with the weight. For a narrow dtype it may also be a cast of the input.
    x, shape, eps = (given.get(*one) for one in ((0, "input"), (1, "normalized_shape"), (3, "eps")))
    part = find_local(x)
    if saved.shape != (x if part is None else part).shape or x.dtype not in (torch.float32, torch.float64):
        return None
    return Again(F.rms_norm, (x, tuple(shape), None, eps), {})


def overwrites(call: Call) -> bool:
    """Whether a call overwrites its first argument, by its name or arguments."""
    given = call.given
    return call.in_place or given.kwargs.get("inplace") is True or _says_in_place(call)


def _says_in_place(call: Call) -> bool:
    """Whether an activation is asked by position to work in place, as by ``F.relu(x, True)``."""
    given = call.given
    return call.name in _IN_PLACE and len(given.args) > 1 and given.args[-1] is True


def gain(call: Call, of: Sequence[float]) -> float:
    """The factor by which a call may amplify an error of its arguments; infinite where it is not known.

    Args:
        call: of a function that is repeated.
        of: the factors by which the tensors among its arguments are amplified already.
    """
    given, most = call.given, max(of, default=0.0)
    numbers = [abs(one) for one in given.args[:2] if isinstance(one, int | float)]
    known = _GAINS.get(call.name)
    if known is Gain.FACTOR:
        return numbers[0] * most if numbers else math.inf
    if known is Gain.QUOTIENT:
        return most / numbers[0] if numbers and numbers[0] else math.inf
    if known is Gain.SUM:
        return math.inf if "alpha" in given.kwargs else sum(of)
    if known is Gain.POWER:
        return most * (numbers[0] if numbers else 2.0)
    return math.inf if known is Gain.UNKNOWN else most


def hides(call: Call, of: Sequence[float]) -> bool:
    """Whether a call takes what was amplified to a small range, of which the error would be a large part."""
    return _GAINS.get(call.name) is Gain.NARROW and max(of, default=0.0) > _STEEPEST


def again(call: Call, result: Tensor, in_place: bool) -> Again | None:
    """A call as backward repeats it, without changing anything.

    Args:
        call: a call of a function that is repeated.
        result: the result that it has made.
        in_place: whether it has overwritten its first argument.

    Returns:
        ``None`` if the call cannot be repeated so.
    """
    given = call.given
    if "out" in given.kwargs or given.kwargs.get("rounding_mode") is not None or not result.is_floating_point():
        return None
    if call.name == "batch_norm":  # torch.batch_norm has the same arguments in another order
        return _batch_norm(given, result) if call.function is F.batch_norm else None
    if not in_place:
        return Again(call.function, given.args, given.kwargs)
    name = str(getattr(call.function, "__name__", "")).strip("_")
    if call.in_place or name in _DUNDERS:
        function = getattr(Tensor, _DUNDERS.get(name, name), None)
        return None if function is None else Again(function, given.args, given.kwargs)
    if given.kwargs.get("inplace") is True:
        return Again(call.function, given.args, {**given.kwargs, "inplace": False})
    if _says_in_place(call):
        return Again(call.function, (*given.args[:-1], False), given.kwargs)
    return None


_DUNDERS = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}


def _batch_norm(given: Arguments, result: Tensor) -> Again | None:
    """In training, the statistics are the batch's, which backward keeps; the running statistics must not be updated
    twice."""
    parameters = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance, weight, bias, training, momentum, eps = (given.get(*one) for one in enumerate(parameters))
    if training:
        statistics = [getattr(result.grad_fn, name, None) for name in ("_saved_result1", "_saved_result2")]
        if not all(isinstance(one, Tensor) and one.numel() == x.shape[1] for one in statistics):
            return None
        return Again(_normalized, (x, *statistics, weight, bias), {})
    return Again(F.batch_norm, (x, mean, variance, weight, bias, False, momentum, eps), {})


def _normalized(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """A batch norm by its statistics: the mean, and one over the deviation, which has the epsilon in it. Some versions
    of ``F.batch_norm`` refuse an epsilon of 0."""
    enabled = torch.backends.cudnn.enabled
    return torch.batch_norm(x, weight, bias, mean, scale.square().reciprocal(), False, 0.0, 0.0, enabled)


def get_autocast(tensor: Tensor) -> tuple[str, torch.dtype] | None:
    """Device and dtype of the autocast that a call runs under; ``None`` if there is none."""
    dtype = autocast_on(tensor.device)
    return None if dtype is None else (tensor.device.type, dtype)
