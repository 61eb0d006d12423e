"""``differentiated``: which tensors, among what a model returns, the training step calls ``backward`` on; and
``LossOfOutputs``, which stands in for a loss of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import Node

from integrations._utils.torch_internals import is_traceable_wrapper_subclass
from integrations.tracing.tensors import MOST_NODES, tensors_in

Loss = Callable[[Any], Any]
"""A function from what the model returns to what is differentiated: one of its tensors, several, or a loss of them."""


OF_LOSS = "the tensors that criterion returned"
"""The words for a step that differentiates what the user's function returned."""

OF_LOGITS = "a loss in chunks of the logits that the model returned"
"""The words for a step that differentiates a loss of logits that were not made, see ``expected_loss`` of ``Logits``."""

_OF_OWN = "the loss that the model returned"

OF_LOSSES = (OF_LOSS, _OF_OWN)
"""The words for steps that start where training does."""


def require_loss(loss: object, *names: str) -> None:
    """Raises for what is not a ``Loss``.

    Args:
        loss: an argument ``criterion``.
        names: of losses that are allowed, too.

    Raises:
        TypeError: it is neither callable nor a string that is allowed.
        ValueError: it is another string than ``names``.
    """
    if loss is None or callable(loss) or loss in names:
        return
    kind = ValueError if names and isinstance(loss, str) else TypeError
    others = "".join(f"{name!r}, or " for name in names)
    raise kind(f"criterion must be {others}a function of the model's output that returns the loss, got {loss!r}")


class Differentiated(NamedTuple):
    """What backward starts from.

    Attributes:
        tensors: each gets a gradient.
        what: in words, for a plan.
        held: whether the step still holds all that the model returned while backward runs.
    """

    tensors: list[Tensor]
    what: str
    held: bool


def differentiated(outputs: Any, loss: Loss | None) -> Differentiated:
    """What backward starts from: what ``loss`` makes of the outputs; or the loss that the model returned; or else every
    output that requires a gradient. If the model returned a loss, the step is taken to hold no other output meanwhile.
    Logits that were not made are taken to get the loss in chunks for which they were left out.

    Raises:
        TypeError: ``loss`` returned no tensors.
    """
    if loss is not None:
        made = tensors_in(loss(outputs))
        if not made:
            raise TypeError("criterion must return one or more tensors computed from the model's output, got none")
        return Differentiated(_trained(made), OF_LOSS, True)
    own = own_loss(outputs)
    if own is not None:
        return Differentiated([own], _OF_OWN, False)
    trained = _trained(tensors_in(outputs))
    tensors = [expected for tensor in trained if (expected := _expected(tensor)) is not None]
    left_out = any(one is not other for one, other in zip(tensors, trained, strict=False))
    return Differentiated(tensors, OF_LOGITS if left_out else "every output that requires a gradient", True)


def _expected(tensor: Any) -> Tensor | None:
    """Return what backward starts from for an output: the output itself; for logits that were not made, their loss;
    ``None`` if other outputs of the same logits have it."""
    found: Tensor | None = tensor
    if getattr(tensor, "waits", False):
        found = None if tensor.answered else tensor.expected_loss()
    return found


def is_scalar_loss(tensors: list[Tensor]) -> bool:
    """Return whether backward starts from a single number, which needs no gradient of its own. A complex one does."""
    return len(tensors) == 1 and tensors[0].dim() == 0 and not tensors[0].is_complex()


class LossOfOutputs(Function):
    """A loss of some of the outputs. Their gradients are made when backward starts, and freed as others are."""

    @staticmethod
    def forward(ctx: Any, *outputs: Tensor) -> Tensor:
        ctx.make = [_prepare_gradient(output) for output in outputs]
        return torch.zeros((), device=outputs[0].device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return tuple(make() for make in ctx.make)


def _prepare_gradient(output: Any) -> Callable[[], Tensor]:
    """A function that makes a gradient for an output, and does not keep the output alive."""
    if not is_traceable_wrapper_subclass(output):
        return partial(torch.ones, output.shape, dtype=output.dtype, device=output.device)
    kind, shape, strides = type(output), output.shape, output.stride()
    names, context = output.__tensor_flatten__()
    parts = {name: getattr(output, name) for name in names}
    others = {name: part for name, part in parts.items() if not isinstance(part, Tensor)}
    tensors = {name: _prepare_gradient(part) for name, part in parts.items() if isinstance(part, Tensor)}

    def make() -> Tensor:
        made = {name: make_part() for name, make_part in tensors.items()}
        gradient: Tensor = kind.__tensor_unflatten__({**others, **made}, context, shape, strides)
        return gradient.detach()

    return make


def own_loss(outputs: Any) -> Tensor | None:
    """The loss among what a model returned; ``None`` if it returned none.

    The loss is the entry or attribute ``loss`` of the outputs, as those of transformers' models have it. Otherwise it
    is the only scalar among them, if it stands alone or was computed from all others: ``(loss, logits)``, ``(logits,
    loss)``. A router's loss beside its results was not, nor an autoencoder's divergence beside its reconstruction:
    there the training loop adds another loss, of the other outputs.
    """
    named = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(named, Tensor) and named.requires_grad:
        return named
    tensors = _trained(tensors_in(outputs))
    scalars = [tensor for tensor in tensors if tensor.dim() == 0 and not tensor.is_complex()]
    if len(scalars) != 1:
        return None
    # The loss in chunks was computed without the logits that it leaves.
    others = [tensor for tensor in tensors if tensor is not scalars[0] and not getattr(tensor, "answered", False)]
    return scalars[0] if _all_lead_to(scalars[0], others) else None


def _trained(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.requires_grad]


def _all_lead_to(result: Tensor, others: list[Tensor]) -> bool:
    """Whether a tensor was computed from each of the others, as far as the graph can be searched."""
    wanted = {tensor.grad_fn for tensor in others}
    waiting, seen = [result.grad_fn], set[Node | None]()
    while waiting and wanted and len(seen) < MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        wanted.discard(node)
        waiting += [following for following, _ in node.next_functions]
    return not wanted
