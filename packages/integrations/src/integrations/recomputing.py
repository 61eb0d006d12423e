"""``Recomputing``: a compressed model's plan of what backward makes again, as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from integrations.checkpoint.graphs.fingerprint import fingerprint
from integrations.checkpoint.graphs.sharding import class_of
from integrations.checkpoint.graphs.signature import Signature
from integrations.checkpoint.planning.attempts import Attempts
from integrations.checkpoint.planning.budget import bytes_of
from integrations.checkpoint.planning.plan import Plan
from integrations.checkpoint.planning.plans import Plans
from integrations.levels import Level
from integrations.locking import OwnLock
from integrations.plan_forward import Following
from integrations.planning import planned

Asked = str | int | float | Plan
OPTIMAL = "optimal"
NOT_COMPILED = (
    "a forward that torch compiles follows no plan of what backward makes again, and is compressed alone; leave out "
    "checkpoint, or do not compile the model"
)


def recomputing_for(model: nn.Module, level: Level, asked: Asked) -> Recomputing:
    """What backward makes again in a model at a level.

    Raises:
        TypeError: ``asked`` has the wrong type.
        ValueError: it is no budget, or a plan of another model; or the level is one that nothing can be made again at.
    """
    require_asked(asked)
    require_fixed(level)
    if isinstance(asked, Plan):
        require_of(asked, model)
    return Recomputing(asked, level)


def require_fixed(level: Level) -> None:
    """Refuses levels at which nothing can be made again.

    Raises:
        ValueError: it is one.
    """
    if level.off:
        raise ValueError(
            "checkpoint must be None at a level that is off, which stores nothing in another way; "
            "integrations.checkpoint.apply(model, plan) makes tensors again without compression"
        )
    if level.adaptive and level.bits is not None:
        raise ValueError(
            "checkpoint must be None at an adaptive level, which measures each tensor as the forward stores it, and "
            "what backward makes again is stored by nobody then; take a level of fixed bits, such as 'L1'"
        )


def require_asked(asked: object) -> None:
    """Refuses what ``compress_model`` does not know as its ``checkpoint``.

    Raises:
        TypeError: it has the wrong type.
        ValueError: it is no budget.
    """
    if asked == OPTIMAL or isinstance(asked, Plan):
        return
    if isinstance(asked, bool) or not isinstance(asked, (str, int, float)):
        raise TypeError(
            "checkpoint must be 'optimal', a Plan of integrations.checkpoint.plan, or a budget: bytes as an int, a "
            f"string such as '4GiB', or a fraction of the plain step's peak; got {asked!r}"
        )
    try:
        bytes_of(asked, 1)
    except ValueError as error:
        raise ValueError(f"checkpoint must be 'optimal', a Plan or a budget, and as such: {error}") from None


class Recomputing:
    """What backward makes again in a compressed model, as it was asked for.

    Attributes:
        asked: ``"optimal"``, a budget, or a plan.
        plans: ``None`` before the first forward that is planned for.
    """

    def __init__(self, asked: Asked, level: Level) -> None:
        self.asked = asked
        self.plans: Plans | None = None
        self._attempts = Attempts()
        self._lock = OwnLock()
        if isinstance(asked, Plan):
            self.plans = _LevelPlans(asked, level) if asked.compressed else Plans(asked, "replan")

    @property
    def plan(self) -> Plan | None:
        """The one that was followed last; ``None`` before the first."""
        return None if self.plans is None else self.plans.followed

    def following(
        self, model: nn.Module, level: Level, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Following | None:
        """What has a forward with these inputs follow the plan for them; ``None`` where no plan can be made of it.

        Raises:
            ValueError: the budget cannot be met; the message names the least that can.
        """
        self._attempts.start()
        with self._lock:  # of two threads one plans
            if self.plans is None:
                assert not isinstance(self.asked, Plan)
                inputs = Signature.of(args, kwargs)
                plan = self._attempts.plan(model, inputs, lambda: planned(model, level, args, kwargs))
                if plan is None:
                    return None
                self.plans = _LevelPlans(plan if self.asked == OPTIMAL else plan.within(self.asked), level)
        followed = self.plans.plan_for(model, args, kwargs)
        return None if followed is None else Following(model, self.plans, followed, level.rounds_checkpoints)

    def note_returned(self) -> None:
        """The forward that ``following`` was asked for in this thread has returned."""
        self._attempts.returned()
        if self.plans is not None:
            self.plans.note_returned()

    def in_words(self) -> str:
        """The plan that was followed last, for a report."""
        plan = self.plan
        if plan is None:
            return "No plan yet of what backward makes again"
        count = len(plan.segments)
        return f"Backward makes again what {count} segment{'' if count == 1 else 's'} of the forward made"

    def state(self) -> dict[str, Any]:
        """Plain values only."""
        given = isinstance(self.asked, Plan)
        plan = None if self.plans is None else self.plans.last
        return {"asked": None if given else self.asked, "plan": None if plan is None else plan.to_json()}

    @staticmethod
    def of(state: Mapping[str, Any], model: nn.Module, level: Level) -> Recomputing:
        """The one that ``state`` is of.

        Raises:
            ValueError: it has another form, or a plan of another model.
        """
        if not isinstance(state, Mapping) or set(state) != {"asked", "plan"}:
            raise ValueError(f"the state's checkpoint must be what state_dict returned, got {state!r:.80}")
        plan = None if state["plan"] is None else Plan.from_json(state["plan"])
        if plan is not None:
            require_of(plan, model)
        asked: Any = plan if state["asked"] is None else state["asked"]
        found = recomputing_for(model, level, asked)
        if plan is not None and found.plans is None:
            found.plans = _LevelPlans(plan, level)
        return found


def require_of(plan: Plan, model: nn.Module) -> None:
    """Refuses a plan of another model.

    Raises:
        ValueError: it is.
    """
    if fingerprint(model) != plan.graph.fingerprint:
        raise ValueError(
            f"checkpoint must be a plan of this model: it was made for a {plan.model} whose modules or parameters' "
            f"shapes differ from those of this {class_of(model).__name__}; checkpoint='optimal' makes one"
        )


class _LevelPlans(Plans):
    """Plans that know how what is kept is stored."""

    def __init__(self, plan: Plan, level: Level) -> None:
        super().__init__(plan, "replan")
        self._level = level

    def _planned(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], real: bool) -> Plan:
        first = self._first
        return planned(
            model, self._level, args, kwargs, real=real, loss=first.loss, holds_outputs=first.graph.holds_outputs
        )
