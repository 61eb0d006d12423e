"""``Compression``: a model's live handle. It measures, monitors, reports, and saves its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from integrations._utils.running_module import NOTHING_TRAINS, trains
from integrations.api.handle import first_steps
from integrations.api.handle.closures import NothingCompressed, require_closure, require_compressed
from integrations.api.handle.first_steps import find_device
from integrations.api.handle.forward_runner import ForwardRunner
from integrations.api.handle.gradient_error import GradientError, measure_error
from integrations.api.handle.handle_state import HandleState, key_for
from integrations.api.handle.module_conversion import Conversions
from integrations.api.handle.monitor import Monitor
from integrations.api.handle.plan_manager import PlanManager
from integrations.api.handle.saved_state import collect_state, take_over
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.planner.sensitivity.trial_run import trial
from integrations.policies.levels import Level
from integrations.report import Report, Row
from integrations.report.peak import estimated_peaks, gradient_bytes_by_module
from integrations.report.words import ESTIMATED, PLANNED
from integrations.runtime.compiled.joint_plans import JOINT, JointPlan
from integrations.runtime.timed import TimedSession


class Compression(ForwardRunner):
    """How one model's saved tensors are stored.

    ``compress_model`` and ``compress`` make it, and ``compression(model)`` returns it. A deep copy or an unpickled
    model has one of its own, with the same level and step and no shared state. A handle keeps its model alive.
    """

    PLACE = "_integrations_compression"

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        super().__init__(model, level_name, level, strict)
        self._key = key_for(self)

    # ---- the gradient's error ----

    @property
    def measured(self) -> GradientError | None:
        """The gradient's error that was measured last, with its step: between two training steps, or by the
        monitor.

        ``None`` before the first measurement. A plan of ``error=`` is measured when its second training step starts,
        one of ``plan=`` when its twelfth does. A plan that rounds nothing is not measured. If a step could not be
        measured, the report says why. Levels are measured by the monitor alone.
        """
        found = None if self._plan_manager is None else self._plan_manager.measured
        error = None if found is None else GradientError(found[0], measured=True, step=found[1])
        monitor = self._monitor
        if monitor is None or monitor.error is None or not monitor.error.measured:
            return error
        newest = replace(monitor.error, step=monitor.checked)
        return newest if error is None or error.step is None or error.step <= monitor.checked else error

    def adapt(self, closure: Callable[[], Any], passes: int = 1) -> BitPlan:
        """Measure how much the rounding of each tensor changes the gradient, and choose the bits of each tensor.

        ::

            def closure():
                optimizer.zero_grad()
                criterion(model(x), y).backward()

            handle.adapt(closure)

        In a training loop this happens automatically, in the second step and every ``adapt_interval`` steps. The call
        restores the state of training: ``.grad``, buffers such as batch norm's statistics, the random generators of
        torch, NumPy and Python, the bits and noise of Q-layers, and this handle's step. It holds at most one more copy
        of the gradients.

        It also restores the state of other models that the closure runs, such as a GAN's discriminator: ``.grad`` of
        every leaf that the closure's calls get or its backward reaches, the buffers and the Q-layers' state of every
        module whose forward makes a call, and the steps of compressed models, which are neither measured nor monitored
        in the call. It does not restore the buffers of another model that torch compiles and that is not compressed,
        nor any other state: the closure's own counters, generators that it made, the position of a data loader.

        Args:
            closure: runs a forward of the model and its backward; it may call ``zero_grad``, but steps no optimizer.
            passes: the number of calls, 1 to 10. The result is their mean, which averages over dropout and data. A pass
                takes about as long as 8 to 14 ordinary steps.

        Returns:
            The plan, in force from the next forward on.

        Raises:
            TypeError: the closure cannot be called, or ``passes`` is not an int.
            ValueError: the level is not adaptive, or ``passes`` is out of range.
            RuntimeError: the model was restored; the closure steps an optimizer or changes a parameter, which is
                prevented; it runs no forward and backward of this model; nothing in it can be measured, as in a model
                that is compiled as a whole; its gradients are not finite; or the ranks quantize different tensors.
                Errors of the closure itself are raised unchanged.
        """
        require_closure(closure)
        require_compressed(self, "adapt")
        with self.trial_run():
            return self._adapter.adapt(self.level, self.step, self.model, closure, passes)

    def adapt_soon(self) -> None:
        """Makes a plan for bits that have changed: at once with the monitor's closure, otherwise from the next
        forward's backward."""
        if self._monitor is not None and self._monitor.closure is not None and not self.obstacle:
            self.adapt(self._monitor.closure)
        else:
            self._adapter.hasten(self.step)

    def gradient_error(self, closure: Callable[[], Any] | None = None) -> GradientError:
        """Return the relative error of the whole gradient that compression causes.

        Args:
            closure: as for ``adapt``. It is called twice with equal random generators, exactly and compressed, and the
                two gradients are compared. The state of training is restored as by ``adapt``. Without a closure, the
                result is the plan's prediction for the last measured step, marked as predicted; for a plan with
                ``error=``, the last measurement.

        Raises:
            TypeError: the closure cannot be called.
            ValueError: there is neither a closure nor a plan; the level is off, and no layer rounds; or there is no
                closure, and the plan was applied with ``codec=``, whose error it does not predict.
            RuntimeError: as for ``adapt``.
        """
        if closure is not None:
            return measure_error(self, closure)
        followed = None if self._plan_manager is None else self._plan_manager.plan
        if followed is not None and self.level.off:
            if self._plan_manager is not None and self._plan_manager.codec is not None:
                raise ValueError(
                    "closure must be given for a plan with codec=, because such a plan does not predict the error: "
                    "handle.gradient_error(closure)"
                )
            joint: JointPlan | None = followed.others.get(JOINT)
            error = followed.choice.error if joint is None else joint.error
            return self.measured or GradientError(error, measured=False)
        if self.bit_plan is None:
            raise ValueError(
                "closure must be given as long as no plan predicts the error: handle.gradient_error(closure)"
            )
        return GradientError(self.bit_plan.relative_error, measured=False)

    def monitor(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        every: int | None = 100,
        bound: float | None = 0.1,
        raise_bits: bool = False,
    ) -> None:
        """Check the gradient's error every ``every`` steps, and warn when it exceeds the bound.

        The report and ``last_error`` have the result. Among several ranks, the largest error counts. The report also
        names the first tensor that those steps save with a NaN or an infinity, whatever the bound.

        Args:
            closure: as for ``adapt``. It is called twice before every ``every``-th forward, outside of autocast; enter
                autocast in the closure if training does. Call the model itself in it, not a wrapper such as
                DistributedDataParallel. The state of training is restored as by ``adapt``. Without a closure, adaptive
                levels report the plan's prediction; a model that is compiled as a whole has none. Copies of the model
                and ``state_dict`` have the monitor without its closure.
            every: the number of steps between two checks; ``None`` ends monitoring.
            bound: the bound on the relative error, a fraction; ``None`` checks no error.
            raise_bits: whether an error above the bound raises the level's ``bits`` by one, up to 8.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a value is out of range; neither the level, a plan nor a layer rounds; or there is a bound, but
                neither a closure nor an adaptive level.
        """
        self._monitor = None if every is None else Monitor.asked(self, closure, every, bound, raise_bits)

    def _look_before_step(self) -> None:
        if self._monitor is not None:
            self._monitor.before_forward(self)

    @property
    def last_error(self) -> GradientError | None:
        """The error that the monitor found last; ``None`` before its first check, and without a monitor."""
        return None if self._monitor is None else self._monitor.error

    # ---- what the user asks ----

    def report(self, closure: Callable[[], Any] | None = None) -> Report:
        """Return a report of the tensors that the last compressed forward saved; in a block, of those saved so far.

        Args:
            closure: as for ``adapt``. It is called twice. The report is of the second call, and its rows have the time
                that storing and restoring each tensor took. The state of training is restored as by ``adapt``.

        Raises:
            TypeError: the closure cannot be called.
            ValueError: there is a closure, and the level is off.
            RuntimeError: as for ``adapt``.
        """
        timed = None if closure is None else _measure_times(self, closure)
        records, seconds = (self._records, {}) if timed is None else (timed.records, timed.seconds)
        rows = [Row.of(record, seconds.get(place)) for place, record in enumerate(records)]
        plan = self._adapter.in_words(self.level)
        monitor = "" if self._monitor is None else self._monitor.in_words(self.level, self.obstacle)
        level, title = self.level, self.title
        recomputed = "" if self._plan_manager is None else self._plan_manager.in_words()
        model = type(self.model).__name__
        exchanged = self._exchanged if self.closed else Conversions.told(self.model)
        return Report(
            title,
            rows,
            self.off,
            level.offload,
            plan,
            monitor,
            recomputed,
            model,
            exchanged=exchanged,
            note=self._note(rows),
            **_step_peaks(self.model, self._plan_manager, rows),
        )

    def _note(self, rows: Sequence[Row]) -> str:
        """What a report says before all else."""
        if not rows and not trains(self.model):
            return NOTHING_TRAINS
        return "" if self._plan_manager is None else self._plan_manager.exceptions(self.model, rows)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed run needs to round as this one would have, as tensors and plain values."""
        if self._plan_manager is not None and not self.running and not self.closed:
            self._plan_manager.settle(self.model)
        return collect_state(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the level, step, plan and monitor from another handle's ``state_dict``. The monitor keeps this handle's
        closure.

        Raises:
            TypeError: the state or its options are not a mapping.
            ValueError: the state has another version, lacks a key or has one too many, or names an unknown level or
                option; or its plan is of a model with other modules, or with parameters of other shapes.
        """
        take_over(self, state)

    def __repr__(self) -> str:
        plan = [] if self._plan_manager is None else [self._plan_manager.title()]
        level = [] if plan and self.level.off else [f"level={self.level_name!r}"]
        return f"Compression({', '.join((type(self.model).__name__, *level, *plan))}, step={self.step})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._key = key_for(self)


