"""``RecordedStep``: what measuring the error of a training step takes, kept until the next step begins."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from integrations._utils.compiling import has_compiled_parts
from integrations._utils.running_module import all_modules
from integrations._utils.torch_internals import collectives_of_groups, tree_leaves, tree_map_only
from integrations.api.error_control.gradient_errors import GradientErrors, measured_errors
from integrations.planner.alternatives import fits_beside_gradients
from integrations.planner.gradient_states import has_gradients
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.one_step import Unmeasured, UnmeasuredStep, differentiable_outputs
from integrations.tracing.tensors import LEAVES, tensors_in

_SMALL = 0.02
"""The gradients of a model's outputs are kept if they take no more than this part of the plan's peak, and so are copies
of its inputs. Otherwise drawn gradients take the place of those, and the inputs themselves are kept."""

Autocast = tuple[str, bool, torch.dtype]


class RecordedStep:
    """A training step whose forward has returned.

    Args:
        plan: the plan that it followed, for the state of its gradients.
        base: the plan for its inputs, for steps that find no gradients.
        args, kwargs: of its forward.
        before: the versions of its tensors before the forward, from ``tensor_versions``.
        collectives: how many collectives each process group had started before the forward, from
            ``collectives_of_groups``.
        returned: what the forward has returned.

    Attributes:
        plan: the plan that was measured; the one that was followed before that.
    """

    def __init__(
        self,
        plan: Plan,
        base: Plan,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        before: list[int],
        collectives: list[int] | None,
        returned: Any,
    ) -> None:
        self.plan, self._base = plan, base
        self._autocast = _autocast()
        tensors = tensors_in((args, kwargs))
        self._obstacle = _obstacle(args, kwargs)
        if not self._obstacle and tensor_versions(args, kwargs) != before:
            self._obstacle = "its forward changes its inputs in place"
        if not self._obstacle and collectives_of_groups() != collectives:
            self._obstacle = "its forward communicates with other ranks, which run no measurement step at the same time"
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._starts: list[Tensor | None] | None = None
        self._versions: list[int] = []
        if self._obstacle:
            return
        copies = _nbytes(tensors) <= _SMALL * plan.peak
        self._args, self._kwargs = tree_map_only(Tensor, partial(_apart, copies=copies), (args, kwargs))
        self._versions = tensor_versions(self._args, self._kwargs)
        outputs = differentiable_outputs(returned)
        plain = all(type(one) is Tensor and one.grad_fn is not None for one in outputs)
        if plain and _nbytes(outputs) <= _SMALL * plan.peak:
            self._starts = [None] * len(outputs)
            for place, output in enumerate(outputs):
                output.register_hook(partial(_keep, weakref.ref(self), place))

    def measured(self, model: nn.Module) -> GradientErrors:
        """Return the errors of the step's gradients.

        Where there are gradients now, and the plan that was followed does not fit beside them, the plan for steps that
        accumulate is measured.

        Args:
            model: the model.

        Raises:
            UnmeasuredStep: it cannot be measured, and a later step may be.
            Unmeasured: no such step can be measured. Both messages say why.
            Exception: what the model raises.
        """
        starts = self._starts
        if self._obstacle:
            raise Unmeasured(self._obstacle)
        if has_compiled_parts(all_modules(model)[1:]):  # they would be compiled once more for the step aside
            raise Unmeasured("parts of the model are compiled by torch separately")
        if tensor_versions(self._args, self._kwargs) != self._versions:
            raise Unmeasured("its inputs were overwritten in place after the step")
        if starts is not None and all(start is None for start in starts):
            raise UnmeasuredStep("its backward did not run")
        if starts is not None and not all(start is None or bool(start.isfinite().all()) for start in starts):
            raise UnmeasuredStep("its gradient was not finite")
        if has_gradients(model) and not fits_beside_gradients(self._base, self.plan):
            self.plan = self._base.accumulating
            if not self.plan.choice.rounds:
                raise UnmeasuredStep("with gradients present, the plan that fits the budget rounds nothing")
        with _under(self._autocast):
            found = measured_errors(model, self._args, self._kwargs, self.plan, starts=starts, changes_inputs=False)
        if tensor_versions(self._args, self._kwargs) != self._versions:
            raise Unmeasured("its forward changes its inputs in place")
        return found


def tensor_versions(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
    """Return the versions of the tensors of a call, which writing in place changes."""
    return [-1 if tensor.is_inference() else tensor._version for tensor in tensors_in((args, kwargs))]


def _obstacle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why a call cannot be repeated later, in words: an argument may change, or keep much alive; else empty."""
    for leaf in tree_leaves((args, kwargs)):
        if not isinstance(leaf, Tensor) and type(leaf) not in LEAVES:
            return f"an argument of its forward is a {type(leaf).__name__}, which may change"
    return ""


def _apart(tensor: Tensor, copies: bool) -> Tensor:
    """Return the tensor, or a copy, without the operators that made it."""
    found = tensor.detach().clone() if copies else tensor.detach()
    return found.requires_grad_(tensor.requires_grad)


def _keep(reference: weakref.ref[RecordedStep], place: int, gradient: Tensor | None) -> None:
    """Keep the gradient of an output; that of an unused one is ``None`` if its operator made a used one, too."""
    recorded = reference()
    if recorded is not None and recorded._starts is not None and gradient is not None:
        recorded._starts[place] = gradient.detach()


def _nbytes(tensors: list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _autocast() -> list[Autocast]:
    """Return the state of autocast."""
    kinds = (kind for kind in ("cpu", "cuda") if torch.amp.is_autocast_available(kind))
    return [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in kinds]


@contextmanager
def _under(states: list[Autocast]) -> Iterator[None]:
    """A block in such a state of autocast."""
    with ExitStack() as entered:
        for kind, enabled, dtype in states:
            if (enabled, dtype) != (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)):
                entered.enter_context(torch.autocast(kind, dtype, enabled=enabled))
        yield
