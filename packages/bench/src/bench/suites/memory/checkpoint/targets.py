"""What is asked of checkpointing, and what was found."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from bench.models.architectures import ARCHITECTURES, Published
from bench.results.record import Record
from bench.suites.memory.checkpoint.results import Peak, Planned, StepTimes
from bench.suites.memory.checkpoint.results import cut as cut_of
from bench.suites.memory.checkpoint.sizes import small
from bench.units import MIB
from bench.ways.checkpoints import LEAST, LEAST_MASKS

AGREEMENT = 0.05  # by which part of the planned peak the measured one may differ from it

PAPER_CUTS: Mapping[str, float] = MappingProxyType(
    {
        "resnet18": 0.64,
        "resnet50": 0.76,
        "resnet101": 0.81,
        "resnet152": 0.84,
        "densenet121": 0.82,
        "inception_v3": 0.77,
    }
)
"""What the original predicts, by its own accounting of its own graph."""

CAPTURE: Mapping[str, float] = MappingProxyType({"resnet50": 5.0, "resnet152": 8.0})  # seconds, at most
SEARCH: Mapping[str, float] = MappingProxyType(
    {"resnet50": 0.2, "resnet152": 0.5, "densenet121": 1.0, "densenet201": 3.0, "nasnet": 3.0}
)

JUDGED = "resnet50"
OVERHEAD = 0.30  # of JUDGED at the published cut, at most
HALF_CUT, HALF_TIME = 0.60, 1.35  # of JUDGED at its small size


@dataclass(frozen=True)
class Target:
    """A number to reach.

    Attributes:
        what: it is.
        asked: the number.
        found: what was found; empty if it was not measured.
        reached: whether it is reached; ``None`` if it was not measured.
    """

    what: str
    asked: str
    found: str = ""
    reached: bool | None = None


def targets(record: Record) -> Iterator[Target]:
    """Everything that is asked for."""
    for model, least in PAPER_CUTS.items():
        plan = at_own_size(record, model)
        cut = None if plan is None else plan.paper_cut
        yield _at_least(f"predicted cut, the paper's accounting, {model}", least, cut)
    for what, limits in (("capture", CAPTURE), ("search", SEARCH)):
        for model, most in limits.items():
            plan = at_own_size(record, model)
            yield _seconds(f"{what}, {model}", most, None if plan is None else getattr(plan, f"{what}_seconds"))
    yield _agreement(record)
    yield from _judged(record)
    yield from _published(record)
    yield Target("small random graphs beside every choice", "1.00 to 1.05 times", "actcore's tests: every graph")


def left(published: Published) -> float:
    """The part of the plain peak that its cut leaves: rounded down, to the percent."""
    return math.floor(100 * (1 - published.cut)) / 100


def at_own_size(record: Record, model: str) -> Planned | None:
    """What was planned for a model at its table's own size."""
    architecture = ARCHITECTURES[model]
    plan = record.find(Planned, model=model, batch=architecture.batch, size=architecture.size)
    return plan if plan is not None and not plan.failure else None


def within(peak: Peak) -> bool | None:
    """Whether the measured peak is the planned one, within ``AGREEMENT``; ``None`` where one is unknown."""
    return None if peak.agreement is None else abs(peak.agreement - 1) <= AGREEMENT


def published_cut(record: Record, peak: Peak) -> bool | None:
    """Whether the least measured peak saves what was published; ``None`` where nothing was, for that size.

    A batch that is smaller than the table's, because that one does not fit, is judged too.
    """
    architecture = ARCHITECTURES.get(peak.model)
    cut = cut_of(record, peak)
    if architecture is None or architecture.published is None or cut is None or peak.way not in (LEAST, LEAST_MASKS):
        return None
    if peak.size != architecture.size or (peak.batch, peak.size) == small(architecture):
        return None
    return cut >= architecture.published.cut


