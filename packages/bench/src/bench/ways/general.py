"""The ways to train a model: what is called in the place of it, and in which surroundings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

import integrations
from bench.errors import DoesNotApply
from bench.models.subject import Subject, needs
from integrations import checkpoint as planning

Forward = Callable[..., object]
Surroundings = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        ready: of a subject, whose model it may change: what to call in the model's place, and the surroundings of a
            forward.
        ours: whether it is this project's.
        slow: whether it takes minutes to begin, as compilers do.
        adapts: whether it measures in its first steps how it stores in later ones.
        draws: whether its layers drop other elements than torch's do with the same seed.
        budget: of a plan, the fraction of plain training's activation peak that it may take; ``None`` for all others.
        bound: of a plan with a budget, the gradient's error that it may have.
        library: of others, that it takes; empty where it takes none.
    """

    ready: Callable[[Subject], tuple[Forward, Surroundings]]
    ours: bool = True
    slow: bool = False
    adapts: bool = False
    draws: bool = False
    budget: float | None = None
    bound: float = 0.0
    library: str = ""


def plain(subject: Subject) -> tuple[Forward, Surroundings]:
    """The model as it is."""
    return subject.model, nullcontext


def compressed(level: str | None, subject: Subject, **options: Any) -> tuple[Forward, Surroundings]:
    """By ``compress_model``, with its options; ``None`` is no level.

    Raises:
        DoesNotApply: it refuses them for this model.
    """
    try:
        return integrations.compress_model(subject.model, level, **options), nullcontext
    except ValueError as error:  # of the options: no forward has run
        raise DoesNotApply(str(error)) from error


def planned(budget: float, bound: float, **options: Any) -> Way:
    """A plan of what is kept, stored in fewer bits and computed again.

    Args:
        budget: as a fraction of plain training's activation peak.
        bound: of the gradient's error; 0 rounds nothing.
        **options: of ``compress_model`` besides.
    """
    return Way(partial(_within, budget, bound, **options), budget=budget, bound=bound)


def planned_name(budget: float, bound: float) -> str:
    """Of the way that ``planned`` makes, as the command line knows it."""
    return f"plan, {100 * budget:g} %, {f'error {bound:g}' if bound else 'exact'}"


def _within(budget: float, bound: float, subject: Subject, **options: Any) -> tuple[Forward, Surroundings]:
    """By ``compress_model``, whose plan is made by the first training forward: a step is taken for that.

    Raises:
        DoesNotApply: the budget cannot be met.
    """
    forward = integrations.compress_model(subject.model, memory=budget, error=bound, **options)
    try:
        subject.step(forward)
    except ValueError as error:
        if not str(error).startswith("memory "):  # the budget, which is out of reach
            raise
        raise DoesNotApply(str(error)) from error
    return forward, nullcontext


def _least(subject: Subject) -> tuple[Forward, Surroundings]:
    """The plan of recomputation alone with the least peak."""
    given = subject.inputs
    args, kwargs = ((), dict(given)) if isinstance(given, Mapping) else (given, None)
    try:
        with subject.around():  # a plan is of the dtypes that autocast makes
            plan = planning.plan(subject.model, args, kwargs=kwargs)
    except ValueError as error:
        raise DoesNotApply(str(error)) from error
    return planning.apply(subject.model, plan), nullcontext


def each_block(wrap: Callable[[Forward], Forward], subject: Subject) -> tuple[Forward, Surroundings]:
    """Every block computed again in backward.

    Raises:
        DoesNotApply: the model has none.
    """
    if not subject.blocks:
        raise DoesNotApply("the model has no blocks")
    for block in subject.blocks:
        block.forward = wrap(block.forward)
    return subject.model, nullcontext


def by_torch(forward: Forward) -> Forward:
    """With ``torch.utils.checkpoint``."""
    return partial(checkpoint, forward, use_reentrant=False)


def by_remat(forward: Forward) -> Forward:
    """With torch's generators set back, which it leaves to its caller: a dropout that is computed again must draw what
    it drew, as it does with ``torch.utils.checkpoint``."""
    wrapped: Forward = needs("torch_remat", "rivals").checkpoint(recompute_state_hooks=(_Generators(),))(forward)
    return wrapped


class _Generators:
    """What ``torch_remat`` asks for the states of torch's generators, in the form of its hooks."""

    def snapshot(self) -> tuple[Tensor, list[Tensor]]:
        """The states, of the CPU's and of each GPU that is in use."""
        return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def restore(self, states: tuple[Tensor, list[Tensor]]) -> None:
        """Sets the generators back."""
        cpu, cuda = states
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)


def _on_cpu(subject: Subject) -> tuple[Forward, Surroundings]:
    _require_gpu(subject)
    return subject.model, partial(save_on_cpu, pin_memory=True)


