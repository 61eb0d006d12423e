"""``Remeasuring``: has a plan's error measured again while the model learns, at steps that are fixed ahead."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from actcore import in_cuda_graph
from integrations._adaptive.one_step import Unmeasured, outputs_of
from integrations._adaptive.ranks import of_all
from integrations._common.entries import entry_of, of_type
from integrations._common.warn import warn
from integrations._measuring.error_model import ErrorModel
from integrations._measuring.gradient_errors import OF_TENSOR, GradientErrors, TensorError, measured_errors
from integrations._planning.gradient_states import has_gradients
from integrations._planning.plan import Plan
from integrations._torch import tree_map_only

EARLY = (0, 10, 50, 200)
EVERY = 500
"""Steps whose errors are measured: the early ones, and then each multiple. A measurement takes the time of some three
plain steps."""

_SMALL = 0.02
"""The gradients of a model's outputs are kept for a measurement if they take no more than this part of the plan's
peak. Otherwise drawn ones take their place."""

_TIGHT = 0.9  # the part of the bound from which on a measured error makes plans round less
_DOUBTFUL = 0.5  # the part of the bound from which on an error may exceed the bound before the next measurement
_SETTLED = 50  # the step from which on a doubtful error is measured again when twice as many steps are over
_MOST_AGAIN = 2  # how many steps in a row are measured because the one before was above the bound
_MOST_WAITED = 64  # steps until a measurement that failed is tried again, at most


@dataclass(frozen=True)
class Measured:
    """A measurement of the gradient's error.

    Attributes:
        step: the step that it is of.
        relative: the relative error of the whole gradient.
        worst: the relative error of the large parameter tensor that has the largest.
        name: the name of that parameter.
    """

    step: int
    relative: float
    worst: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        of_tensor = f", {self.worst:.2g} of {self.name}" if self.name else ""
        return f"measured {self.relative:.2g} in step {self.step}{of_tensor}"


@dataclass
class _Recorded:
    """A training step that is measured before the next one.

    Attributes:
        step: its number.
        plan: the plan for its inputs, for steps that find no gradients.
        accumulates: whether the step has found gradients.
        args, kwargs: of its forward.
        starts: the gradients of the tensors that it returned and that require one, as far as backward has come to them;
            ``None`` if they are too large to keep.
    """

    step: int
    plan: Plan
    accumulates: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    starts: list[Tensor | None] | None


class Remeasuring:
    """Records a training step's inputs and the gradients of its outputs, and measures the error before the next
    forward, when the step's own tensors are gone.

    Args:
        errors: predicts the errors of plans, and learns from what is measured.
        first: the first step to measure.

    Attributes:
        errors: as given.
        last: the last measurement; ``None`` before the first.
        why: why the last attempt failed, if it did.
    """

    def __init__(self, errors: ErrorModel, first: int = 0) -> None:
        self.errors = errors
        self.last: Measured | None = None
        self.why = ""
        self._next, self._wait, self._again = first, 1, 0
        self._due: int | None = None  # the step that is measured before the next one, the same on all ranks
        self._recorded: _Recorded | None = None
        self._told = False  # whether a warning has told of an error above the bound

    def __str__(self) -> str:
        found = "not measured yet" if self.last is None else str(self.last)
        return f"{found} ({self.why})" if self.why else found

    def start(self, step: int) -> None:
        """Note that a step starts."""
        if self._due is None and step >= self._next and not in_cuda_graph():
            self._due, self._recorded = step, None

    def waits(self, step: int) -> bool:
        """Return whether a step before this one is over and was not measured yet."""
        return self._due is not None and step > self._due and not in_cuda_graph()

    def records(self, step: int) -> bool:
        """Return whether a step is to be recorded."""
        return step == self._due

    def record(
        self,
        step: int,
        plan: Plan,
        accumulates: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        returned: Any,
    ) -> None:
        """Keep what measuring a step takes, whose forward has returned.

        Args:
            step: its number.
            plan: the plan for its inputs, for steps that find no gradients.
            accumulates: whether the step has found gradients.
            args, kwargs: of its forward.
            returned: by its forward.
        """
        outputs = outputs_of(returned)
        small = sum(one.numel() * one.element_size() for one in outputs) <= _SMALL * plan.peak
        plain = all(type(one) is Tensor and one.grad_fn is not None for one in outputs)
        starts: list[Tensor | None] | None = [None] * len(outputs) if small and plain else None
        args, kwargs = tree_map_only(Tensor, _apart, (args, kwargs))
        self._recorded = recorded = _Recorded(step, plan, accumulates, args, kwargs, starts)
        if starts is not None:
            for place, output in enumerate(outputs):
                output.register_hook(partial(_keep, weakref.ref(recorded), place))

    def settle(self, model: nn.Module, together: bool, begins: bool) -> None:
        """Measure the recorded step, and correct the predictions of errors. If that fails, a later step is measured.

        Args:
            model: the model.
            together: whether all ranks call this at the same time. Then each error is the largest of theirs.
            begins: whether another step begins. If it finds gradients, the steps aside do, too. Before, in
                ``state_dict``, nobody knows whether the gradients that are there will be cleared.
        """
        recorded, due = self._recorded, self._due
        self._recorded = self._due = None
        assert due is not None
        found = None if recorded is None else self._measure(model, recorded, begins)
        exact = recorded is not None and not recorded.plan.choice.rounds
        if together:
            found = _largest(of_all(found))
        if exact:  # there is nothing to measure
            self._next, self._wait, self.why = _after(due), 1, ""
            return
        if found is None or recorded is None:
            self.why = self.why or "it could not be measured on another rank"
            self._next, self._wait = due + 1 + self._wait, min(2 * self._wait, _MOST_WAITED)
            return
        self._next, self._wait = _after(due), 1
        name, worst = found.worst
        self.last, self.why = Measured(due, found.relative, worst, name), ""
        self._learn(recorded.plan, found, self.last)

    def _learn(self, plan: Plan, found: GradientErrors, last: Measured) -> None:
        """Correct the predictions of errors by a measurement, if plans have to round less. If the error was above the
        bound, the next step is measured, too."""
        bound = plan.error
        self.errors.last = str(last)
        if found.over > _TIGHT * bound:
            self.errors.correct(plan, found)
        elif found.over > _DOUBTFUL * bound and last.step >= _SETTLED:
            self._next = min(self._next, 2 * last.step)
        self._again = self._again + 1 if found.over > bound else 0
        if 0 < self._again <= _MOST_AGAIN:
            self._next = 0
        if found.over > bound and not self._told:
            self._told = True
            warn(
                f"the gradient's error of {plan.model} was {last}, above error={bound:g} (a large tensor may have "
                f"{OF_TENSOR:g} times as much): the plan rounds less from the next step on"
            )

    def _measure(self, model: nn.Module, recorded: _Recorded, begins: bool) -> GradientErrors | None:
        starts = recorded.starts
        if starts is not None and all(start is None for start in starts):
            self.why = "its backward did not run"
            return None
        if starts is not None and not all(start is None or bool(start.isfinite().all()) for start in starts):
            self.why = "its gradient was not finite"
            return None
        if recorded.accumulates or (begins and has_gradients(model)):
            recorded.plan = recorded.plan.accumulating
        plan = recorded.plan
        if not plan.choice.rounds:
            return None
        try:
            return measured_errors(model, recorded.args, recorded.kwargs, plan, starts=starts)
        except Unmeasured as error:
            self.why = str(error)
        except Exception as error:  # whatever it is, the training step itself had no such error
            self.why = f"{type(error).__name__}: {error}"
        return None

    # ---- state ----

    def __getstate__(self) -> dict[str, Any]:
        # A copy has none of the recorded tensors. It measures a later step.
        return {**self.__dict__, "_recorded": None}

    def state(self) -> dict[str, Any]:
        """Return the state as plain values. A recorded step has been measured before, unless ranks measure together."""
        return {
            "errors": self.errors.state(),
            "last": None if self.last is None else asdict(self.last),
            "next": self._next,
            "wait": self._wait,
            "again": self._again,
            "due": self._due,
        }

    def load(self, state: Any) -> None:
        """Take over what ``state`` returned.

        Raises:
            ValueError: it has another form.
        """
        names = ("next", "wait", "again", "due")
        if not isinstance(state, Mapping) or set(state) != {"errors", "last", *names}:
            raise ValueError(f"the state's measuring must be what state_dict returned, got {state!r:.80}")
        for name in names:
            if (of_type(int | None, state[name], name) is None and name != "due") or (state[name] or 0) < 0:
                raise ValueError(f"the state's {name} must be an int from 0, got {state[name]!r:.40}")
        self.errors.load(state["errors"])
        self.last = None if state["last"] is None else entry_of(Measured, dict(state["last"]))
        self._next, self._wait, self._again, self._due = (state[name] for name in names)


def _keep(reference: weakref.ref[_Recorded], place: int, gradient: Tensor) -> None:
    """Keep the gradient of an output."""
    recorded = reference()
    if recorded is not None and recorded.starts is not None:
        recorded.starts[place] = gradient.detach()


def _apart(tensor: Tensor) -> Tensor:
    """Return the tensor without the operators that made it."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _after(step: int) -> int:
    """Return the next step to measure after one."""
    return next((one for one in EARLY if one > step), (step // EVERY + 1) * EVERY)


def _largest(found: Sequence[GradientErrors | None]) -> GradientErrors | None:
    """Return the errors of all ranks as one: of each parameter that of the rank with the largest relative error."""
    if any(one is None for one in found):
        return None
    every = [one for one in found if one is not None]
    tensors: dict[str, TensorError] = {}
    for one in every:
        for name, error in one.tensors.items():
            if name not in tensors or error.relative > tensors[name].relative:
                tensors[name] = error
    return GradientErrors(tensors, every[0].large)
