"""``gradients_of``: the gradients of one training step that leaves the model as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from integrations._torch import TorchDispatchMode, tree_leaves
from integrations.calls.tensors import tensors_in
from integrations.common.plain import has_elements
from integrations.step.capturing.capture import capturing, is_only_read
from integrations.step.capturing.loss import Loss, differentiated
from integrations.step.capturing.stand_ins import StandIns, stood_in
from integrations.step.dispatch.casts import fresh_casts
from integrations.step.graphs.sharding import class_of, distributed, whole_parameters

_SEED = 0x5EED
"""Of the gradients that backward starts from where there is no loss."""

Around = Callable[[nn.Module, Any], AbstractContextManager[Any]]
"""From a model and the inputs of its forward to a block in which that runs."""

Take = Callable[[int, Tensor], None]
"""Is given the place of a parameter and its gradient."""


class Unmeasured(RuntimeError):
    """A step cannot be taken aside: the message says why."""


@dataclass(frozen=True)
class OneStep:
    """A forward and the backward after it, to be taken as often as somebody asks, each time with the same random
    numbers. They run on aliases of the parameters, which have gradients and hooks of their own, and on copies of
    buffers and inputs; what else the forward changes is put back.

    Attributes:
        model: in training mode.
        args, kwargs: of its forward.
        loss: from its output to what backward starts from, see ``differentiated``. Where that is no one number, it
            starts from normally distributed gradients, the same each time: an error in any part of them is as likely.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None

    def require_elements(self) -> None:
        """Refuses what has nothing to compute with.

        Raises:
            Unmeasured: so it is.
        """
        if whole_parameters(self.model):
            raise Unmeasured("the model's parameters are cut by fully_shard, and a step aside would gather them")
        for tensor in (*self.model.parameters(), *self.model.buffers(), *tensors_in((self.args, self.kwargs))):
            if tensor.is_meta or not has_elements(tensor):
                raise Unmeasured("the model or its inputs have no elements: they are fake, or on the meta device")

    def gradients(self, around: Around | None = None, take: Take | None = None) -> list[Tensor | None]:
        """Of the model's parameters, in their order; ``None`` for those that got none.

        Args:
            around: a block for the forward; ``None``: it runs plainly.
            take: is given each gradient, or each part of it, as soon as it is there, which is let go then: all are
                ``None`` afterwards.

        Raises:
            Unmeasured: there are no elements, or nothing that requires a gradient; or the model talks to other ranks,
                which do not take this step.
            Exception: what the model raises.
        """
        self.require_elements()
        model, written = self.model, set(map(id, (*self.model.buffers(), *tensors_in((self.args, self.kwargs)))))

        def stand_in(tensor: Tensor) -> Tensor:
            return tensor.detach() if is_only_read(tensor, written) else tensor.detach().clone()

        stand_ins = StandIns(stand_in)
        args, kwargs = stand_ins.of_all((self.args, self.kwargs))
        objects = [leaf for leaf in tree_leaves((args, kwargs)) if not isinstance(leaf, Tensor)]
        with capturing(), stood_in(model, stand_ins, objects), torch.enable_grad(), _alone():
            parameters = list(model.parameters())
            if take is not None:
                _hand_over(parameters, take)
            with fresh_casts(), nullcontext() if around is None else around(model, (args, kwargs)):
                # Hooks of the model itself have run already, where this is in front of a forward.
                outputs = model.forward(*args, **kwargs)
            tensors, _, held = differentiated(outputs, self.loss)
            if not tensors:
                raise Unmeasured(f"{class_of(model).__name__} returned nothing that requires a gradient")
            if not held:
                del outputs
            started = [None if one.dim() == 0 and len(tensors) == 1 else _drawn(one) for one in tensors]
            with _without_autocast():  # as in training, where it ends with the forward
                torch.autograd.backward(tensors, started)
            return [parameter.grad for parameter in parameters]


def _alone() -> AbstractContextManager[Any]:
    """A block of one rank alone."""
    return _WithoutCollectives() if distributed() else nullcontext()  # type: ignore[no-untyped-call]


class _WithoutCollectives(TorchDispatchMode):
    """Refuses what would wait for other ranks, or be paired with a collective of theirs that is meant for another,
    before it starts: in the forward and in backward."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "c10d" in func.namespace or func.namespace == "symm_mem":
            raise Unmeasured(f"the model talks to other ranks ({func.name()}), which take no step aside with this one")
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
    """Has gradients taken as backward makes them, so that they are never all there at once."""
    for place, parameter in enumerate(parameters):
        if parameter.requires_grad:

            def arrived(parameter: Tensor, place: int = place) -> None:
                gradient, parameter.grad = parameter.grad, None
                if gradient is not None:
                    take(place, gradient)

            parameter.register_post_accumulate_grad_hook(arrived)


class Difference:
    """The relative error of gradients that come one by one: the Euclidean norm of their difference from exact ones over
    that of these. One copy of the gradients is there at a time, and one gradient beside.

    Args:
        exact: of each parameter; they become the differences.
    """

    def __init__(self, exact: list[Tensor | None]) -> None:
        self._left = exact
        self._whole = _energy(exact)

    def take(self, place: int, found: Tensor) -> None:
        """A gradient, or a part of one, has come."""
        left = self._left[place]
        self._left[place] = found.neg() if left is None else left.sub_(found)

    @property
    def relative(self) -> float:
        """After all have come."""
        error = _energy(self._left)
        return (error / self._whole) ** 0.5 if self._whole else float(error > 0)


def _energy(gradients: list[Tensor | None]) -> float:
    return sum(_square(gradient) for gradient in gradients if gradient is not None)


def _square(tensor: Tensor) -> float:
    # In parts: what is made of a tensor in doubles takes more than its memory.
    parts = tensor.reshape(-1).split(1 << 20)
    return sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for part in parts)