def steps_of_ours(record: Record, model: str, batch: int, size: int) -> list[Peak]:
    """Measured peaks of a model's plans within rising budgets, the least first."""
    ways = record.of(Peak, model=model, batch=batch, size=size)
    found = [peak for peak in ways if peak.way.startswith("ours, ") and peak.peak_bytes is not None]
    return sorted(found, key=lambda peak: peak.planned_bytes or 0)


def quickest(record: Record, model: str, batch: int, size: int, cut: float) -> tuple[StepTimes, float] | None:
    """The plan that takes the least time of those whose measured peak is so much below the plain one, and its cut."""
    found = []
    for peak in steps_of_ours(record, model, batch, size):
        time, reached = record.find(StepTimes, model=model, way=peak.way, batch=batch, size=size), cut_of(record, peak)
        if time is not None and not time.failure and reached is not None and reached >= cut:
            found.append((time, reached))
    return min(found, key=lambda pair: pair[0].times_plain, default=None)


def _at_least(what: str, least: float, found: float | None) -> Target:
    if found is None:
        return Target(what, f"{least:.0%}")
    # The original's numbers are rounded to percents.
    return Target(what, f"{least:.0%}", f"{found:.1%}", round(found, 2) >= least)


def _seconds(what: str, most: float, found: float | None) -> Target:
    if found is None:
        return Target(what, f"{most:g} s")
    return Target(what, f"{most:g} s", f"{found:.2f} s", found <= most)


def _agreement(record: Record) -> Target:
    what, asked = "measured peak over planned peak, every model", f"within {AGREEMENT:.0%}"
    judged = [peak for peak in record.of(Peak) if peak.agreement is not None]
    if not judged:
        return Target(what, asked)
    worst = max(judged, key=lambda peak: abs((peak.agreement or 1) - 1))
    inside = sum(within(peak) is True for peak in judged)
    found = f"{inside} of {len(judged)}; worst {worst.agreement:.3f}, {worst.model}, {worst.way}, batch {worst.batch}"
    return Target(what, asked, found, inside == len(judged))


def _judged(record: Record) -> Iterator[Target]:
    """What is asked of ``JUDGED`` at its small size."""
    architecture = ARCHITECTURES[JUDGED]
    batch, size = small(architecture)
    where = f"{JUDGED}, {batch} x 3 x {size} x {size}"
    assert architecture.published is not None
    for what, cut, most in (
        ("step time at the published cut", architecture.published.cut, 1 + OVERHEAD),
        ("step time at a high cut", HALF_CUT, HALF_TIME),
    ):
        found = quickest(record, JUDGED, batch, size, cut)
        what, asked = f"{what}, {where}", f"{most:.2f} times at {cut:.0%}"
        if found is None:
            yield Target(what, asked)
        else:
            time, reached = found
            yield Target(
                what, asked, f"{time.times_plain:.2f} times at {reached:.1%}, {time.way}", time.times_plain <= most
            )
    yield _monotone(steps_of_ours(record, JUDGED, batch, size), where)


def _monotone(peaks: Sequence[Peak], where: str) -> Target:
    what, asked = f"measured peak in the budget, {where}", "monotone"
    if len(peaks) < 2:
        return Target(what, asked)
    shown = [f"{(peak.peak_bytes or 0) / MIB:.1f}" for peak in peaks]
    found = f"{' '.join(shown)} MiB"
    return Target(what, asked, found, shown == sorted(shown, key=float))


def _published(record: Record) -> Iterator[Target]:
    what, asked = "measured cut of the least peak, each model", "the published one"
    judged = [(peak.model, peak.way, published_cut(record, peak)) for peak in record.of(Peak)]
    reached = list(dict.fromkeys(model for model, _, one in judged if one))
    missed = list(dict.fromkeys(model for model, _, one in judged if one is False and model not in reached))
    with_masks = [model for model, way, one in judged if one and way == LEAST_MASKS]
    if not reached and not missed:
        yield Target(what, asked)
        return
    found = f"{len(reached)} of {len(reached) + len(missed)}" + (f"; not {', '.join(missed)}" if missed else "")
    if with_masks:
        found += f"; {', '.join(with_masks)} with ReLUs that keep one bit"
    yield Target(what, asked, found, not missed)
