"""``Tries``: each way to train, with the memory that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from integrations.estimate.fit.answer import Way
from integrations.estimate.fit.profile import Moment, Profile
from integrations.estimate.fit.profiles import PlanProfiles, Profiles
from integrations.estimate.fit.sharding import RankShare
from integrations.estimate.fit.static_memory import Standing
from integrations.estimate.forecast.checkpoints import make_code
from integrations.planner.accumulation import WITH_ROUNDING
from integrations.planner.bounds import USUAL_ERROR
from integrations.planner.budget import AUTO, LEAST, resolve_bytes
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes

WAYS = ("plain", "chunked", "recompute", "lean", "plan", "checkpoint")
"""The ways in the order in which they are preferred: exact ones first, but for checkpoints of whole blocks, which take
the most time. ``"recompute"`` and ``"plan"`` take a search each."""

PLANNED = "planned"
"""The kind of a way that follows a plan."""

PLANS = ("recompute", "plan")
"""The ways that search a plan."""

_COMPRESS = "integrations.compress_model(model, {})"
_CHUNKED = _COMPRESS.format('level="L0", loss="chunked"')
_HUNDREDTH = -(-(1 << 30) // 100)  # of a GiB, rounded up


class Tried(NamedTuple):
    """A way with the profile of its step, from which larger inputs are judged; ``None`` for a way that is none."""

    way: Way
    profile: Profile | None
    kind: str = "kept"
    chunked: bool = False


@dataclass(frozen=True)
class Room:
    """What a training may take, and what of that is taken whatever its step does.

    Attributes:
        available: bytes.
        standing: what is there all the time.
        inputs: bytes of the inputs of the training's step.
        share: what one of several ranks holds.
        fresh: whether each step makes its gradients, instead of adding to them.
        least: whether plans take the least memory, whatever is available.
        auto: whether what is available is the free memory, which ``compress_model(memory="auto")`` finds by itself.
    """

    available: int
    standing: Standing
    inputs: int
    share: RankShare
    fresh: bool
    least: bool = False
    auto: bool = False

    def peak(self, profile: Profile, inputs: int | None = None) -> tuple[Moment, int, bool]:
        """The highest moment of a training with such steps, all its bytes then, and whether it is in the optimizer's
        step. Other inputs than those of the training have ``inputs`` bytes."""
        standing, inputs = self.standing, self.inputs if inputs is None else inputs
        moment = self.share.peak(profile, self.fresh)
        step = standing.weights + standing.states + standing.gradients + standing.step + inputs
        total = standing.nbytes + moment.nbytes + inputs
        if step > total:
            return Moment(0, 0, standing.gradients, standing.step), step, True
        return moment, total, False

    def fits(self, profile: Profile, inputs: int) -> bool:
        """Whether a training with such steps fits."""
        return self.peak(profile, inputs)[1] <= self.available


class Tries:
    """Tries the ways of a training.

    Args:
        profiles: captures its steps.
        room: what it may take.
        error: the bound on the gradient's error of the way ``"plan"``.
        unplanned: why no plan is searched; empty if plans are.
    """

    def __init__(self, profiles: Profiles, room: Room, error: float, unplanned: str = "") -> None:
        self._profiles, self._room, self._error, self._unplanned = profiles, room, error, unplanned

    def all(self, names: Sequence[str] | None) -> Iterator[Tried]:
        """The ways by name, in the order of ``WAYS``. ``None``: all that there are; those that take a search only if
        nothing before them fits."""
        fits = False
        for name in WAYS:
            if names is not None and name not in names:
                continue
            if names is None and name in PLANS and fits and not self._unplanned:
                yield Tried(Way(name, "", note="not searched, since a way above fits"), None)
                continue
            tried = getattr(self, f"_{name}")()
            if tried is not None:
                fits = fits or tried.way.fits
                yield tried

    @property
    def _loss(self) -> str:
        return "" if self._profiles.unchunked else ', loss="chunked"'

    def _way(self, name: str, code: str, kind: str, chunked: bool, **more: object) -> Tried:
        profile = self._profiles.of(kind, chunked)
        return self._judged(name, code, profile, kind, chunked, **more)

    def _judged(self, name: str, code: str, profile: Profile, kind: str, chunked: bool, **more: object) -> Tried:
        moment, total, at_step = self._room.peak(profile)
        way = Way(
            name,
            code,
            peak=total,
            activations=moment.waiting,
            loss=moment.loss,
            gradients=moment.gradients,
            temporaries=moment.passing,
            gathered=moment.gathered,
            at_step=at_step,
            fits=total <= self._room.available,
            **more,  # type: ignore[arg-type]
        )
        return Tried(way, profile, kind, chunked)

    def _plain(self) -> Tried:
        return self._way("plain", "", "kept", False, time=1.0)

    def _chunked(self) -> Tried | None:
        if self._profiles.unchunked:
            return None
        return self._way("chunked", _CHUNKED, "kept", True)

    def _lean(self) -> Tried:
        code = _COMPRESS.format(f'level="lean"{self._loss}')
        note = "rounds to 4 to 6 bits; compression(model).gradient_error(closure) measures the gradient's error"
        chunked = not self._profiles.unchunked
        return self._way("lean", code, "lean", chunked, error=None, note=note)

    def _recompute(self) -> Tried:
        return self._planned("recompute", 0.0, "")

    def _plan(self) -> Tried:
        return self._planned("plan", self._error, f", error={self._error:g}")

    def _planned(self, name: str, error: float, words: str) -> Tried:
        if self._unplanned:
            return Tried(Way(name, "", error=error, note=self._unplanned), None)
        standing = self._room.standing
        left = self._room.available - standing.nbytes - standing.gradients - self._room.inputs
        if left <= 0 and not self._room.least:
            return Tried(Way(name, "", error=error, note="weights, gradients and states leave no room"), None)
        chunked = not self._profiles.unchunked
        sharded = self._room.share.fsdp > 1
        made = self._profiles.plan(error, chunked, sharded)
        rounding = made.others.pop(WITH_ROUNDING, None)
        front, profiles = (made if self._room.fresh else made.accumulating), PlanProfiles(made)
        memory, found = (LEAST, front.within(LEAST)) if self._room.least else self._within(profiles, front, left)
        code, note = "", ""
        if found is None:
            found, note = front, "the least memory that a plan was found for"
        else:
            asked = AUTO if self._room.auto and not sharded else memory  # "auto" counts nothing that FSDP2 gathers
            code = _COMPRESS.format(f'memory="{asked}"{words}{self._loss}')
            note = "" if rounding is None else self._with_rounding(rounding, memory, found)
        does = plan_in_words(found) if code else ""
        more = {"time": 1 + found.overhead, "error": error if found.choice.rounds else 0.0, "does": does, "note": note}
        return self._judged(name, code, profiles.of(found.choice), PLANNED, chunked, **more)

    def _within(self, profiles: PlanProfiles, front: Plan, left: int) -> tuple[str, Plan | None]:
        """Return the largest budget whose plan fits, and this plan; ``None`` if none fits.

        Budgets do not count what FSDP2 gathers, which depends on the plan: on when its peak is. The sharded model's
        plan counts shards of gradients, and this one whole gradients.

        Args:
            profiles: of the plan for steps that make the gradients.
            front: the plan for steps as they are here, with all that none other beats.
            left: the budget if FSDP2 gathers nothing.
        """
        least = front.front[0].peak
        while left >= least:
            memory = _budget_in_words(left)
            if resolve_bytes(memory, 0) < least:
                memory = f"{left}B"
            found = front.within(memory)
            profile = profiles.of(found.choice)
            _, total, at_step = self._room.peak(profile)
            if total <= self._room.available or at_step:  # no plan takes less in the optimizer's step
                counted = self._room.share.count_planned(profile, self._room.fresh)
                return (f"{counted}B" if counted > resolve_bytes(memory, 0) else memory), found
            left = found.peak - 1
        return "", None

    def _with_rounding(self, make: Callable[[], Plan], memory: str, exact: Plan) -> str:
        """Return what a plan that may round would take, in words."""
        front = make()
        front = front if self._room.fresh else front.accumulating
        try:
            found = front.within(memory)
        except ValueError:
            found = exact
        gains = []
        if found.overhead < exact.overhead or memory == LEAST:
            gains.append(f"{1 + found.overhead:.2f} of the time")
        if found.peak < exact.peak:
            gains.append(f"{format_bytes(exact.peak - found.peak)} less memory")
        return f"error={USUAL_ERROR} would allow {' and '.join(gains) or 'no less time'}, by estimate"

    def _checkpoint(self) -> Tried | None:
        if not self._profiles.checkpoints:
            return None
        chunked = not self._profiles.unchunked
        enable = make_code(self._profiles.training.model)
        code = f"{enable}; {_CHUNKED}" if chunked else enable
        tried = self._way("checkpoint", code, "checkpoint", chunked)
        kept = self._profiles.of("kept", chunked)
        assert tried.profile is not None
        return tried._replace(way=replace(tried.way, time=tried.profile.seconds / max(kept.seconds, 1e-12)))


def plan_in_words(plan: Plan) -> str:
    """Return what a plan does with the tensors that a forward saves, in words."""
    values, stores = plan.followed.values, dict(plan.choice.stores)
    recomputed = plan.schedule.recomputed
    done = {
        "recomputes": [value for value in recomputed if value not in stores],
        "offloads": [value for value, store in stores.items() if store.host],
        "stores exactly in fewer bits": [value for value, store in stores.items() if store.exact and not store.host],
        "rounds": [value for value, store in stores.items() if not store.exact and not store.host],
    }
    found = ((what, sum(values[value].nbytes for value in chosen)) for what, chosen in done.items())
    return ", ".join(f"{what} {format_bytes(count)}" for what, count in found if count) or "keeps everything"


def _budget_in_words(nbytes: int) -> str:
    """A number of bytes as a budget is written, not more than it is."""
    if nbytes >= 10 * _HUNDREDTH:
        return f"{nbytes // _HUNDREDTH / 100:.2f}GiB"
    return f"{nbytes >> 20}MiB" if nbytes >= 100 << 20 else f"{nbytes >> 10}KiB"