def _measure_times(handle: HandleState, closure: Callable[[], Any]) -> TimedSession:
    """Runs a closure twice, to warm up and to measure; the session of its last forward. See ``Compression.report``."""
    require_closure(closure)
    require_compressed(handle, "report")
    if handle.off:
        raise ValueError(
            f"level must be one that compresses, so that there is a time to measure, got {handle.level_name!r}; try "
            "level='L1'"
        )
    with handle.trial_run(), trial(handle.model) as met:
        closure()
        met.draw_again()
        forwards, handle._timed = handle.step, []
        try:
            closure()
            sessions = handle._timed
        finally:
            handle._timed = None
        if handle.step == forwards or not sessions:
            raise NothingCompressed(handle.model)
    return sessions[-1]


def _step_peaks(model: nn.Module, manager: PlanManager | None, rows: Sequence[Row]) -> dict[str, Any]:
    """Return the peaks of the last step as fields of a report: those of the plan that its forward followed. If it
    followed no plan, or left it, they are estimated from the rows.

    Args:
        model: the model.
        manager: its part that has a plan; ``None`` without one.
        rows: the rows of the last forward.
    """
    plans = None if manager is None else manager.plans
    if manager is None or plans is None or plans.left:
        original, peak = estimated_peaks(rows, gradient_bytes_by_module(model))
        note = "" if plans is None else " for the path of the last forward, which left its plan"
        return _fields(original, peak, ESTIMATED if rows else "", note)
    manager.first_steps.tell_of_excess()
    followed = plans.followed
    if plans.inputs != followed.graph.inputs:
        measured, note = 0, f" for larger inputs ({followed.graph.inputs})"
    else:
        measured, note = manager.first_steps.measured(followed), ""
        if not measured:
            device = find_device(model)
            where = "" if first_steps.read_counters(device) is not None else f" on the {device.type.upper()}"
            note = f"; not measured{where}"
    joint: JointPlan | None = followed.others.get(JOINT)
    peak = followed.peak if joint is None else joint.peak
    return _fields(followed.uncompressed_peak, peak, PLANNED, note, measured)


def _fields(original: int, peak: int, source: str, note: str, measured: int = 0) -> dict[str, Any]:
    return {
        "original_peak_bytes": original,
        "peak_bytes": peak,
        "peak_source": source,
        "peak_note": note,
        "measured_peak_bytes": measured,
    }
