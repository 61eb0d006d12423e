"""``OneStep``: the gradients of one training step that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from integrations._utils.autocast import fresh_casts
from integrations._utils.plain_tensor_types import has_elements
from integrations._utils.torch_internals import TorchDispatchMode
from integrations.capture.capture import capturing, find_reachable_state, is_only_read
from integrations.capture.dispatch.operators import lazy_views
from integrations.capture.graphs.sharding import distributed, get_class, is_unit
from integrations.capture.loss import Loss, differentiated, is_scalar_loss
from integrations.capture.reachable_state import ReachableState
from integrations.capture.stand_ins import StandIns, with_stand_ins
from integrations.tracing.tensors import is_collective_result, is_dtensor_class, tensors_in

_SEED = 0x5EED
"""Seed of the gradients that backward starts from if there is no loss."""
_COMMUNICATING = "symm_mem", "cplib"
"""Libraries of operators of torch that communicate."""

Around = Callable[[nn.Module, Any], AbstractContextManager[Any]]
"""A function from a model and its forward's inputs to a block in which the forward runs."""

Take = Callable[[int, Tensor], None]
"""A function that is given a parameter's place and its gradient."""


class Unmeasured(RuntimeError):
    """A step could not be taken for a measurement; the message says why."""


class UnmeasuredStep(Unmeasured):
    """This one step could not be measured, while another of the same training may be."""


@dataclass(frozen=True)
class OneStep:
    """A forward and its backward, which can be taken any number of times, each time with the same random numbers. They
    run on aliases of the parameters, with gradients and hooks of their own, on copies of buffers, and on copies of
    inputs that the forward may write to. What else the forward changes is put back.

    Attributes:
        model: in training mode.
        args, kwargs: the forward's.
        loss: a function from the output to what backward starts from, see ``differentiated``. If that is not a single
            number, backward starts from normally distributed gradients, the same each time, so that an error is as
            likely in each part.
        starts: the gradients of those tensors that the model returns and that require one, in their order, in the
            place of a loss.
        changes_inputs: whether the forward may write to its inputs, so that it has to run on copies.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    starts: Sequence[Tensor | None] | None = None
    changes_inputs: bool = True

    def require_elements(self) -> None:
        """Checks that the model and its inputs have elements to compute with.

        Raises:
            Unmeasured: they have not.
        """
        if any(map(is_unit, self.model.modules())):  # one that is gathered now would add to its gradients
            raise Unmeasured("fully_shard has sharded the model's parameters, and a measurement step would gather them")
        for tensor in (*self.model.parameters(), *self.model.buffers(), *tensors_in((self.args, self.kwargs))):
            if tensor.is_meta or not has_elements(tensor):
                raise Unmeasured("the model or its inputs have no data: they are fake tensors, or on the meta device")

    def gradients(self, around: Around | None = None, take: Take | None = None) -> list[Tensor | None]:
        """The gradients of the model's parameters, in their order; ``None`` for a parameter that got none.

        Args:
            around: a block for the forward; ``None``: it runs plainly.
            take: is given each gradient, or each part of one, as soon as it is made. Gradients are then freed, and the
                result has ``None`` for all.

        Raises:
            Unmeasured: there are no elements, or nothing requires a gradient; or the model talks to other ranks, which
                do not take this step.
            Exception: what the model raises.
        """
        self.require_elements()
        model, buffers = self.model, set(map(id, self.model.buffers()))
        inputs = set(map(id, tensors_in((self.args, self.kwargs)))) - buffers
        written = buffers | (inputs if self.changes_inputs else set())

        def stand_in(tensor: Tensor) -> Tensor:
            kept = not self.changes_inputs and id(tensor) in inputs
            return tensor.detach() if kept or is_only_read(tensor, written) else tensor.detach().clone()

        stand_ins = StandIns(stand_in)
        args, kwargs = stand_ins.of_all((self.args, self.kwargs))

        def step() -> list[Tensor | None]:
            with torch.enable_grad(), _alone():
                parameters = list(model.parameters())
                if take is not None:
                    _hand_over(parameters, take)
                with fresh_casts(), nullcontext() if around is None else around(model, (args, kwargs)):
                    # The model's own hooks have already run if this is in front of a forward.
                    outputs = model.forward(*args, **kwargs)
                tensors, started = self._begins(outputs)
                del outputs
                with _without_autocast():  # in training, autocast ends with the forward, too
                    torch.autograd.backward(tensors, started)
                return [parameter.grad for parameter in parameters]

        with capturing():
            return with_stand_ins(model, stand_ins, self._reach, step)

    @cached_property
    def _reach(self) -> ReachableState:
        """What the forward can get at, found once: only steps aside may run between the first of them and the last."""
        return find_reachable_state(self.model, self.args, self.kwargs)

    def _begins(self, outputs: Any) -> tuple[Sequence[Tensor], list[Tensor | None]]:
        """Return what backward is called on, and with what gradients."""
        if self.starts is None:
            tensors, _, _ = differentiated(outputs, self.loss)
            if not tensors:
                raise Unmeasured(f"{get_class(self.model).__name__} returned nothing that requires a gradient")
            return tensors, [None if is_scalar_loss(tensors) else _drawn(one) for one in tensors]
        returned = differentiable_outputs(outputs)
        known = zip(returned, self.starts, strict=False)
        if len(returned) != len(self.starts) or any(b is not None and a.shape != b.shape for a, b in known):
            raise Unmeasured(f"{get_class(self.model).__name__} returned other tensors than in the step before")
        pairs = [(one, start) for one, start in zip(returned, self.starts, strict=True) if start is not None]
        return [one for one, _ in pairs], [start for _, start in pairs]


def differentiable_outputs(returned: Any) -> list[Tensor]:
    """Return the tensors that a model returned and that require a gradient, each once."""
    return list({id(one): one for one in tensors_in(returned) if one.requires_grad}.values())


def _alone() -> AbstractContextManager[Any]:
    """A block in which this rank must not talk to others."""
    return _WithoutCollectives() if distributed() else nullcontext()  # type: ignore[no-untyped-call]


class _WithoutCollectives(TorchDispatchMode):
    """Raises before a collective starts, in the forward or in backward. It would wait for other ranks, or be paired
    with another collective of theirs. An operator on DTensors is opened into those that it consists of, among
    which collectives may be.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(is_dtensor_class(one) or is_collective_result(one) for one in types):
            return NotImplemented
        if "c10d" in func.namespace or func.namespace in _COMMUNICATING:
            raise Unmeasured(
                f"the model communicates with other ranks ({func.name()}), which run no measurement step at the same "
                "time"
            )
        with lazy_views(func, args):
            return func(*args, **(kwargs or {}))


@contextmanager
def _without_autocast() -> Iterator[None]:
    with ExitStack() as off:
        for kind in ("cpu", "cuda"):
            if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
                off.enter_context(torch.autocast(kind, enabled=False))
        yield


def _drawn(tensor: Tensor) -> Tensor:
    generator = torch.Generator(tensor.device).manual_seed(_SEED)
    return torch.randn(tensor.shape, dtype=tensor.dtype, device=tensor.device, generator=generator)


def _hand_over(parameters: list[nn.Parameter], take: Take) -> None:
    """Has gradients taken as backward makes them, so that they are never all alive at once."""
    for place, parameter in enumerate(parameters):
        if parameter.requires_grad:

            def arrived(parameter: Tensor, place: int = place) -> None:
                gradient, parameter.grad = parameter.grad, None
                if gradient is not None:
                    take(place, gradient)

            parameter.register_post_accumulate_grad_hook(arrived)
