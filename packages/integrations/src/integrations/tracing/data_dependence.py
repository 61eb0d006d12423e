"""Whether a checkpoint's segment decides something by the activations that it was given, and what follows.

Examples are a comparison, a choice of experts, a number that Python asks for. Recomputed from rounded inputs it may
come out differently, and then the gradient belongs to another function, with a bias that is the same in every step. The
inputs of such a segment are kept exactly. Autograd saves some of them before the segment runs: these wait until it is
over. An operator of an unknown library may decide within itself, and TorchScript runs without visible calls: both count
as deciding.

A ReLU, a clamp or a max pooling does not count, though its slope jumps: its result does not jump, and changes by no
more than its input, whereas a router that decides otherwise exchanges a whole expert. That is a choice for memory, and
it costs: the elements whose sides change bias the gradient, by 0.0001 of its norm through one ReLU, by 0.04 through
five in a row (``docs/reference/operators.md``). To count them would keep the inputs of nearly every segment of a
convolutional network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import ScriptMethod
from integrations.policies.discontinuous_ops import JUMPING, OF_SHAPES, may_jump_unseen
from integrations.tracing.call import Call
from integrations.tracing.checkpoint_held import held_by
from integrations.tracing.storage.forms import Packed
from integrations.tracing.tensors import get_memory, has_history

DECIDES = "its segment makes, or may make, decisions by its activations, such as a router of experts: kept exactly"

# Python gets numbers or truth values from these.
_ASKING = frozenset(
    {
        *("bool", "item", "tolist", "float", "int", "index", "complex", "numpy", "array"),
        *("equal", "allclose", "is_nonzero", "contains"),
    }
)


class Deciding:
    """Follows activations through the calls of segments, and tells which of the calls decide.

    A tensor that was drawn, or made from masks and positions, decides in the same way each time.
    """

    def __init__(self) -> None:
        self._followed = StorageSet()  # storages of activations that autograd does not follow: under no_grad, detached

    def decides(self, call: Call, outputs: Sequence[Tensor]) -> bool:
        """Whether a call that is over has decided something by activations."""
        if call.name in OF_SHAPES or not any(map(self._is_activation, call.arguments)):
            return False
        whole = [output for output in outputs if not (output.is_floating_point() or output.is_complex())]
        for output in outputs:
            if not output.requires_grad and (storage := get_memory(output)) is not None:
                self._followed.add(storage)
        jumps = call.name in JUMPING or may_jump_unseen(call.name)
        return bool(whole) or jumps or (not outputs and call.name in _ASKING)

    def _is_activation(self, tensor: Tensor) -> bool:
        if not tensor.is_floating_point():
            return False
        if tensor.requires_grad:
            return has_history(tensor)
        storage = get_memory(tensor)
        return storage is not None and storage in self._followed


class Scripts:
    """Finds TorchScript in what a checkpoint runs for its segment: functions with their closures, and modules with
    their submodules."""

    def __init__(self) -> None:
        self._without: WeakSet[nn.Module] = WeakSet()  # modules without TorchScript

    def are_in(self, *given: Any) -> bool:
        """Whether there is any. The globals of functions are not searched."""
        seen: set[int] = set()
        modules: list[nn.Module] = []
        left = list(given)
        while left:
            value = left.pop()
            if isinstance(value, _SCRIPTS):
                return True
            if id(value) in seen or (isinstance(value, nn.Module) and value in self._without):
                continue
            seen.add(id(value))
            if isinstance(value, nn.Module):
                modules.append(value)
                left += value.children()
                left += (held for held in vars(value).values() if isinstance(held, _SCRIPTS))
            else:
                left += held_by(value)
        self._without.update(modules)
        return False


_SCRIPTS = (torch.jit.ScriptModule, torch.jit.ScriptFunction, ScriptMethod)


@dataclass(slots=True, eq=False)
class HeldInput:
    """What autograd holds in the place of a checkpoint's input: its stored form, and until the segment is over, the
    input itself.

    Attributes:
        packed: the stored form.
        exactly: keeps the input as it is instead; ``None`` once that is settled.
    """

    packed: Packed
    exactly: Callable[[], Packed | None] | None

    def settle(self, decided: bool) -> None:
        """Settles what is held, once the segment is over."""
        exactly, self.exactly = self.exactly, None
        if decided and exactly is not None:
            self.packed = exactly() or self.packed

    def unpack(self) -> Tensor:
        return self.packed.unpack()
