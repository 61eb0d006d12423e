"""``OPTIMIZERS``: the bytes that an optimizer keeps for a parameter, and those that its step takes for a moment.
``find_optimizers``: those that train a model, and the bytes of their states."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from integrations.tracing.tensors import find_storages

_BLOCK = 256  # elements that share a scale in bitsandbytes' states of 8 bits
_LEAST_OF_8_BITS = 4096  # elements; bitsandbytes keeps the states of smaller parameters in 32 bits


def nbytes(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return tensor.numel() * tensor.itemsize


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer takes.

    Attributes:
        state: the bytes that it keeps for a parameter.
        passing: of all parameters' bytes, how many times its step takes them for a moment where it updates them
            together, as torch does on a GPU (``foreach``).
        alone: the same of the largest parameter, where it updates one after the other, as torch does on a CPU.
        note: what is assumed; empty where nothing is.
    """

    state: Callable[[Tensor], int]
    passing: float = 0.0
    alone: float = 0.0
    note: str = ""

    def states(self, parameters: Sequence[Tensor]) -> int:
        """Bytes that it keeps from step to step."""
        return sum(map(self.state, parameters))

    def temporaries(self, parameters: Sequence[Tensor], together: bool) -> int:
        """Bytes that its step takes beside parameters, gradients and states.

        Args:
            parameters: those that it trains.
            together: whether it updates all at once.
        """
        sizes = [nbytes(parameter) for parameter in parameters]
        return int(self.passing * sum(sizes)) if together else int(self.alone * max(sizes, default=0))


def _times(count: int) -> Callable[[Tensor], int]:
    return lambda parameter: count * nbytes(parameter)


def _of_8_bits(parameter: Tensor) -> int:
    if parameter.numel() < _LEAST_OF_8_BITS:
        return 8 * parameter.numel()
    return 2 * (parameter.numel() + 4 * math.ceil(parameter.numel() / _BLOCK))


def _factored(parameter: Tensor) -> int:
    if parameter.dim() < 2:
        return nbytes(parameter)
    *_, rows, columns = parameter.shape
    return parameter.itemsize * (rows + columns) * (parameter.numel() // max(1, rows * columns))


_ADAM = Optimizer(_times(2), passing=1.0, alone=2.0)

OPTIMIZERS = {
    "sgd": Optimizer(_times(0)),
    "momentum": Optimizer(_times(1)),
    "adam": _ADAM,
    "adamw": _ADAM,
    "adamw-fused": Optimizer(_times(2)),
    "adamw-8bit": Optimizer(_of_8_bits, note="adamw-8bit is bitsandbytes': blocks of 256 elements, on a GPU"),
    "adafactor": Optimizer(_factored, passing=1.0, alone=2.0),
    "lion": Optimizer(_times(1), passing=1.0, alone=2.0),
    "muon": Optimizer(_times(1), alone=3.0, passing=1.0, note="muon is counted for all parameters"),
}


def find_optimizer(name: object) -> Optimizer:
    """The optimizer of a name.

    Raises:
        TypeError: the name is no string.
        ValueError: there is none of this name.
    """
    if not isinstance(name, str):
        raise TypeError(f"optimizer must be a name, one of {', '.join(OPTIMIZERS)}, got {name!r}")
    if name.lower() not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {name!r}; choose one with the same number of "
            "states for each parameter: sgd has none, momentum one, adamw two"
        )
    return OPTIMIZERS[name.lower()]


_BY_NUMBERS = {0: "sgd", 1: "momentum"}
"""By how many numbers an optimizer keeps for a parameter: one that keeps as many. ``"adamw"`` keeps more."""


def bytes_of_tensors(given: Iterable[Any]) -> int:
    """Bytes of the memory in which tensors lie; of those that FSDP2 shards, of this rank's part."""
    tensors = (one for one in given if isinstance(one, Tensor))
    return sum({one._cdata: one.nbytes() for tensor in tensors for one in find_storages(tensor)}.values())


def find_optimizers(model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers that train a model, one of them for each parameter where they step in backward. They are looked
    for among all objects."""
    own = set(map(id, model.parameters()))
    found = [one for one in gc.get_objects() if issubclass(type(one), torch.optim.Optimizer)]
    return [one for one in found if own & {id(weight) for group in one.param_groups for weight in group["params"]}]


def find_states(optimizers: Iterable[torch.optim.Optimizer]) -> Iterator[Any]:
    """What they keep from step to step."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            yield from state.values() if isinstance(state, dict) else ()


def kept_like(optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """The name, as ``fit`` takes it, of an optimizer that keeps as much as these."""
    if not optimizers:
        return "sgd"
    most = max(optimizers, key=lambda one: bytes_of_tensors(find_states([one])))
    name, group = type(most).__name__.lower(), most.param_groups[0]
    if name == "sgd":
        return "momentum" if group.get("momentum") else name
    if "adam" in name and name.endswith("8bit"):
        return "adamw-8bit"
    if name in ("adam", "adamw") and group.get("fused"):
        return "adamw-fused"
    if name in OPTIMIZERS:
        return name
    weights = bytes_of_tensors(most.state)
    if not weights:
        return "adamw"  # it has made no step yet, and may keep as much
    return _BY_NUMBERS.get(round(bytes_of_tensors(find_states([most])) / weights), "adamw")
