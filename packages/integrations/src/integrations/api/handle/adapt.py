"""``Adapter``: the adaptive part of a handle. It decides when to measure, and makes plans of measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from actcore import in_cuda_graph
from integrations._utils.checked_json import of_type
from integrations._utils.locking import OwnLock
from integrations.api.handle.closures import NothingCompressed
from integrations.capture.graphs.sharding import distributed
from integrations.planner.sensitivity.bit_plan import BitPlan, plan_of
from integrations.planner.sensitivity.measurement import Measurement, compute_mean
from integrations.planner.sensitivity.probe import Probe
from integrations.planner.sensitivity.ranks import agreed, ranks_run_alike
from integrations.planner.sensitivity.trial_run import trial
from integrations.policies.levels import Level

MOST_PASSES = 10


def adapts(level: Level) -> bool:
    """Whether the level gives each tensor bits of its own."""
    return level.adaptive and level.bits is not None


_MOST = 1 << 61  # of a step's number in a state


class Adapter:
    """A model's plan, and the measurement under way.

    An unchanged training loop is measured in its second forward and then every ``adapt_interval`` steps; the plan holds
    from the next forward on. Several ranks agree on it when that forward starts. A measurement that fails, because a
    gradient overflows or nothing is quantised, is tried again after 1, 2, 4, ... steps.

    Args:
        blocks: whether a forward is a block, with its backward in it or after it.

    Attributes:
        obstacle: why the last forward that was to be measured could not be, in words; empty if it could.
    """

    def __init__(self, blocks: bool = False) -> None:
        self.blocks = blocks
        self.obstacle = ""
        self._plan: BitPlan | None = None
        self._probe: Probe | None = None
        self._found: tuple[int, Measurement] | None = None  # measured and not planned yet
        self._attempt: int | None = None  # the forward that was measured last, until its result is settled
        # The next forward to measure; how long to wait if it fails; both are the same on all ranks.
        self._next, self._wait = 1, 1
        self._trial: list[Probe] | None = None  # the probes of ``adapt``, while it runs
        self._lock = OwnLock()  # threads that start a forward each may find the same measurement over

    def plan(self, level: Level) -> BitPlan | None:
        """The plan in force; ``None`` before the first measurement, and for levels of fixed bits."""
        if level.bits is None or not level.adaptive:
            return None
        self._settle_alone(level)
        return self._plan

    def in_words(self, level: Level) -> str:
        """Lines of the report; none for levels of fixed bits."""
        if not level.adaptive:
            return ""
        plan = self.plan(level)
        if plan is None and self.obstacle:
            return f"No plan: {self.obstacle}."
        if plan is None:
            return (
                "No plan yet: the level's fixed bits apply until the second step is measured or "
                "handle.adapt(closure) runs."
            )
        return f"Bits by the plan that was made in step {plan.step}: {plan.prediction}. handle.plan has the reasons."

    @property
    def adapting(self) -> bool:
        """Whether ``adapt`` runs."""
        return self._trial is not None

    def hasten(self, step: int) -> None:
        """Lets the next forward be measured, from step ``step`` on."""
        self._next = min(self._next, step)

    def start_forward(
        self, level: Level, step: int, model: nn.Module | None = None
    ) -> tuple[BitPlan | None, Probe | None]:
        """What a forward uses: the plan, and a probe if it is to be measured.

        Args:
            level: how it stores.
            step: its number.
            model: whose forward it is; ``None`` for a block, which all ranks enter at the same time.
        """
        if level.bits is None or not level.adaptive:
            return None, None
        if self._trial is not None:
            probe = Probe(level.bits, level.seed, step, self.blocks)
            self._trial.append(probe)
            return self._plan, probe
        if in_cuda_graph():  # Python reads a measurement, and runs only once for a captured graph
            return self._plan, None
        with self._lock.held:
            if self._attempt is not None:
                self._collect()
                alone = distributed() and not (model is None or self.blocks or ranks_run_alike(model))
                self._settle(level, alone)
            if step >= self._next:
                self._probe, self._attempt = Probe(level.bits, level.seed, step, self.blocks), step
            return self._plan, self._probe

    def _collect(self) -> None:
        """Takes what the probe has found, if its backward is over."""
        probe = self._probe
        if probe is not None and probe.measurement is not None:
            self._probe = None
            if probe.measurement.finite and probe.measurement.tensors:
                self._found = probe.step, probe.measurement

    def _settle(self, level: Level, alone: bool = False) -> None:
        """Plans from what was found, on all ranks at once. A probe that has found nothing by now will find nothing.

        Args:
            level: how forwards store.
            alone: whether this rank plans by itself: another one, as of a pipeline, may not be in front of a forward.
        """
        assert level.bits is not None
        assert self._attempt is not None
        step, found = self._attempt, self._found
        self.forget()
        measurement = None if found is None else found[1]
        common = measurement if alone else agreed(measurement)
        if common is not None:
            self._accept(plan_of(common, level.bits, step), level)
        else:
            self._next, self._wait = step + self._wait, min(2 * self._wait, level.adapt_interval)

    def _settle_alone(self, level: Level) -> None:
        """Plans from what was found before the next forward starts, if there is one rank and the backward is over."""
        with self._lock.held:
            self._collect()
            if self._attempt is not None and self._probe is None and not distributed():
                self._settle(level)

    def _accept(self, plan: BitPlan, level: Level) -> None:
        self._plan, self._next, self._wait = plan, plan.step + level.adapt_interval, 1

    def forget(self) -> None:
        """Drops the measurement under way."""
        if self._probe is not None:
            self._probe.cancel()
        self._probe, self._found, self._attempt = None, None, None

    def adapt(self, level: Level, step: int, model: nn.Module, closure: Callable[[], Any], passes: int) -> BitPlan:
        """Measures with ``closure`` and plans. See ``Compression.adapt``."""
        if level.bits is None or not level.adaptive:
            raise ValueError("level must be adaptive to adapt, such as 'L2'; or give compress_model adaptive=True")
        if isinstance(passes, bool) or not isinstance(passes, int):
            raise TypeError(f"passes must be an int, got {passes!r}")
        if not 1 <= passes <= MOST_PASSES:
            raise ValueError(f"passes must be from 1 to {MOST_PASSES}, got {passes}; 1 is the default")
        with self._measuring() as probes:
            try:
                with trial(model):
                    for _ in range(passes):
                        closure()
            except BaseException as error:
                error.add_note(
                    "The closure of handle.adapt raised this error. The plan, gradients, buffers and random "
                    "generators are as they were before the call."
                )
                raise
            if not probes:
                raise NothingCompressed(model)
            found = [probe.measurement for probe in probes if probe.measurement is not None]
        found = [measurement for measurement in found if measurement.tensors]
        if not found:
            if self.obstacle and probes:
                raise RuntimeError(f"no plan was made, because nothing can be measured: {self.obstacle}")
            raise RuntimeError(
                "closure must run a forward of the compressed model and its backward, and the forward must quantize "
                "a tensor; nothing was measured, and the plan is unchanged"
            )
        finite = [measurement for measurement in found if measurement.finite]
        common = agreed(compute_mean(finite) if finite else None)
        if common is None:
            raise RuntimeError(
                "the closure's gradients must be finite, but were not; the plan is unchanged. With a GradScaler, "
                "call handle.adapt after it has found its scale"
            )
        plan = plan_of(common, level.bits, step)
        self._accept(plan, level)
        return plan

    @contextmanager
    def _measuring(self) -> Iterator[list[Probe]]:
        if self._trial is not None:
            raise RuntimeError("handle.adapt must not be called from its own closure")
        self.forget()
        self._trial = []
        try:
            yield self._trial
        finally:
            for probe in self._trial:
                probe.cancel()
            self._trial = None

    # ---- state ----

    def state(self, level: Level, model: nn.Module) -> dict[str, Any] | None:
        """The state as plain values; ``None`` for levels of fixed bits."""
        if not adapts(level):
            return None
        self._settle_alone(level)
        known = self._plan is not None or self._found is not None
        return {
            "plan": None if self._plan is None else self._plan.plain(),
            "found": None if self._found is None else {"step": self._found[0], **self._found[1].plain()},
            "attempt": self._attempt,
            "next": self._next,
            "wait": self._wait,
            "shapes": _get_shapes(model) if known else {},
        }

    def load(self, state: Mapping[str, Any] | None, model: nn.Module) -> None:
        """Takes over what ``state`` returned.

        Raises:
            ValueError: it has another form, or plans for modules that the model lacks, or has with parameters of other
                shapes.
        """
        fresh = Adapter(self.blocks)
        if state is not None:
            fresh._take(state, model)
        self.forget()
        self.__dict__.update(fresh.__dict__)

    def _take(self, state: Mapping[str, Any], model: nn.Module) -> None:
        try:
            plan, found = state["plan"], state["found"]
            self._attempt = of_type(int | None, state["attempt"], "attempt")
            self._next, self._wait = (of_type(int, state[name], name) for name in ("next", "wait"))
            # A sum of the two others is a next one, which a state has to hold again.
            if not (0 <= (self._attempt or 0) < _MOST and 0 <= self._wait < _MOST and 0 <= self._next < 2 * _MOST):
                raise ValueError(f"attempt, next and wait must be 0 or more and below {_MOST}")
            shapes = {str(name): tuple(shape) for name, shape in state.get("shapes", {}).items()}
            if found is not None:
                measured = {name: entry for name, entry in found.items() if name != "step"}
                self._found = of_type(int, found["step"], "step"), Measurement.of(measured)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"the state of an adaptive level must be what state_dict returned: {error}") from error
        if plan is not None:
            self._plan = BitPlan.of(plan)
            self._plan.require_modules((path for path, _ in model.named_modules()), type(model).__name__)
        _require_shapes(shapes, model)

    def __getstate__(self) -> dict[str, Any]:
        # A copy has the plan, and not the measurement under way.
        under_way = {} if self._probe is None else {"_attempt": None}
        return {**self.__dict__, "_probe": None, "_trial": None, **under_way}


def _get_shapes(model: nn.Module) -> dict[str, list[int]]:
    """The parameters' shapes as plain values. Lazy parameters without a shape are left out."""
    return {name: list(value.shape) for name, value in model.named_parameters() if not is_lazy(value)}


def _require_shapes(shapes: Mapping[str, tuple[int, ...]], model: nn.Module) -> None:
    """Raises if a parameter of the model has another shape than the one of that name had.

    Activations have other sizes for each batch, but the size of their rows follows from the parameters.
    """
    found = [(name, list(shape), shapes.get(name)) for name, shape in _get_shapes(model).items()]
    other = [(name, shape, list(was)) for name, shape, was in found if was is not None and shape != list(was)]
    if other:
        name, shape, was = other[0]
        raise ValueError(
            f"the plan must be of this model, but {name} of {type(model).__name__} has shape {shape}, and {was} in "
            f"the plan's model (parameters that differ: {len(other)}). Load the state into the model that it was "
            "saved from, or make a new plan: handle.adapt(closure)"
        )
