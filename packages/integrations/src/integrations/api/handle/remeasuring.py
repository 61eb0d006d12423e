"""``Remeasuring``: has a plan's error measured again while the model learns, at steps that are fixed ahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from torch import nn

from actcore import in_cuda_graph
from integrations._utils.checked_json import of_type, read_entry
from integrations._utils.torch_internals import collectives_of_groups
from integrations._utils.warn import warn
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.error_control.gradient_errors import GradientErrors, TensorError, describe_errors
from integrations.api.handle.recorded_step import RecordedStep, tensor_versions
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.one_step import Unmeasured, UnmeasuredStep
from integrations.planner.sensitivity.ranks import of_all

EARLY = (0, 10, 50, 200)
EVERY = 500
"""Steps whose errors are measured: the early ones, and then each multiple. A measurement takes the time of some three
plain steps."""

_TIGHT = 0.8  # the part of the bound from which on a measured error makes plans round less
_SOON = 0.9  # the part of the bound that a doubtful error is taken to reach when it is measured again
_LEAST_LONGER = 1.25  # times as many steps are over by then, or more
_DOUBTFUL = 0.5  # the part of the bound from which on an error may exceed the bound before the next measurement
_SETTLED = 50  # the step from which on a doubtful error is measured again sooner
_MOST_AGAIN = 2  # how many steps in a row are measured because the one before was above the bound
_MOST_WAITED = 64  # steps until a measurement that failed is tried again, at most
_MANY = 4  # failures in a row after which it is taken that no step can be measured


class Failure(NamedTuple):
    """Why a step could not be measured.

    Attributes:
        why: in words.
        lasting: whether later steps are likely to fail for the same reason.
    """

    why: str
    lasting: bool


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

    def beside(self, bound: float) -> str:
        """Return the measurement and its bounds in words, for a bound on the whole gradient's error."""
        return f"{describe_errors(self.relative, self.worst, self.name, bound)}, measured in step {self.step}"


