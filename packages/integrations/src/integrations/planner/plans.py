"""``Plans``: the plans of a model in use: for inputs of other shapes, and for a forward that was not as captured."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import nn

from integrations._utils.compiling import has_compiled_parts
from integrations._utils.locking import OwnLock, Users
from integrations._utils.running_module import all_modules
from integrations._utils.warn import warn
from integrations.capture.capture import capture
from integrations.capture.graphs.schedule import Schedule
from integrations.capture.graphs.sharding import distributed
from integrations.capture.graphs.signature import Signature
from integrations.capture.loss import OF_LOSS
from integrations.capture.units import is_sharded
from integrations.planner.alternatives import within_less
from integrations.planner.bounds import Bounds
from integrations.planner.budget import LEAST
from integrations.planner.errors import BudgetError
from integrations.planner.gradient_states import GradientState, has_gradients
from integrations.planner.loss_choice import with_better_loss
from integrations.planner.plan import Plan
from integrations.planner.plan_before_forward import Attempts
from integrations.planner.plan_messages import (
    bounds_exceeded_error,
    bounds_exceeded_warning,
    forward_differs,
    loss_missing,
    shapes_refused,
)
from integrations.planner.plan_recomputation import plan_of_graph
from integrations.planner.search import solved_for_any_path

Shapes = Literal["replan", "refuse"]

_MOST_CAPTURES = 2
"""How many captures may turn out wrong before the last one for the same inputs, which uses real tensors. A model that
differs again may have changed."""

_MOST_REFUSED = 64
_MOST_PLANS = 8
"""At most so many plans are made for a model whose inputs keep changing."""


class Followed(NamedTuple):
    """What a forward follows.

    Attributes:
        plan: the plan for these inputs, or for larger ones.
        schedule: what ``of_state`` means for each operator.
        inputs: the forward's.
        of_state: the same plan for the state of the gradients: ``plan``, its ``accumulating`` or its ``clearing``.
    """

    plan: Plan
    schedule: Schedule
    inputs: Signature
    of_state: Plan


@dataclass
class _Mismatches:
    """Forwards with certain inputs that were not as captured.

    Attributes:
        captures: how many captures were wrong, including one of larger inputs whose plan these followed.
        due: whether no new capture was made since the last of these forwards.
    """

    captures: int = 0
    due: bool = False


class Plans:
    """A model's plans, by what their inputs look like. Threads that ask at the same time are answered one after the
    other.

    Args:
        plan: the first plan. Others are made for its budget and objective, and with measured times if it has them.
        shapes: whether inputs of other shapes are planned for, or refused.
        asked: the bounds that the user has asked for, by which other inputs and other states of the gradients are
            refused, or not; ``None``: the plan's.

    Attributes:
        last: the plan that was followed last.
        followed: the same, or its ``accumulating`` or ``clearing`` by the state of the gradients.
        inputs: of the forward that followed it.
        left: where that forward differed from the planned one, in words; empty if it did not.
    """

    def __init__(self, plan: Plan, shapes: Shapes, asked: Bounds | None = None) -> None:
        self._asked = plan.bounds if asked is None else asked
        self._refused: dict[tuple[Signature, GradientState], str] = {}  # inputs without a plan, and why
        self.last = self.followed = self._first = plan
        self.inputs = plan.graph.inputs
        self.left = ""
        self._shapes = shapes
        self._plans = {one.graph.inputs: one for one in (plan, *plan.also)}
        self._mismatches: dict[Signature, _Mismatches] = {}
        self._attempts = Attempts()
        # Inputs and states for which a plan over the budget was warned of.
        self._excess: set[tuple[Signature, str]] = set()
        self._told_of_loss = False
        # Whether forwards have taken another path than the planned one, or may take one without being noticed; ``None``
        # before the first.
        self._varies: bool | None = None
        self._told = False  # whether it was warned that some inputs get no plan of their own
        self._lock = OwnLock()

    @property
    def first(self) -> Plan:
        """Return the first plan."""
        return self._first

    @property
    def asked(self) -> Bounds:
        """Return the bounds that the user has asked for."""
        return self._asked

    @property
    def condition(self) -> str:
        """Return what to know of ``followed`` if the last forward was not the one that was planned, in words."""
        if self.left:
            return f" that the last forward left ({self.left}), on the captured path"
        planned = self.followed.graph.inputs
        return "" if self.inputs == planned else f" for inputs {planned}"

    def keeps_bounds(self, model: nn.Module) -> bool:
        """Whether the first plan keeps to its bounds with the gradients that the model has now."""
        return not self._first.is_bounded or not has_gradients(model) or self._first.accumulating.is_bounded

    def plan_for(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        users: Users,
        state: GradientState,
        any_path: bool = False,
        certain: bool = True,
    ) -> Followed | None:
        """What a forward with these inputs follows. ``None`` if no plan can be made for it, and it runs plainly.

        Args:
            model, args, kwargs: the model, and the forward's inputs.
            users: the model's forwards, of which a capture wants none beside it.
            state: what the forward is planned for.
            any_path: whether the plan's error has to be within the bound on every path of the forward.
            certain: whether the state is known. A first step that finds gradients may still clear them.

        Raises:
            ValueError: the inputs have other shapes than planned for, and these are refused.
            BudgetError: no plan keeps to the bounds for these inputs or this state, and there is no fallback.
        """
        inputs = Signature.of(args, kwargs)
        if self._refused and (why := self._refused.get((inputs, state))) is not None:
            raise BudgetError(why)
        self._attempts.start()
        if self._varies is None:  # a tape has compiled parts run as eager code, so nothing tells whether they differ
            self._varies = has_compiled_parts(all_modules(model)[1:])
        with self._lock.held:
            asks = self._asks_for_capture(inputs)
        with users.alone() if asks else nullcontext(), self._lock.held:
            plan = self._plan_of(inputs)
            if plan is None and self._shapes == "refuse":
                raise ValueError(shapes_refused(self._first.graph.inputs, inputs))
            if asks and self._asks_for_capture(inputs):
                mismatch = self._mismatches.get(inputs, _Mismatches())
                real = mismatch.captures == _MOST_CAPTURES
                # Sharded parameters have no real tensors to capture with, and other ranks do not take part in a
                # capture.
                if not (real and (is_sharded(model) or distributed())):
                    made = self._attempts.plan(model, inputs, lambda: self._made(model, args, kwargs, real))
                    if made is None and plan is None:
                        return None
                    if made is not None:
                        plan = self._plans[inputs] = made
                        mismatch.due = False
            plan = self._corrected(plan or self.last)
            plan = self._for_any_path(plan) if self._varies or any_path else plan
            followed = plan if state == "fresh" else getattr(plan, state)
            if plan.is_bounded and not followed.is_bounded:
                self._exceed_bounds(followed, inputs, state, raises=certain)
            self.last, self.followed = plan, followed
            self.inputs, self.left = inputs, ""
            fits = plan.graph.inputs == inputs
            return Followed(plan, followed.schedule if fits else followed.schedule_of_any_sizes, inputs, followed)

    def _corrected(self, plan: Plan) -> Plan:
        """Return the plan for the same inputs by the newest predictions of errors."""
        return plan

    def _asks_for_capture(self, inputs: Signature) -> bool:
        """Whether a forward with these inputs has no plan, or one that was not its own."""
        mismatch = self._mismatches.get(inputs)
        again = mismatch is not None and mismatch.due and mismatch.captures <= _MOST_CAPTURES
        return (again or self._plan_of(inputs) is None) and self._has_room(inputs)

    def note_returned(self) -> None:
        """Notes that the forward has returned for which this thread last called ``plan_for``."""
        self._attempts.returned()

    def take_less(self, followed: Followed) -> None:
        """Plan for a tenth less memory from now on than a forward's plan takes, from the same captures.

        Raises:
            BudgetError: no plan for the forward's inputs takes less. Nothing changes.
        """
        with self._lock.held:
            less = within_less(followed.plan, followed.of_state)
            for inputs, plan in self._plans.items():
                with suppress(BudgetError):
                    self._plans[inputs] = plan.within(less.memory, plan.time)
            self._plans[less.graph.inputs] = less
            self._first = self._plans[self._first.graph.inputs]

    def _exceed_bounds(
        self, least: Plan, inputs: Signature, state: GradientState = "fresh", why: str = "", raises: bool = True
    ) -> None:
        """Let a forward follow a plan that takes more than was planned for, if that was allowed. Warn of it once for
        each inputs and state.

        Args:
            least: the plan of the least memory for the inputs and the state.
            inputs: of the forward.
            state: of the gradients.
            why: why there is no better plan, if that is known.
            raises: whether to raise if it was not allowed.

        Raises:
            BudgetError: it was not allowed.
        """
        # A model that has run out of memory is planned for less than was asked for, which nobody has to keep to.
        allowed = least.allowed(self._asked.memory)
        lowered = self._first.memory != self._asked.memory and (allowed is None or least.peak <= allowed)
        if raises and self._asked.fallback != LEAST and not lowered:
            if len(self._refused) >= _MOST_REFUSED:
                self._refused.clear()
            error = self._refused[inputs, state] = bounds_exceeded_error(least, inputs, state, self._asked, why)
            raise BudgetError(error)
        if (key := (inputs, state)) not in self._excess:
            self._excess.add(key)
            once = not raises and state != "fresh" and self._asked.fallback != LEAST and not lowered
            warn(bounds_exceeded_warning(least, inputs, state, self._asked, once))

    def _tell_of_loss(self, made: Plan) -> None:
        """Warns once of a plan that starts from another loss than the first one, whose function was not saved with
        it."""
        if self._first.graph.differentiated == OF_LOSS and self._first.loss is None and not self._told_of_loss:
            self._told_of_loss = True
            warn(loss_missing(made))

    def note_mismatch(self, followed: Followed, where: str, repeats: bool = False, told: bool = True) -> None:
        """Notes a forward that its plan is not for. That tells nothing of the plan if the plan was made for other
        inputs.

        Args:
            followed: what the forward followed.
            where: where it differs, in words.
            repeats: whether the forward now runs a second time.
            told: whether to warn of it; otherwise the caller raises an error.
        """
        plan, inputs = followed.plan, followed.inputs
        with self._lock.held:
            self.left = where
            varies = not self._varies and self._may_exceed(plan, inputs)
            self._varies = bool(self._varies or varies)
            again = self._note(plan, inputs)
        if told and (again is not None or varies):
            warn(forward_differs(plan, where, repeats, again, varies))

    def _may_exceed(self, plan: Plan, inputs: Signature) -> bool:
        """Return whether a forward that differs from the plan's may have an error above the bound. Return ``False`` for
        inputs of other shapes that get a plan of their own: they say nothing about this plan."""
        return not _fits_any_path(plan) and (inputs == plan.graph.inputs or not self._is_counted(inputs))

    def _for_any_path(self, plan: Plan) -> Plan:
        """Return a plan whose error is within the bound on every path of the forward."""
        if _fits_any_path(plan):
            return plan
        found = solved_for_any_path(plan)
        if plan.is_bounded:
            try:
                found = found.within(plan.memory, plan.time)
            except BudgetError:  # which values are stored in what bits follows from the paths
                self._exceed_bounds(found, plan.graph.inputs, raises=False)
        self._plans[plan.graph.inputs] = found
        return found

    def _note(self, plan: Plan, inputs: Signature) -> bool | None:
        """Whether there will be another capture; ``None`` if there is nothing to warn of."""
        if inputs not in self._mismatches and not self._is_counted(inputs):
            told, self._told = self._told, True
            return None if told else False
        mismatch = self._mismatches.setdefault(inputs, _Mismatches())
        if mismatch.due or self._plan_of(inputs) is not plan:  # this is known, or another thread has had a plan made
            return None
        mismatch.captures += 1
        mismatch.due = True
        return mismatch.captures <= _MOST_CAPTURES

    def _is_counted(self, inputs: Signature) -> bool:
        """Whether forwards with these inputs may still have a capture of their own."""
        others = sum(known not in self._plans for known in self._mismatches)
        return inputs in self._plans or (self._has_room(inputs) and others < _MOST_PLANS)

    def _has_room(self, inputs: Signature) -> bool:
        return inputs in self._plans or len(self._plans) < _MOST_PLANS

    def _plan_of(self, inputs: Signature) -> Plan | None:
        """The plan for such inputs. If only plans for larger inputs fit, the one for the smallest of them."""
        own = self._plans.get(inputs)
        if own is not None:
            return own
        fitting = [plan for known, plan in self._plans.items() if inputs.within(known)]
        return min(fitting, key=lambda plan: plan.plain_peak, default=None)

    def _made(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        def planned() -> Plan:
            return self._planned(model, args, kwargs, real).after(self._plans.values())

        chunked = self._first.chunked
        head = chunked.head if chunked is not None and chunked.outside else None
        made = replace(with_better_loss(model, planned, self._first.bounds, head=head), loss=self._first.loss)
        self._tell_of_loss(made)
        if not self._first.is_bounded:
            return made
        try:
            return made.within(self._first.memory, self._first.time)
        except BudgetError:
            self._exceed_bounds(made, Signature.of(args, kwargs))
            return made

    @property
    def _bounds(self) -> Bounds:
        """The bounds for new plans."""
        return self._first.bounds.for_any_path if self._varies else self._first.bounds

    def _planned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        first = self._first
        graph = capture(
            model,
            args,
            kwargs,
            real=real,
            measure=first.graph.measured,
            loss=first.loss,
            holds_outputs=first.graph.holds_outputs,
        )
        return plan_of_graph(first.model, graph, first.objective)


def _fits_any_path(plan: Plan) -> bool:
    """Return whether each value is stored precisely enough for any reader, in both states of the gradients."""
    return plan.compressed or not plan.error or (plan.choice.fits_any_path and plan.accumulating.choice.fits_any_path)
