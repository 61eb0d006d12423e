"""The ways to train a model that are compared: plain, with plans of ours, block by block, and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._functorch import config as functorch_config

from bench.ways.general import Forward, by_torch
from integrations import fewbit
from integrations.checkpoint import Plan, apply


@dataclass(frozen=True)
class CheckpointWay:
    """A way to train a model.

    Attributes:
        kind: ``"plain"``; ``"planned"`` by ``integrations.checkpoint``; ``"blocks"``: ``torch.utils.checkpoint``
            around each block, as it is done by hand; ``"compiled"``: ``torch.compile`` with torch's own budget.
        part: of the plain peak, for ``"planned"`` (``None``: the least peak), and what torch calls
            ``activation_memory_budget`` for ``"compiled"``.
        masks: whether ReLUs keep one bit an element, which is all that their gradient needs, as ``fewbit.convert``
            makes them; for ``"planned"``.
    """

    kind: Literal["plain", "planned", "blocks", "compiled"]
    part: float | None = None
    masks: bool = False

    @property
    def name(self) -> str:
        """In tables and files."""
        if self.kind == "planned":
            within = "least" if self.part is None else f"{100 * self.part:.3g} %"
            return f"ours, {within}{', 1-bit ReLUs' if self.masks else ''}"
        if self.kind == "compiled":
            return f"torch.compile, {self.part:g}"
        return "each block" if self.kind == "blocks" else self.kind


PLAIN = CheckpointWay("plain").name
LEAST = CheckpointWay("planned").name
LEAST_MASKS = CheckpointWay("planned", masks=True).name

CLOSE = ("resnet50", "bert")
"""The models whose time is measured at many budgets, and drawn."""

_RELUS = ("relu", "relu6", "leaky_relu")


def ready(way: CheckpointWay, model: nn.Module, blocks: Sequence[nn.Module], plan: Plan | None) -> Forward:
    """What to call in place of the model, which is changed.

    Args:
        way: how to train it.
        model: in training mode.
        blocks: of the model, those that are checkpointed one by one.
        plan: of this model and its inputs, for ``"planned"``; of the model as ``exchanged`` makes it.
    """
    if way.kind == "planned":
        if plan is None:
            raise ValueError(f"plan must be given for {way.name}")
        return apply(exchanged(way, model), plan)
    if way.kind == "blocks":
        for block in blocks:
            block.forward = by_torch(block.forward)
    if way.kind == "compiled":
        return _compiled(model, way.part)
    return model


def exchanged(way: CheckpointWay, model: nn.Module) -> nn.Module:
    """The model with the layers that a way exchanges, in place; the gradient stays the same, bit for bit."""
    return fewbit.convert(model, functions=_RELUS) if way.masks else model


def _compiled(model: nn.Module, budget: float | None) -> Forward:
    torch._dynamo.reset()  # another budget's code would be taken for this one's
    compiled = torch.compile(model)

    def forward(*args: Any, **kwargs: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=budget):
            return compiled(*args, **kwargs)

    return forward