def _offloaded(module: str, subject: Subject) -> tuple[Forward, Surroundings]:
    """By another library's ``OffloadActivations``: one object for all steps, as its trainer has it."""
    _require_gpu(subject)
    offload = needs(module, "rivals").OffloadActivations()
    return subject.model, lambda: offload


def _swapped(level: str, subject: Subject) -> tuple[Forward, Surroundings]:
    _require_gpu(subject)
    return compressed(level, subject)


def _require_gpu(subject: Subject) -> None:
    if not any(parameter.is_cuda for parameter in subject.model.parameters()):
        raise DoesNotApply("the model is on the CPU already")


def _compressed_and_compiled(level: str, subject: Subject) -> tuple[Forward, Surroundings]:
    torch._dynamo.reset()
    forward, surroundings = compressed(level, subject)
    return torch.compile(forward), surroundings


def _compiled(budget: float, subject: Subject) -> tuple[Forward, Surroundings]:
    torch._dynamo.reset()

    @contextmanager
    def budgeted() -> Iterator[None]:
        with functorch_config.patch(activation_memory_budget=budget):
            yield

    return torch.compile(subject.model), budgeted


PLAIN = "plain"

BUDGETS = (0.5, 0.3, 0.25, 0.2, 0.15, 0.1)
"""Fractions of plain training's activation peak that plans are made for."""

BOUNDS = (0.0, 0.1)
"""Of the gradient's error, of those plans: nothing is rounded, and what they have by default."""

COMPILED_BUDGETS = (0.5, 0.2, 0.1)
"""What ``torch.compile`` is asked for: a fraction of the memory of what its partitioner would save."""

WAYS: Mapping[str, Way] = MappingProxyType(
    {
        PLAIN: Way(plain, ours=False),
        "L1": Way(partial(compressed, "L1")),
        "L1.1": Way(partial(compressed, "L1.1")),
        "L1.2": Way(partial(compressed, "L1.2")),
        "L4bit-swap": Way(partial(_swapped, "L4bit-swap")),
        "L2": Way(partial(compressed, "L2"), adapts=True),
        "L2.2": Way(partial(compressed, "L2.2"), adapts=True),
        "few-bit activations": Way(partial(compressed, "L0", activations="fewbit")),
        # With a seed of its own, so that dropout draws what it draws in a plain step.
        "randomized linear": Way(partial(compressed, "L0", linear={"proj_dim_ratio": 0.2, "seed": 0})),
        "Q-layers": Way(partial(compressed, "L0", layers="q"), adapts=True, draws=True),
        "L1 + few-bit": Way(partial(compressed, "L1", activations="fewbit")),
        "checkpoint, least": Way(_least),
        "L1 + checkpoint": Way(partial(compressed, "L1", checkpoint="optimal")),
        **{planned_name(budget, bound): planned(budget, bound) for bound in BOUNDS for budget in BUDGETS},
        "each block (torch)": Way(partial(each_block, by_torch), ours=False),
        "each block (torch_remat)": Way(partial(each_block, by_remat), ours=False, library="torch_remat"),
        "save_on_cpu": Way(_on_cpu, ours=False),
        **{
            f"torch.compile, budget {budget:g}": Way(partial(_compiled, budget), ours=False, slow=True)
            for budget in COMPILED_BUDGETS
        },
        "lean": Way(partial(compressed, "lean")),
        "torch.compile": Way(partial(_compiled, 1.0), ours=False, slow=True),
        "L1 + torch.compile": Way(partial(_compressed_and_compiled, "L1"), slow=True),
        "OffloadActivations (TRL)": Way(
            partial(_offloaded, "trl.models.activation_offloading"), ours=False, library="trl"
        ),
        "OffloadActivations (torchtune)": Way(
            partial(_offloaded, "torchtune.training"), ours=False, library="torchtune"
        ),
    }
)
"""By name; charts number them in this order. Levels and options are those of ``compress_model``."""

PEAK_WAYS = (PLAIN, "checkpoint, least", *(planned_name(budget, bound) for bound in BOUNDS for budget in (0.5, 0.3)))
"""Whose planned peaks are compared with measured ones."""

TWIN_WAYS = (PLAIN, "each block (torch)", "L1", "lean", "checkpoint, least")
"""Whose host time is measured. Torch's checkpointing is what others are to be measured by. Plans with a budget are
left out: gradients are most of such a step's peak, and no plan lowers that."""

QUICK_WAYS = (
    PLAIN,
    "L1",
    "L2",
    "Q-layers",
    "L1 + few-bit",
    *(planned_name(0.5, bound) for bound in BOUNDS),
    "each block (torch)",
    "each block (torch_remat)",
)
"""One of each kind."""
