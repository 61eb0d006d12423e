"""The ways to train a compiled model: by torch alone, with torch's budget for activations, and with ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import nn
from torch._functorch import config as functorch_config

import integrations
from bench.errors import DoesNotApply
from bench.ways.general import Forward, by_torch


@dataclass(frozen=True)
class CompiledWay:
    """A way to train a model under ``torch.compile``.

    Attributes:
        compiles: whether the model is compiled.
        torch_budget: torch's ``activation_memory_budget``; ``None`` leaves it as it is.
        checkpoints: whether ``torch.utils.checkpoint`` runs each block again in backward.
        bytes_of: the way whose measured peak is the budget of our plan, in bytes; empty for all others.
        memory: the budget of our plan as a fraction of the plain peak; ``None`` for all others.
        error: the bound on the gradient's error of our plan.
        level: of ``compress_model``; empty for all others.
    """

    compiles: bool = True
    torch_budget: float | None = None
    checkpoints: bool = False
    bytes_of: str = ""
    memory: float | None = None
    error: float = 0.0
    level: str = ""

    @property
    def is_planned(self) -> bool:
        """Whether the model follows a plan of ours."""
        return bool(self.bytes_of) or self.memory is not None

    def ready(self, model: nn.Module, memory: int | None = None, blocks: Sequence[nn.Module] = ()) -> Forward:
        """Return what to call in the model's place; the model may be changed.

        Args:
            model: in training mode.
            memory: bytes of the budget, for a way with ``bytes_of``.
            blocks: of the model, for a way that checkpoints them.

        Raises:
            DoesNotApply: the way checkpoints blocks, and there are none.
        """
        if self.checkpoints:
            if not blocks:
                raise DoesNotApply("the model has no blocks")
            for block in blocks:
                block.forward = by_torch(block.forward)
        if self.level:
            model = integrations.compress_model(model, self.level)
        elif self.is_planned:
            given = self.memory if self.memory is not None else memory
            model = integrations.compress_model(model, memory=given, error=self.error)
        return torch.compile(model) if self.compiles else model

    def while_compiling(self) -> AbstractContextManager[object]:
        """Return the context in which the first steps run: torch reads its budget when it compiles."""
        if self.torch_budget is None:
            return nullcontext()
        context: AbstractContextManager[object] = functorch_config.patch(activation_memory_budget=self.torch_budget)
        return context


EAGER = "eager"
COMPILED = "compiled"

EACH_BLOCK = "each block (torch)"

TORCH_BUDGETS = (0.6, 0.4, 0.2)
"""Torch's settings: a fraction of the memory of what its partitioner would save."""

ERRORS = (0.0, 0.1)
"""Bounds on the gradient's error of our plans."""

LEVELS = ("L1", "lean")


def torch_name(budget: float) -> str:
    """Return the name of the way with torch's budget."""
    return f"torch's budget {budget:g}"


def same_bytes_name(other: float | str, error: float) -> str:
    """Return the name of our plan for the measured peak of torch's budget, or of torch's checkpoints."""
    budget = other if isinstance(other, str) else f"{other:g}"
    return f"ours, bytes of {budget}, {f'error {error:g}' if error else 'exact'}"


def _with_ours(name: str, way: CompiledWay, bytes_of: float | str) -> dict[str, CompiledWay]:
    """Return a way of torch's, and our plans for its measured peak."""
    plans = {same_bytes_name(bytes_of, error): CompiledWay(bytes_of=name, error=error) for error in ERRORS}
    return {name: way, **plans}


COMPILED_WAYS: Mapping[str, CompiledWay] = MappingProxyType(
    {
        EAGER: CompiledWay(compiles=False),
        COMPILED: CompiledWay(),
        **{
            name: way
            for budget in TORCH_BUDGETS
            for name, way in _with_ours(torch_name(budget), CompiledWay(torch_budget=budget), budget).items()
        },
        **_with_ours(EACH_BLOCK, CompiledWay(checkpoints=True), "each block"),
        **{level: CompiledWay(level=level) for level in LEVELS},
    }
)
"""By name, in the order of tables. A way with ``bytes_of`` comes after the way that it names."""

QUICK_COMPILED_WAYS = (EAGER, COMPILED, torch_name(0.4), same_bytes_name(0.4, 0.0), "L1")
"""One of each kind."""

HALF = "ours, memory=0.5, exact"

HOST_WAYS: Mapping[str, CompiledWay] = MappingProxyType(
    {COMPILED: CompiledWay(), **{level: CompiledWay(level=level) for level in LEVELS}, HALF: CompiledWay(memory=0.5)}
)
"""By name: the ways whose host time is measured."""
