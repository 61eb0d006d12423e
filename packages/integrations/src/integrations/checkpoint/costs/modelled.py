"""What an operator's call takes: time, and memory while it runs. By arithmetic here, measured in ``workspaces``.

Plans only compare times with each other, so what counts is the ratio of arithmetic to traffic: ten floating-point
operations for each byte, as on a CPU core with AVX2 and on a GPU without tensor cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch._ops import OpOverload
from torch.utils.flop_counter import flop_registry

from integrations.checkpoint.dispatch.memory import tensors_of

if TYPE_CHECKING:
    from integrations.checkpoint.costs.calls import Call

FLOPS = 1e11  # a second
BYTES = 1e10  # a second
LAUNCH = 5e-6  # seconds, of any operator


@dataclass(frozen=True)
class Cost:
    """What a call takes.

    Attributes:
        seconds: of its kernel.
        scratch: bytes that the kernel has beside its arguments and results while it runs: copies in another layout,
            partial sums.
    """

    seconds: float
    scratch: int = 0


Costs = Callable[[Sequence["Call"]], Sequence[Cost]]
"""Says of each call what it takes."""


def modelled(calls: Sequence[Call]) -> list[Cost]:
    """Seconds by arithmetic, and no scratch."""
    return [Cost(call.seconds) for call in calls]


def seconds_of(function: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], results: tuple[Any, ...]) -> float:
    """Seconds of a call: of its arithmetic or of the bytes that it reads and writes, whichever takes longer."""
    moved = 0
    for given in (args, kwargs.values(), results):
        for tensor in tensors_of(given):
            moved += _nbytes(tensor)
    formula = flop_registry.get(function.overloadpacket)
    flops = 0
    if formula is not None:
        flops = formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else results)
    return LAUNCH + max(flops / FLOPS, moved / BYTES)


def _nbytes(tensor: Tensor) -> int:
    try:
        return int(tensor.numel()) * tensor.element_size()
    except (NotImplementedError, RuntimeError):  # a subclass without a size of its own
        return 0
