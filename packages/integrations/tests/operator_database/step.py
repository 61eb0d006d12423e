"""A forward and a backward of an operator, and whether two of them are the same bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .subjects import Applied, seed_all

_SEED = 1


@dataclass(frozen=True)
class Step:
    """What a step gave.

    Attributes:
        results: of the operator, with their graph; none where no gradient goes through it.
        given: in backward, as the gradient of each result: random numbers.
        gradients: of the sample's tensors; ``None`` where none comes to one.
    """

    results: tuple[Tensor, ...]
    given: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]

    def same_results(self, other: Step) -> bool:
        """Whether both have the same results, bit for bit."""
        return _same(self.results, other.results)

    def same_gradients(self, other: Step) -> bool:
        """Whether both have the same gradients, bit for bit."""
        return _same(self.gradients, other.gradients)


def forward(model: Applied) -> tuple[Tensor, ...]:
    """The results, with the same random numbers each time."""
    seed_all(_SEED)
    return model.finished(model(*model.tensors))


def step(model: Applied) -> Step:
    """Forward and backward. The graph stays."""
    results = forward(model)
    numbers = torch.Generator().manual_seed(_SEED)
    given = tuple(torch.randn(one.shape, generator=numbers, dtype=one.dtype) for one in results)
    return Step(results, given, gradients(model, results, given))


def gradients(model: Applied, results: Sequence[Tensor], given: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Of the sample's tensors that require one."""
    wanted = [one for one in model.tensors if one.requires_grad]
    if not results:
        return ()
    return torch.autograd.grad(results, wanted, given, allow_unused=True, retain_graph=True)


def flat(found: Sequence[Tensor | None]) -> Tensor:
    """All numbers of gradients, in float64."""
    parts = [_dense(one) for one in found if one is not None]
    numbers = [torch.view_as_real(one) if one.is_complex() else one for one in parts]
    return torch.cat([torch.zeros(0), *(one.double().reshape(-1) for one in numbers)])


def _same(some: Sequence[Tensor | None], others: Sequence[Tensor | None]) -> bool:
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    alike = (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)
    return alike and torch.equal(_bits(one), _bits(other))


def _bits(found: Tensor) -> Tensor:
    """Its bytes: NaNs are equal to themselves, and zero is not to minus zero."""
    dense = _dense(found)
    return torch.empty(dense.numel(), dtype=dense.dtype).copy_(dense.reshape(-1)).view(torch.uint8)


def _dense(found: Tensor) -> Tensor:
    return (found if found.layout is torch.strided else found.to_dense()).detach().resolve_conj().resolve_neg()
