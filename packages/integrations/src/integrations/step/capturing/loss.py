"""``differentiated``: of what a model returns, the tensors that the training step calls ``backward`` on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import Node

from integrations.calls.history import MOST_NODES
from integrations.calls.tensors import tensors_in

Loss = Callable[[Any], Any]
"""From what the model returns to what is differentiated: one of its tensors, several, or a loss computed of them."""


OF_LOSS = "what loss returned"
"""What is said of a step that differentiates what a function of the user's returned."""

_OF_OWN = "the loss that the model returned"

OF_LOSSES = (OF_LOSS, _OF_OWN)
"""What is said of steps that start from where training does."""


def require_loss(loss: object) -> None:
    """Refuses what is no ``Loss``.

    Raises:
        TypeError: it cannot be called.
    """
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function from the model's output to what is differentiated, got {loss!r}")


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
    """What backward starts from: what ``loss`` makes of the outputs, or the loss that the model returned, or else every
    output that requires a gradient. With a loss that it returned, the step is taken to hold no other output meanwhile.

    Raises:
        TypeError: ``loss`` returned no tensors.
    """
    if loss is not None:
        made = tensors_in(loss(outputs))
        if not made:
            raise TypeError("loss must return a tensor, or several, made of the model's output, and returned none")
        return Differentiated(_trained(made), OF_LOSS, True)
    own = own_loss(outputs)
    if own is not None:
        return Differentiated([own], _OF_OWN, False)
    return Differentiated(_trained(tensors_in(outputs)), "every output that requires a gradient", True)


def own_loss(outputs: Any) -> Tensor | None:
    """The loss among what a model returned; ``None`` where it returned none.

    That is the ``loss`` that the outputs have as an entry or an attribute, as those of transformers' models do; or else
    the only scalar among them, if it is alone or follows from all others: ``(loss, logits)``, ``(logits, loss)``. A
    loss that a router returns beside what it computed does not, nor an autoencoder's divergence beside what it made,
    whichever comes first: the loop adds another loss, of the others.
    """
    named = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if isinstance(named, Tensor) and named.requires_grad:
        return named
    tensors = _trained(tensors_in(outputs))
    scalars = [tensor for tensor in tensors if tensor.dim() == 0]
    if len(scalars) != 1:
        return None
    others = [tensor for tensor in tensors if tensor is not scalars[0]]
    return scalars[0] if _all_lead_to(scalars[0], others) else None


def _trained(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor.requires_grad]


def _all_lead_to(result: Tensor, others: list[Tensor]) -> bool:
    """Whether a tensor was computed from each of the others, as far as one may look."""
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
