"""``PlanManager``: a compressed model's plan of how values wait for backward, as it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from actcore import Codec, Raw
from integrations._utils.locking import OwnLock, Users
from integrations._utils.progress import progress
from integrations.api.error_control.error_model import ErrorModel
from integrations.api.error_control.plan_within_bounds import chosen
from integrations.api.error_control.rank_0_plan import Answer, of_rank_0, with_bytes
from integrations.api.handle.first_steps import FirstSteps
from integrations.api.handle.forwards_in_flight import ForwardsInFlight
from integrations.api.handle.module_conversion import Conversions
from integrations.api.handle.pipeline_schedule import find_in_flight
from integrations.api.handle.plan_arguments import (
    Asked,
    asked_bounds,
    planning_for,
    require_asked,
    require_at,
    require_same_model,
    require_this_torch,
)
from integrations.api.handle.plan_in_words import NO_PLAN, describe_exceptions, describe_plan
from integrations.api.handle.plans_with_stores import Fronts
from integrations.api.handle.remeasuring import EARLY, Remeasuring
from integrations.api.handle.unrounded_plans import UnroundedPlans
from integrations.capture.graphs.fingerprint import fingerprint
from integrations.capture.graphs.sharding import get_class
from integrations.capture.graphs.signature import Signature
from integrations.planner.bounds import FULL, Bounds
from integrations.planner.budget import Budget
from integrations.planner.errors import BudgetError
from integrations.planner.gradient_states import GradientHistory
from integrations.planner.loss_choice import with_better_loss
from integrations.planner.plan import Plan
from integrations.planner.plan_before_forward import Attempts
from integrations.planner.plan_with_stores import planned, rating_for
from integrations.planner.planning_failures import planning
from integrations.planner.plans import Plans, Shapes
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.planner.sensitivity.ranks import ranks_can_meet, ranks_in_sync
from integrations.policies.levels import Level
from integrations.report.row import Row
from integrations.runtime.compiled.forward import Compiled
from integrations.runtime.plan_executor import PlanExecutor
from integrations.tracing.double_backward import DoubleBackward, Kinds
from integrations.tracing.storage.regions import inner
from integrations.tracing.storage.storage_policy import through


def plan_manager_for(model: nn.Module, level: Level, asked: Asked) -> PlanManager:
    """The ``PlanManager`` of a model at a level.

    Raises:
        TypeError: ``asked`` has the wrong type.
        ValueError: it is not a budget; or it is a plan of another model, or for another level.
    """
    if not isinstance(asked, Bounds):
        require_asked(asked)
    if isinstance(asked, Plan):
        require_this_torch(asked)
        require_same_model(asked, model)
        require_at(asked, level)
    return PlanManager(model, asked, level)


class PlanManager:
    """A model's plans of how values wait for backward, as they were asked for.

    Args:
        model, asked, level: as ``compress_model`` was given them.
        shapes: whether inputs of other shapes are planned for, or refused.
        codec: the codec for what a plan keeps and has no store for; ``None``: as the level says.

    Attributes:
        shapes, codec: as given.
        measuring: has errors measured while the model learns; ``None`` if plans round nothing, or as a level says.
        compiled: has the model's forward follow the plan where torch compiles it together with code around it; ``None``
            if that takes a session, or there is no plan yet.
        inside: the same where that code is one graph (``fullgraph=True``).
        asked: bounds or a plan; or, for a plan beside a level, ``"optimal"`` or a budget.
        plans: ``None`` before the first forward that is planned for.
        users: the model's forwards. A capture exchanges its parameters, and runs alone.
        gradients: what the backwards of earlier steps found.
        together: whether all ranks follow rank 0's plan and measure in the same forwards.
        met: how many forwards ranks have met in, less one.
        took_less: whether the model was planned for less memory after a forward had run out of it.
        differentiated: whether a backward with ``create_graph=True`` has read tensors that plans round. Plans then
            round nothing from the next forward on.
    """

    def __init__(
        self, model: nn.Module, asked: Asked, level: Level, shapes: Shapes = "replan", codec: Codec | None = None
    ) -> None:
        self.asked = asked
        self.plans: Plans | None = None
        self.shapes, self.codec = shapes, codec
        self._keeps = None if codec is None else through(codec, level)
        self._bits: BitPlan | None = None  # the bits for which the plans were made
        self._asks = isinstance(asked, Bounds)  # whether the next forward asks other ranks, as only the first one does
        self._lock = OwnLock()
        self._attempts, self.users = Attempts(), Users()
        self.compiled: Compiled | None = None
        self.inside: Compiled | None = None
        self.gradients, self.first_steps = GradientHistory(), FirstSteps()
        self._in_flight = ForwardsInFlight()
        self.took_less = False
        self.differentiated = False
        self._unrounded = UnroundedPlans(shapes)
        self.measuring: Remeasuring | None = None
        # Whether the next forward asks other ranks to measure together.
        self._joins = isinstance(asked, Plan) and asked.error > 0
        self.together = False
        self.met = -1
        self._number: tuple[int, int] | None = None  # the last measured step, and its number for measuring
        if isinstance(asked, Plan):
            stores = asked.compressed or asked.candidates is not None
            errors = ErrorModel(model, asked.error) if asked.error else None
            self.measuring = None if errors is None else Remeasuring(errors, EARLY[1])
            self.plans = Fronts(asked, level, errors, shapes=shapes) if stores else Plans(asked, shapes)
            if level.off and not stores:
                self.compiled = Compiled(model, asked)

    @property
    def plan(self) -> Plan | None:
        """The plan that was followed last; ``None`` before the first."""
        return None if self.plans is None else self.plans.followed

    @property
    def memory(self) -> Budget | None:
        """The memory budget that was asked for."""
        return self.asked.memory if isinstance(self.asked, Plan | Bounds) else self.asked

    @property
    def error(self) -> float | None:
        """The bound on the gradient's error that was asked for; ``None`` if a level says how everything is stored."""
        return self.bounds.error

    @property
    def measured(self) -> tuple[float, int | None] | None:
        """The gradient's error that was measured last, and its step; ``None`` if it was not measured."""
        last = None if self.measuring is None else self.measuring.last
        if last is not None:
            return last.relative, last.step
        plan = self.plan
        return None if plan is None or plan.measured is None else (plan.measured, None)

    def note_output(self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any], returned: Any) -> None:
        """Note what the forward of a training step has returned, which is measured before the next one if it is due."""
        number, plans = self._number, self.plans
        if plans is not None and self.measuring is not None and number is not None and number[0] == step:
            self.measuring.record(number[1], plans.followed, plans.last, args, kwargs, returned)

    def settle(self, model: nn.Module) -> None:
        """Measure the error of a step that is over, if it is due, between two steps. If ranks measure together, nothing
        is measured: other ranks may not call this at the same time."""
        if not self.together and model.training and self._number is not None:
            self._settle(model, self._number[1] + 1)

    def _settle(self, model: nn.Module, number: int) -> None:
        """Measure the error of a step before this one, if it is due, and correct the plans by it."""
        measuring = self.measuring
        if measuring is None or not measuring.waits(number):
            return
        with self.users.alone(), self._lock.held, progress(f"Measuring {get_class(model).__name__}"):
            if measuring.waits(number):
                measuring.settle(model, self.together)

    def _count(self, model: nn.Module, step: int) -> int | None:
        """Return the number of a training step for measuring; ``None`` if it is not measured.

        If ranks measure together, only forwards count in which they meet, so that all have the same number. A forward
        that runs a second time has its number already.
        """
        if self._number is not None and self._number[0] == step:
            return self._number[1]
        if not self.together:
            number = step
        elif ranks_can_meet(model):
            number = self.met = self.met + 1
        else:
            return None
        self._number = step, number
        return number

    @property
    def rounds(self) -> bool:
        """Whether plans may round although the level does not."""
        if self.codec is not None and not isinstance(inner(self.codec), Raw):
            return True
        return bool(self.bounds.error)

    def following(
        self,
        model: nn.Module,
        level: Level,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bits: BitPlan | None = None,
        compiled: bool = False,
        double: DoubleBackward | None = None,
        any_path: bool = False,
        step: int | None = None,
    ) -> PlanExecutor | None:
        """Return the ``PlanExecutor`` for a forward with these inputs. Return ``None`` if there is no backward to plan
        for, or if the model has a plan already and none can be made for these inputs.

        If an adaptive level has given its tensors other bits than the plan was made for, a new plan is made.

        Args:
            model: the model whose forward it is.
            level: the model's level.
            args, kwargs: the forward's.
            bits: the bits of an adaptive level's tensors, from its last measurement.
            compiled: whether torch compiles the forward.
            double: records backwards with ``create_graph=True``; ``None`` if nothing does.
            any_path: whether the plan's error has to be within the bound on every path of the forward.
            step: the forward's number; ``None`` if it is not a step of the training.

        Raises:
            ValueError: the model has no plan yet, and none can be made, or none keeps to the bounds. The message names
                the obstacle or the lowest possible bound. The next forward plans again. Or with the forwards in flight,
                this one would exceed the memory.
            Exception: the model itself raises it with these inputs.
        """
        self._attempts.start()
        if self._is_due(bits):
            with self.users.alone(), self._lock.held, progress(f"Planning {get_class(model).__name__}"):
                if self._is_due(bits):  # only one thread plans
                    self.plans, self._bits = self._planned(model, level, args, kwargs, bits, compiled), bits
        plans = self.plans
        if plans is None:
            return None
        if self._joins:
            self._joins = False
            self.together = ranks_in_sync(model, f"{plans.first.model} within {plans.first.bounds}")
        number = None if self.measuring is None or step is None else self._count(model, step)
        if self.measuring is not None and number is not None:
            self._settle(model, number)
            self.measuring.require_measured(model)
            self.measuring.start(number, args, kwargs)
        trial = None
        if double is not None and self.may_become_exact:
            plans, trial = self._without_rounding(model, plans, level, None if compiled else double, args, kwargs)
        state = self.gradients.before_forward(model)
        certain = state != "accumulating" or self.gradients.accumulates
        try:
            followed = plans.plan_for(model, args, kwargs, self.users, state, any_path, certain)
        except BudgetError:
            if trial is None or self.plans is None:
                raise
            plans, trial = self.plans, None  # the trial is left to a step that fits
            followed = plans.plan_for(model, args, kwargs, self.users, state, any_path, certain)
        if followed is None:
            return None
        if step is not None:
            self._in_flight.start(plans, followed.of_state)
        self.first_steps.tell_of_excess()
        self.first_steps.start(model, followed.of_state)
        Conversions.follow(model, plans.followed.chunked, self.bounds.promises_memory)
        alone = level.off or (followed.plan.candidates is not None and followed.plan.level is None)
        return PlanExecutor(model, plans, followed, None if alone else level, compiled, self._keeps, trial)

    def may_take_less(self, plan: Plan) -> bool:
        """Return whether to plan for less memory if it runs out in a forward that follows this plan."""
        return not self.took_less and plan.memory is not None and self.first_steps.is_first(plan)

    @property
    def may_become_exact(self) -> bool:
        """Return whether the plans may round, and can be replaced with plans that do not."""
        plans = self.plans
        return plans is not None and self.codec is None and not plans.last.compressed and plans.last.error > 0

    def _without_rounding(
        self,
        model: nn.Module,
        plans: Plans,
        level: Level,
        double: DoubleBackward | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Plans, Kinds | None]:
        """Return the plans for a forward; and the kinds of its inputs if this forward is a trial, which rounds nothing.

        Without ``double`` nothing is tried, as where torch compiles the forward: no graph can be built of compiled
        code's backward, and another plan is another compilation.

        Raises:
            ValueError: gradients are differentiated, and no plan without rounding keeps to the bounds.
        """
        if self.differentiated:
            with self._lock.held:
                if plans is self.plans:
                    self.plans = self._unrounded.replacement(plans, level, self.bounds.falls_back)
                return self.plans or plans, None
        if double is None:
            return plans, None
        return self._unrounded.trial(model, plans, level, double, Signature.of(args, kwargs).kinds)

    def _is_due(self, bits: BitPlan | None) -> bool:
        """Whether there is no plan for these bits."""
        return self.plans is None or (bits is not self._bits and not isinstance(self.asked, Plan))

    def _planned(
        self,
        model: nn.Module,
        level: Level,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        bits: BitPlan | None,
        compiled: bool,
    ) -> Plans | None:
        """Return the plans from now on; ``None`` if there is no backward to plan for. In front of a model's first
        forward, ranks may come together: then rank 0 plans, and all follow its plan."""
        inputs, bounds = Signature.of(args, kwargs), self.bounds
        if compiled:  # code of torch.compile makes the logits
            bounds = replace(bounds, loss=FULL)
        if bounds.in_flight is None and (count := find_in_flight(model)) > 1:
            bounds = replace(bounds, in_flight=count)
        errors = ErrorModel(model, bounds.error) if bounds.error else None

        how = {"rating": rating_for(bounds), **ErrorModel.weighing(model, errors)}
        front = partial(planned, model, level, args, kwargs, bounds, bits=bits, **how)

        def better() -> Plan:
            with planning(model, args, kwargs):
                return with_better_loss(model, front, bounds)

        def made() -> Plan | None:
            plan = self._attempts.plan(model, inputs, better, first=self.plans is None)
            return None if plan is None else chosen(plan, bounds, errors)

        asks, self._asks = self._asks and self.plans is None, False
        together = asks and ranks_in_sync(model, f"{inputs.structure} {inputs} of {bounds} at {level}")
        free = None
        try:
            bounds, free = with_bytes(bounds, model, (args, kwargs), together)
            if together:
                answer = of_rank_0(lambda: Answer(made()))
                plan = answer.plan
                if plan is None or fingerprint(model) != plan.graph.fingerprint:
                    plan = None if answer.ours else made()
            else:
                plan = made()
        except ValueError as error:
            if self.plans is None:
                if free is not None:
                    error.add_note(f"memory={free}.")
                error.add_note(
                    "The model has no plan yet, and each training forward tries again to make one. To try other "
                    "bounds, call integrations.restore_model(model) first, then compress_model."
                )
                raise
            return self.plans  # the level's average was within the bounds, and other bits have the same one
        if plan is None:
            return self.plans
        falls_back = bounds.falls_back
        self.measuring = None if errors is None else Remeasuring(errors, falls_back=falls_back)
        self.together = together
        return Fronts(plan, level, errors, bits, asked=bounds)

    @property
    def bounds(self) -> Bounds:
        """The bounds that were asked for."""
        return asked_bounds(self.asked)

    def note_returned(self) -> None:
        """Notes that the forward has returned for which this thread last called ``following``."""
        self._attempts.returned()
        if self.plans is not None:
            self.plans.note_returned()

    def observe_backward(self, model: nn.Module, result: Any) -> None:
        """Observe the backward of a forward that has returned ``result`` in this thread."""
        plans = self.plans
        as_planned = plans is not None and not plans.left and plans.inputs == plans.last.graph.inputs
        self._in_flight.after_forward(result)
        self.gradients.after_forward(model, result)
        self.first_steps.after_forward(model, result, as_planned)

    def in_words(self) -> str:
        """The plan that was followed last, as a report describes it."""
        return NO_PLAN if self.plans is None else describe_plan(self.plans, self.measuring, self.codec)

    def exceptions(self, model: nn.Module, rows: Sequence[Row]) -> str:
        """How forwards differed from the plan, in words; empty if they did not. ``rows`` are the report's."""
        return "" if self.plans is None else describe_exceptions(self.plans, self._in_flight.unplanned, model, rows)

    def title(self) -> str:
        """What was asked for, as a report describes it."""
        return planning_for(self.asked)
