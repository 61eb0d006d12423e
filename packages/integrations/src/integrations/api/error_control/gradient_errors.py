"""``measured_errors``: how wrong each parameter's gradient is if a forward follows a plan. ``Sketches``: small linear
images of gradients, by which the gradients of two steps are compared."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from integrations._utils.progress import stage
from integrations._utils.running_module import ModulePaths
from integrations.capture.graphs.sharding import find_noise_rank
from integrations.capture.graphs.signature import Signature
from integrations.capture.loss import Loss
from integrations.planner.plan import Plan
from integrations.planner.plans import Followed, Plans
from integrations.planner.sensitivity.one_step import OneStep, Unmeasured, UnmeasuredStep
from integrations.policies.levels import LEVELS
from integrations.policies.policy import FixedBits
from integrations.runtime.plan_executor import PlanExecutor
from integrations.runtime.session import Session
from integrations.runtime.specs import Specs
from integrations.tracing.tensors import tensors_in

LARGE = 1e-3
"""The part of all trained parameters above which a parameter tensor has a bound of its own."""

OF_TENSOR = 3.0
"""The bound on the error of a large tensor's gradient, over that of the whole gradient."""

_NOTHING = 1e-4
"""The part of the whole gradient's energy that the error of a vector without a gradient may have."""

_MOST = 2.0
"""The largest relative error that two draws of noise are taken to tell."""

_FIRST_DRAW = 1 << 40
"""The number of the first draw of noise, beyond those of training steps."""


class TensorError(NamedTuple):
    """The error of one parameter's gradient.

    Attributes:
        error: its squared Euclidean norm.
        energy: that of the exact gradient.
    """

    error: float
    energy: float

    @property
    def relative(self) -> float:
        """The error's norm over the gradient's: 0 where both are zero, infinite where only the gradient is."""
        if self.energy <= 0:
            return math.inf if self.error > 0 else 0.0
        return math.sqrt(self.error / self.energy)


@dataclass(frozen=True)
class GradientErrors:
    """The errors of all gradients in one step.

    Attributes:
        tensors: by the name of the parameter; those without a gradient are left out.
        large: names of the parameters that have more than ``LARGE`` of the trained elements.
    """

    tensors: Mapping[str, TensorError]
    large: frozenset[str]

    @property
    def relative(self) -> float:
        """The Euclidean norm of the whole gradient's error over that of the gradient."""
        found = self.tensors.values()
        return TensorError(sum(one.error for one in found), sum(one.energy for one in found)).relative

    @property
    def worst(self) -> tuple[str, float]:
        """The large parameter with the largest relative error, and that error."""
        found = [(self.tensors[name].relative, name) for name in self.large if name in self.tensors]
        relative, name = max(found, default=(0.0, ""))
        return name, relative

    @property
    def over(self) -> float:
        """The error that the bound has to be at least: of the whole gradient, or of a large tensor, divided by
        ``OF_TENSOR``."""
        return max(self.relative, self.worst[1] / OF_TENSOR)


def describe_errors(relative: float, worst: float, name: str, bound: float) -> str:
    """Return errors beside their bounds, in words.

    Args:
        relative: the relative error of the whole gradient.
        worst: that of the large parameter tensor that has the largest.
        name: the name of that parameter; empty if there is none.
        bound: the bound on the whole gradient's error.
    """
    of_tensor = f", {worst:.2g} of {name} (at most {OF_TENSOR * bound:g})" if name else ""
    return f"{relative:.2g} (at most {bound:g}){of_tensor}"


