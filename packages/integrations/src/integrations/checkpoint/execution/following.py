"""``run`` and ``following``: a training forward that keeps what a plan keeps, and lets backward make the rest again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from actcore import Codec
from integrations.checkpoint.dispatch.casts import fresh_casts
from integrations.checkpoint.execution.keeping import Coding, Keeping, Packed
from integrations.checkpoint.execution.tape import Tape
from integrations.checkpoint.graphs.graph import Graph
from integrations.checkpoint.graphs.schedule import Schedule
from integrations.checkpoint.graphs.sharding import hooks_unseen, units_of
from integrations.saved.session import is_compressing
from integrations.warn import warn


def run(
    model: nn.Module,
    graph: Graph,
    kept: Collection[int],
    codec: Codec | None = None,
    held: Collection[int] | None = None,
) -> Callable[..., Any]:
    """A function that calls the model and keeps, of what autograd saves, only these values for backward.

    Gradients, buffers and generators come out as those of the model itself. In ``eval`` mode and without gradients it
    is the model itself. A forward whose operators are not those of the graph is right, too: from the first difference
    on everything is kept, and a warning says where that is.

    Args:
        model: the one that the graph was captured of.
        graph: what ``capture`` returned.
        kept: numbers of the values that are kept.
        codec: stores the activations among what is kept; ``None`` keeps them as they are.
        held: as in ``Schedule.of``.
    """
    schedule = Schedule.of(graph, kept, held)
    coding = None if codec is None else Coding(codec)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if not model.training or not torch.is_grad_enabled():
            return model(*args, **kwargs)
        with following(schedule, model, None if coding is None else coding.begin(graph)) as tape:
            result = model(*args, **kwargs)
        if tape.astray:
            warn(
                f"{type(model).__name__}'s forward is not the one that was captured: {tape.astray}. What follows is "
                "kept: gradients are right and memory is not saved"
            )
        return result

    return forward


@contextmanager
def following(schedule: Schedule, model: nn.Module | None = None, keeping: Keeping | None = None) -> Iterator[Tape]:
    """A block whose forward keeps what a schedule keeps. The tape says afterwards whether it could.

    Args:
        schedule: of the model.
        model: whose units of ``fully_shard`` a repetition is not to leave; ``None`` if it has none.
        keeping: how what is kept is rounded; ``None``: it is kept as it is.
    """
    if runs_transformed():
        yield Tape(schedule)
        return
    if is_compressing():
        raise RuntimeError(
            "a forward that follows a plan must not run inside of a compressed one, or of a block of "
            "integrations.compress, which sees to all that is kept there: undo one of the two, or use "
            "compress_model(model, checkpoint=plan)"
        )
    with ExitStack() as stack:
        units = frozenset[str]() if model is None else units_of(model)
        if keeping is not None:
            schedule = schedule.where_rounded
        tape = Tape(schedule.within(units), keeping)
        stack.enter_context(fresh_casts())
        stack.enter_context(saved_tensors_hooks(tape.pack, _unpack))
        if model is not None and units:
            stack.enter_context(hooks_unseen(model, tape))
        stack.enter_context(tape)
        yield tape
    tape.finish()


def runs_transformed() -> bool:
    """Whether functorch or forward-mode differentiation is at work, which no plan can be followed under; says so."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0
    if transformed:
        warn(
            "a model with a plan runs under torch.func or forward-mode differentiation, which give its operators other "
            "tensors than those that were planned: it keeps everything, as without a plan"
        )
    return transformed


def _unpack(packed: Packed) -> Tensor:
    """The tensor in whose place autograd held this."""
    return packed.unpack()