class Remeasuring:
    """Measures the error of certain training steps before the next forward, when the step's own tensors are gone.

    If ranks measure together, each of them decides by what all have exchanged, so that all exchange in the same
    forwards.

    Args:
        errors: predicts the errors of plans, and learns from what is measured.
        first: the first step to measure.
        falls_back: whether training goes on by the estimates of plans, with a warning, if no step can be measured.

    Attributes:
        errors: as given.
        last: the last measurement; ``None`` before the first.
        why: why the last attempt failed, if it did.
    """

    def __init__(self, errors: ErrorModel, first: int = 0, falls_back: bool = True) -> None:
        self.errors, self._falls_back = errors, falls_back
        self.last: Measured | None = None
        self.why = ""
        self._next, self._again, self._failures = first, 0, 0
        self._lasting = 0  # failures in a row that later steps are likely to repeat
        self._due: int | None = None  # the step that is measured before the next one
        self._versions: list[int] = []  # of its inputs, before its forward
        self._collectives: list[int] | None = None  # that were started before its forward
        self._recorded: RecordedStep | None = None
        self._told: set[str] = set()

    def __str__(self) -> str:
        bound = self.errors.bound
        if self.last is None:
            return f"at most {bound:g}, not measured yet{f' ({self.why})' if self.why else ''}"
        later = f" (a later step could not be measured: {self.why})" if self.why else ""
        return f"{self.last.beside(bound)}{later}"

    def start(self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that a step starts with these inputs."""
        if self._due is None and step >= self._next and not in_cuda_graph():
            self._due, self._recorded = step, None
            self._versions, self._collectives = tensor_versions(args, kwargs), collectives_of_groups()

    def waits(self, step: int) -> bool:
        """Return whether a step before this one is over and was not measured yet. With several forwards in flight, it
        is over when as many have started."""
        recorded = self._recorded  # another thread may forget it
        in_flight = 1 if recorded is None else recorded.plan.graph.in_flight
        return self._due is not None and step >= self._due + in_flight and not in_cuda_graph()

    def record(
        self, step: int, plan: Plan, base: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any
    ) -> None:
        """Keep what measuring a step takes, whose forward has returned, if it is due and its plan rounds.

        Args:
            step: its number.
            plan, base, args, kwargs, returned: as for ``RecordedStep``.
        """
        if step == self._due and plan.choice.rounds:
            self._recorded = RecordedStep(plan, base, args, kwargs, self._versions, self._collectives, returned)

    def forget(self) -> None:
        """Forget the recorded step."""
        self._recorded = None

    def settle(self, model: nn.Module, together: bool) -> None:
        """Measure the recorded step, and correct the predictions of errors. If that fails, a later step is measured.

        Args:
            model: the model.
            together: whether all ranks call this at the same time. Then each error is the largest of theirs.
        """
        recorded, due = self._recorded, self._due
        self._recorded = self._due = None
        assert due is not None
        mine, self.why = None if recorded is None else self._measured(model, recorded), ""
        every = of_all(mine) if together else [mine]
        tried = [one for one in every if one is not None]
        failed = [one for one in tried if isinstance(one, Failure)]
        if failed:
            self._failures += 1
            self._lasting = self._lasting + 1 if all(one.lasting for one in failed) else 0
            self._next = due + 1 + min(1 << self._failures - 1, _MOST_WAITED)
            self.why = (mine if isinstance(mine, Failure) else failed[0]).why
            if self._failures == _MANY and not self._has_to_raise:
                self._tell("unmeasured", f"{self._failed(model)}. Plans keep this bound only by their estimates")
            return
        self._next, self._failures, self._lasting = _after(due), 0, 0
        found = _largest([one for one in tried if isinstance(one, GradientErrors)])
        if found is None:  # nothing was rounded
            return
        name, worst = found.worst
        self.last = Measured(due, found.relative, worst, name)
        self._learn(type(model).__name__, None if recorded is None else recorded.plan, found, self.last)

    def require_measured(self, model: nn.Module) -> None:
        """Check that steps can be measured.

        Raises:
            RuntimeError: the first four attempts have failed for a reason that lasts, and ``fallback="least"`` was not
                given. Later forwards try again.
        """
        if self._has_to_raise:
            self._next = self._failures = self._lasting = 0
            raise RuntimeError(
                f"{self._failed(model)}. Remove the cause, pass fallback='least' to rely on the estimates of plans "
                "(handle.monitor(closure) can check them), or leave error= out for exact gradients"
            )

    @property
    def _has_to_raise(self) -> bool:
        """Whether training must not go on. What lasts is the same on all ranks, so that all of them raise."""
        return self._lasting >= _MANY and self.last is None and not self._falls_back

    def _failed(self, model: nn.Module) -> str:
        """Return a message that steps could not be measured."""
        found = f"error={self.errors.bound:g} of {type(model).__name__} could not be measured in {_MANY} steps"
        return f"{found}: {self.why}"

    def _measured(self, model: nn.Module, recorded: RecordedStep) -> GradientErrors | Failure:
        """Return the errors of a step, or why they could not be measured."""
        try:
            return recorded.measured(model)
        except Unmeasured as error:
            return Failure(str(error), not isinstance(error, UnmeasuredStep))
        except Exception as error:  # whatever it is, the training step itself had no such error
            return Failure(f"{type(error).__name__}: {error}", lasting=False)

    def _learn(self, model: str, plan: Plan | None, found: GradientErrors, last: Measured) -> None:
        """Correct the predictions of errors by a measurement, if plans have to round less. If the error was above the
        bound, the next step is measured, too.

        Args:
            model: the name of its class.
            plan: the plan that was measured here; ``None`` if only other ranks have measured.
            found: the errors.
            last: the same in short.
        """
        bound = self.errors.bound
        self.errors.last = last.beside(bound)
        if found.over > _TIGHT * bound:
            if plan is not None:
                self.errors.correct(plan, found)
        elif found.over > _DOUBTFUL * bound and last.step >= _SETTLED:
            # Errors grow with what a model learns, of some nets as fast as the number of steps.
            soon = int(last.step * max(_LEAST_LONGER, _SOON * bound / found.over))
            self._next = min(self._next, max(soon, last.step + 1))
        self._again = self._again + 1 if found.over > bound else 0
        if 0 < self._again <= _MOST_AGAIN:
            self._next = 0
        if found.over > bound:
            self._tell(
                "above",
                f"the gradient's error of {model} exceeds error={bound:g}: {self.errors.last}. The plan rounds less "
                "from the next step on",
            )

    def _tell(self, subject: str, text: str) -> None:
        """Warn once of a subject."""
        if subject not in self._told:
            self._told.add(subject)
            warn(text)

    # ---- state ----

    def __getstate__(self) -> dict[str, Any]:
        # A copy has none of the recorded tensors. It measures a later step.
        due = {} if self._due is None else {"_due": None, "_next": min(self._next, self._due + 2)}
        return {**self.__dict__, "_recorded": None, **due}

    def state(self) -> dict[str, Any]:
        """Return the state as plain values. A recorded step has been measured before, unless ranks measure together."""
        return {
            "errors": self.errors.state(),
            "last": None if self.last is None else asdict(self.last),
            "next": self._next,
            "again": self._again,
            "failures": self._failures,
            "due": self._due,
        }

    def load(self, state: Any) -> None:
        """Take over what ``state`` returned.

        Raises:
            ValueError: it has another form.
        """
        names = ("next", "again", "failures", "due")
        if not isinstance(state, Mapping) or set(state) != {"errors", "last", *names}:
            raise ValueError(f"the state's measuring must be what state_dict returned, got {state!r:.80}")
        for name in names:
            if (of_type(int | None, state[name], name) is None and name != "due") or (state[name] or 0) < 0:
                raise ValueError(f"the state's {name} must be an int from 0, got {state[name]!r:.40}")
        self.errors.load(state["errors"])
        self.last = None if state["last"] is None else read_entry(Measured, dict(state["last"]))
        self._next, self._again, self._failures, due = (state[name] for name in names)
        self._next = self._next if due is None else 0  # a step of the run before was to be measured


def _after(step: int) -> int:
    """Return the next step to measure after one."""
    return next((one for one in EARLY if one > step), (step // EVERY + 1) * EVERY)


def _largest(found: Sequence[GradientErrors]) -> GradientErrors | None:
    """Return the errors of all ranks as one: of each parameter that of the rank with the largest relative error."""
    tensors: dict[str, TensorError] = {}
    for one in found:
        for name, error in one.tensors.items():
            if name not in tensors or error.relative > tensors[name].relative:
                tensors[name] = error
    return GradientErrors(tensors, found[0].large) if found else None