def measured_errors(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    plan: Plan,
    loss: Loss | None = None,
    starts: Sequence[Tensor | None] | None = None,
    changes_inputs: bool = True,
) -> GradientErrors:
    """Return the errors of a model's gradients in one step with these inputs.

    The step is taken twice beside the training, with the same dropout. If the plan's front has a plan that rounds
    nothing and takes no more than the plan's budget, the first of these steps follows it. Otherwise both follow the
    plan, each with rounding noise of its own, and the error is their difference divided by the square root of 2. That
    leaves out an error that is the same in each draw: nothing that plans choose by themselves has one above a tenth of
    the bound.

    Gradients are freed as they come, and compared by sketches, so that the steps take no more memory than the plan. The
    model, its buffers and gradients, and the random generators are as before afterwards.

    Args:
        model: in training mode.
        args, kwargs: of its forward, with elements.
        plan: of the model and these inputs.
        loss: a function from the model's output to what backward starts from; ``None``: the loss that it returns, or
            else normally distributed gradients of what it returns, drawn from a fixed seed.
        starts: the gradients of the tensors that the model returns and that require one, in the place of a loss.
        changes_inputs: whether the forward may write to its inputs, so that it has to run on copies.

    Raises:
        Unmeasured: there are no elements, no gradient, or no finite one; or the forward is not the plan's.
        Exception: what the model raises.
    """
    stage("measuring the gradient's error")
    step = OneStep(model, args, kwargs, plan.loss if loss is None else loss, starts, changes_inputs)
    step.require_elements()
    named = list(model.named_parameters(remove_duplicate=True))
    parameters = [parameter for _, parameter in named]
    exact = _exact_within(plan)
    first, second = (Sketches(parameters, plan.peak // 200) for _ in range(2))
    if exact is None:
        step.gradients(partial(following, plan=plan, draw=_FIRST_DRAW), first.add)
    else:
        step.gradients(partial(following, plan=exact, draw=_FIRST_DRAW), first.add)
    step.gradients(partial(following, plan=plan, draw=_FIRST_DRAW + 1), second.add)
    found = {
        name: _error(one, other, exact is not None)
        for (name, _), one, other in zip(named, first.found, second.found, strict=True)
        if one is not None and other is not None
    }
    if not found:
        raise Unmeasured("no parameter got a gradient in the measurement step")
    if not all(map(math.isfinite, (number for one in found.values() for number in one))):
        raise UnmeasuredStep("the gradient of the measurement step is not finite")
    return GradientErrors(found, large_parameters(model) - _silent(model, found))


def _silent(model: nn.Module, found: Mapping[str, TensorError]) -> frozenset[str]:
    """Return the names of vectors whose gradients are nothing but noise, as those of a bias in front of a norm, whose
    exact gradient is zero: their error is above the gradient, and below a hundredth of the whole gradient."""
    most = _NOTHING * sum(one.energy for one in found.values())
    vectors = {name for name, one in model.named_parameters() if one.dim() < 2}
    return frozenset(name for name, one in found.items() if name in vectors and one.relative > 1 and one.error <= most)


def large_parameters(model: nn.Module) -> frozenset[str]:
    """Return the names of the parameters that have more than ``LARGE`` of a model's trained elements."""
    sizes = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    least = LARGE * sum(sizes.values())
    return frozenset(name for name, size in sizes.items() if size > least)


def _exact_within(plan: Plan) -> Plan | None:
    """Return a plan of the same front that rounds nothing and takes no more than the plan's budget, or than the plan
    where that is not in bytes. Return ``None`` if there is none."""
    allowed = plan.allowed(plan.memory)
    most = plan.peak if allowed is None else allowed
    exact = [choice for choice in plan.front if not choice.rounds and choice.peak <= most]
    return plan.choosing(exact[-1], plan.bounds) if exact else None  # the last one is the fastest


def _error(one: Tensor, other: Tensor, exact: bool) -> TensorError:
    """Return the error of a gradient by the sketches of two steps, of which the first may have been exact."""
    one, other = one.double(), other.double()
    error = torch.sum((one - other) ** 2).item()
    if exact:
        return TensorError(error, torch.sum(one**2).item())
    # The draws' noises are independent, so that the mean of the product has none. Where noise hides the gradient, the
    # product may be negative.
    return TensorError(error / 2, max(error / 2 / _MOST**2, torch.dot(one, other).item()))


class _Strict(Plans):
    """Plans for a forward that must be as captured."""

    def note_mismatch(self, followed: Followed, where: str, repeats: bool = False, told: bool = True) -> None:
        raise Unmeasured(f"the forward is not the one that was captured: {where}")


@contextmanager
def following(model: nn.Module, given: Any, plan: Plan, draw: int = 0) -> Iterator[None]:
    """A block in which a forward of the model follows a plan, in place of any other plan.

    Args:
        model: the model.
        given: the forward's inputs.
        plan: the plan.
        draw: the number of the rounding noise.
    """
    args, kwargs = given
    inputs = Signature.of(args, kwargs)
    alike = inputs.shapes == plan.graph.inputs.shapes
    schedule = plan.schedule if alike else plan.schedule_of_any_sizes
    followed = Followed(plan, schedule, inputs, plan)
    ahead = PlanExecutor(model, _Strict(plan, "replan"), followed, plan.level)
    base = LEVELS["L0"] if plan.level is None else plan.level
    way = ahead.way(base)
    policy, level = (FixedBits(base), base) if way is None else (way.policy, way.level)
    session = Session(model, ModulePaths(model), Specs(policy), level, draw, find_noise_rank(model))
    with session:
        ahead.begin(session)
        complete = False
        try:
            session.owners.add_inputs(tensors_in(given))
            yield
            complete = True
        finally:
            ahead.end(session, complete)


_LARGEST_BLOCK = 1 << 20
"""Elements that are summed at once, at most: a multiple of any number of buckets."""

_MOST_BUCKETS, _LEAST_BUCKETS = 4096, 256
"""Buckets of a sketch. The squared norm that a sketch of n buckets gives has a relative deviation of sqrt(2/n): 0.02 of
the most, 0.09 of the least."""

_LEAST_SIGNS = 8192
"""The fewest random signs. Each block takes a part of them; with many places to begin at, few take the same part."""

_SKETCH_SEED = 0x51


class Sketches:
    """The sums of a gradient's elements with random signs, in so many buckets for each parameter (a count sketch:
    Charikar et al., ICALP 2002). The gradients' parts may come in any order, and nothing else of them is held. A
    parameter with fewer elements than buckets is held as it is.

    Args:
        parameters: whose gradients come.
        nbytes: at most so many bytes are held, and as many taken meanwhile, if this is enough for the least buckets.

    Attributes:
        found: by parameter, ``Float[buckets]``; ``None`` before its gradient has come.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], nbytes: int) -> None:
        trained = [parameter.numel() for parameter in parameters if parameter.requires_grad]
        self._buckets = _MOST_BUCKETS
        while self._buckets > _LEAST_BUCKETS and 4 * sum(min(one, self._buckets) for one in trained) > nbytes:
            self._buckets //= 2
        self._block = _LARGEST_BLOCK
        while self._block > self._buckets and 4 * 8 * self._block > nbytes:  # signs for two blocks, a part, the product
            self._block //= 2
        self.found: list[Tensor | None] = [None] * len(parameters)
        self._signs: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def add(self, place: int, gradient: Tensor) -> None:
        """Add a gradient, or a part of one.

        Args:
            place: of its parameter.
            gradient: a dense or sparse tensor.
        """
        flat = (gradient.coalesce().values() if gradient.is_sparse else gradient.detach()).reshape(-1)
        dtype = torch.float64 if flat.dtype in (torch.float64, torch.complex128) else torch.float32
        flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
        buckets = min(self._buckets, flat.numel())
        sketch = flat.new_zeros(buckets, dtype=dtype) if self.found[place] is None else self.found[place]
        assert sketch is not None
        self.found[place] = sketch
        if flat.numel() == buckets:
            sketch += flat
            return
        signs = self._signs_for(flat.device, dtype)
        draw = Random(_SKETCH_SEED + place)  # the same for each gradient of this parameter
        for part in flat.split(self._block):
            start = draw.randrange(len(signs) - self._block + 1)
            signed = part.to(dtype) * signs[start : start + part.numel()]
            whole = part.numel() // buckets * buckets
            summed = signed[:whole].view(-1, buckets).sum(0)
            summed[: part.numel() - whole] += signed[whole:]
            sketch.add_(summed, alpha=draw.choice((-1, 1)))

    def _signs_for(self, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return random signs, from which each block takes a part at a random place. If all blocks had the same signs,
        a gradient whose columns sum to zero would vanish, such as that of a patch embedding in front of a norm."""
        if (device, dtype) not in self._signs:
            generator = torch.Generator().manual_seed(_SKETCH_SEED)
            count = max(2 * self._block, _LEAST_SIGNS)
            signs = torch.randint(0, 2, (count,), generator=generator, dtype=torch.int8).mul_(2).sub_(1)
            self._signs[device, dtype] = signs.to(device, dtype)
        return self._signs[device, dtype]
