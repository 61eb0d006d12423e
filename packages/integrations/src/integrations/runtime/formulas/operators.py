"""Which torch functions are cheap enough to be repeated in backward, and how they are repeated without side effects.

Each of them makes one tensor, draws nothing, and takes about the time of reading and writing memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from integrations.calls.call import Call
from integrations.common.jumps import names
from integrations.rules.arguments import Arguments
from integrations.rules.rules import operator_name

Function = Callable[..., Any]

# Their values and slopes are bounded, so that an error in what they read is not amplified.
_STEADY = names(
    """add radd iadd sub rsub isub mul multiply addcmul neg square pow silu gelu relu leaky_relu elu celu mish softplus
    hardswish relu6 hardtanh hardsigmoid log_sigmoid logsigmoid sigmoid tanh erf sin cos abs glu clamp clip clamp_min
    clamp_max where masked_fill layer_norm rms_norm group_norm batch_norm to type type_as float double half bfloat16
    contiguous clone cat stack"""
)
# These amplify it, so what they read has to be exact.
_AMPLIFYING = names("rtruediv sqrt rsqrt reciprocal exp exp2 expm1 log rpow")
_QUOTIENTS = names("div divide true_divide truediv itruediv")  # they amplify an error if the divisor is a tensor
CASTING = names("linear conv1d conv2d conv3d mm bmm addmm baddbmm")
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
        name = operator_name(function)
        found = KNOWN[function] = True if name in _AMPLIFYING | _QUOTIENTS else False if name in _STEADY else None
    return found  # type: ignore[return-value]


_UNASKED = object()
_SAVING_RESULTS = names("sigmoid tanh exp exp2 expm1 sqrt rsqrt reciprocal")  # these save their result and nothing else


def amplifies(call: Call) -> bool:
    """Whether what a call reads has to be exact, since its result would amplify an error."""
    second = call.given.get(1, "exponent" if call.name == "pow" else "other")
    if call.name == "pow":
        return not (isinstance(second, int | float) and second >= 1)
    by_number = call.name in _QUOTIENTS and isinstance(second, int | float) and not _is_reflected(call)
    return bool(needs_exact(call.function)) and not by_number


def _is_reflected(call: Call) -> bool:
    """Whether a call has its operands in reverse order, as ``1 / x`` has."""
    return str(getattr(call.function, "__name__", "")).startswith("__r")


def again_saved(call: Call, saved: Tensor) -> Again | None:
    """How backward repeats the call that is about to return a result which it saves; ``None`` if what it saves may be
    another tensor than what it returns.

    Args:
        call: the call that is running.
        saved: the tensor.
    """
    given = call.given
    if call.name in _SAVING_RESULTS:
        return Again(call.function, given.args, given.kwargs)
    if call.name != "rms_norm":
        return None
    # This is what torch multiplies with the weight. For a narrow dtype it may also be a cast of the input.
    x, shape, eps = (given.get(*one) for one in ((0, "input"), (1, "normalized_shape"), (3, "eps")))
    if saved.shape != x.shape or x.dtype not in (torch.float32, torch.float64):
        return None
    return Again(F.rms_norm, (x, tuple(shape), None, eps), {})


def overwrites(call: Call) -> bool:
    """Whether a call overwrites its first argument, by its name or arguments."""
    given = call.given
    return call.in_place or given.kwargs.get("inplace") is True or (bool(given.args) and given.args[-1] is True)


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
    if "out" in given.kwargs:
        return None
    if call.name == "batch_norm":
        return _batch_norm(given, result)
    if not in_place:
        return Again(call.function, given.args, given.kwargs)
    name = str(getattr(call.function, "__name__", "")).strip("_")
    if call.in_place or name in _DUNDERS:
        function = getattr(Tensor, _DUNDERS.get(name, name), None)
        return None if function is None else Again(function, given.args, given.kwargs)
    if given.kwargs.get("inplace") is True:
        return Again(call.function, given.args, {**given.kwargs, "inplace": False})
    if given.args and given.args[-1] is True:  # F.relu(x, True)
        return Again(call.function, (*given.args[:-1], False), given.kwargs)
    return None


_DUNDERS = {"iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div"}


def _batch_norm(given: Arguments, result: Tensor) -> Again | None:
    """In training, the statistics are the batch's, which backward keeps; the running statistics must not be updated
    twice."""
    parameters = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    x, mean, variance, weight, bias, training, momentum, eps = (given.get(*one) for one in enumerate(parameters))
    if training is None or eps is None:  # the call is torch.batch_norm's, whose other arguments come after these
        return None
    if training:
        statistics = [getattr(result.grad_fn, name, None) for name in ("_saved_result1", "_saved_result2")]
        if not all(isinstance(one, Tensor) and one.numel() == x.shape[1] for one in statistics):
            return None
        return Again(_normalized, (x, *statistics, weight, bias), {})
    return Again(F.batch_norm, (x, mean, variance, weight, bias, False, momentum, eps), {})


def _normalized(x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """A batch norm by its statistics: the mean, and one over the deviation."""
    return F.batch_norm(x, mean, scale.square().reciprocal(), weight, bias, False, 0.0, 0.0)


def autocast_of(tensor: Tensor) -> tuple[str, torch.dtype] | None:
    """Device and dtype of the autocast that a call runs under; ``None`` if there is none."""
    device = tensor.device.type
    return (device, torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else None
