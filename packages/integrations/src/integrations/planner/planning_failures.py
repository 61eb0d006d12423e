"""``planning``: a context manager for making a plan, whose errors say why none can be made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from integrations._utils.out_of_memory import is_out_of_memory
from integrations._utils.running_module import where_raised
from integrations.capture.errors import NoGradient, NoPartCaptured, NotCaptured
from integrations.capture.graphs.sharding import get_class
from integrations.capture.graphs.signature import Signature
from integrations.capture.loss import Loss
from integrations.planner.errors import PlanningError
from integrations.planner.sensitivity.one_step import OneStep, Unmeasured

_SHORT = "Memory ran out while a plan was made. Nothing has changed, and another attempt plans again"
_OWN = "The model raises this error without a plan, too: a plain step on copies of its tensors raised it"


@contextmanager
def planning(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], loss: Loss | None = None
) -> Iterator[None]:
    """Wrap a block that captures a step of a model and plans for it.

    If the block fails, run a plain step aside, to tell errors of the model from failures of the capture.

    Args:
        model, args, kwargs, loss: those of the step.

    Raises:
        NoGradient: nothing requires a gradient, so there is no backward to plan for.
        PlanningError: no plan can be made. The message says why and what to do instead; the cause is chained.
        Exception: the model itself raises it with these inputs, or memory has run out.
    """
    try:
        yield
        return
    except NoGradient:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            error.add_note(_SHORT)
            raise
        failure = error
    own = None if isinstance(failure, NotCaptured) else _own_error(model, args, dict(kwargs), loss)
    try:
        if own is not None:
            own.add_note(_OWN)
            raise own
        raise PlanningError(_no_plan(model, Signature.of(args, kwargs), failure)) from failure
    finally:  # their tracebacks hold this frame, and the tensors of the step
        del failure, own


def _own_error(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], loss: Loss | None) -> Exception | None:
    """Return the error of a plain step with these inputs; ``None`` if it raises none, or cannot be run."""
    try:
        OneStep(model, args, kwargs, loss).gradients(take=_let_go)
    except Unmeasured:
        return None
    except Exception as error:
        return None if is_out_of_memory(error) else error
    return None


def _let_go(place: int, gradient: Tensor) -> None:
    """Free a gradient."""


def _no_plan(model: nn.Module, inputs: Signature, failure: Exception) -> str:
    """Return the message for a failure: why there is no plan, and the alternatives."""
    why, path = str(failure), ""
    if not isinstance(failure, NotCaptured):
        path = where_raised(failure, model)
        where = f"in {path} ({get_class(model.get_submodule(path)).__name__}), " if path else ""
        why = f"{where}{type(failure).__name__}: {failure}".rstrip(": ")
    no_plan = (
        f"no plan can be made of {get_class(model).__name__} for inputs {inputs}: {why}. Use a level, which needs no "
        "plan: integrations.compress_model(model, level='L1')"
    )
    if isinstance(failure, NoPartCaptured):
        return f"{no_plan}, or torch.utils.checkpoint"
    part = f"a part without {path}" if path else "a part of the model"
    return (
        f"{no_plan}. Or wrap modules in torch.utils.checkpoint. Or plan for {part}: "
        "integrations.compress_model(part, memory=...). checkpoint= needs a plan, too"
    )
