"""``within_error``: a plan whose measured error is within the bound that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from integrations.adaptive.one_step import Unmeasured
from integrations.adaptive.weights import KNOWN_LOSS
from integrations.common.warn import warn
from integrations.planning.choice import Choice
from integrations.planning.menus import Menus, Option
from integrations.planning.noted import note_accumulating
from integrations.planning.plan import Plan
from integrations.planning.search import solved_again

Measure = Callable[[Plan], float]
"""The relative error of the gradient under a plan; raises ``Unmeasured`` where that cannot be found out."""

_MOST = 2  # plans that are solved anew
_ABOVE = 1.1  # times the error that was found, what the next plan is predicted to have
_USUAL = 1.9  # times the variance that is predicted, what rounding in bits has at most, as far as it was seen
_NOTICED = 0.05  # of the variance, the part of derivatives in few bits that may be to blame
_HELD = 0.85  # of the bound; a plan that is predicted to be above that was held back by it
_UNSEEN = 0.8  # of the bound, what a plan may have that goes by another's measurement: one has had 1.2 times as much
_LOW = 0.6  # of the bound; below that, a plan that was held back by the bound may be made smaller or faster


def within_error(plan: Plan, measure: Measure, *, part: float = 1.0) -> Plan:
    """The plan with its measured error; or another for what it was asked for, with weights that fit the measurement.

    Where the measured error is above its part of the bound, weights are corrected by what was measured over what was
    predicted, and the plan is solved again, at most twice. So it is where the measured error is much less and the bound
    has held the plan back. If none measures its part, the one that measures least below ``KNOWN_LOSS``'s share of it
    stays: its error is within the bound, and another draw of noise may be above.

    The plan for gradients that are there already is another, of the same weights: these are corrected where its error
    is above the bound, too. One that there is no room to measure goes by what the plan of the least memory measures,
    which has the same weights.

    Args:
        plan: for an error, a memory, a time.
        measure: measures one.
        part: of the bound, what may be measured, since another step draws other noise, and may have another loss.

    Raises:
        ValueError: with such weights, nothing fits what was asked for.
    """
    return _within_where_gradients_are(_within(plan, measure, part), measure, part)


def _within(plan: Plan, measure: Measure, part: float) -> Plan:
    """The same, of steps that find no gradients."""
    good: Plan | None = None
    spare: Plan | None = None  # that stays if no other measures less
    bound, least = part * plan.error, _at_most(plan, part)
    for left in range(_MOST, -1, -1):
        if not plan.choice.rounds:
            return plan
        found, why = _measured(plan, measure)
        if math.isnan(found):
            if good is None and spare is None and (factor := _factor_of_least(plan, measure, part)) > 1:
                plan = _solved(plan, factor, factor)
            return good or spare or replace(plan, unmeasured=why)
        if found <= bound:
            held_back = plan.choice.error > _HELD * plan.error
            good = plan = replace(_no_less(plan, (found / part) ** 2), measured=found)
            if not left or found > _LOW * bound or not held_back:
                return plan
        elif good is not None:
            return good
        elif found <= least:
            spare, least = replace(plan, measured=found), found
        if not left:
            break
        try:
            other = _reweighted(plan, (_ABOVE * max(found, bound / 100) / part) ** 2)
        except ValueError:
            if good is None and spare is None:
                raise
            break
        if good is not None and _waits_alike(other, good):
            break
        plan = other
    return good or spare or _told(plan, found)


def _within_where_gradients_are(plan: Plan, measure: Measure, part: float) -> Plan:
    """The plan, whose own choice stays if it was measured, with weights by which its ``accumulating`` has an error
    within the bound."""
    spare: Plan | None = None  # that stays if no other's measures less
    least = _at_most(plan, part)
    for left in range(_MOST, -1, -1):
        other = plan.accumulating
        if spare is not None and spare.accumulating.is_bounded and not other.is_bounded:
            return spare
        if other is plan or not other.choice.rounds:
            return plan
        found, why = _measured(other, measure)
        if why:
            return spare or _with_unmeasured(plan, why, _factor_of_least(other, measure, part))
        if found <= least:
            note_accumulating(plan, replace(other, measured=found))
            if found <= part * plan.error:
                return plan
            spare, least = plan, found
        if not left:
            break
        if not other.choice.variance:  # by weights that no factor corrects
            note_accumulating(plan, _exact_or_told(other, found))
            return plan
        try:
            plan = _heavier(plan, (_ABOVE * found / part) ** 2 / other.choice.variance)
        except ValueError:
            if spare is None:
                raise
            break
    if spare is None:
        note_accumulating(plan, _told(other, found))
    return spare or plan


def _at_most(plan: Plan, part: float) -> float:
    """What a plan may measure where no other measures its part: as much as leaves nothing for the noise that another
    step draws."""
    return min(1.0, part / KNOWN_LOSS) * plan.error


def _heavier(plan: Plan, factor: float) -> Plan:
    """The plan with weights that are so many times its own; solved anew, too, where it was not measured by itself."""
    if not plan.unmeasured:
        return _corrected(plan, factor)
    return replace(_solved(plan, factor, factor), unmeasured=plan.unmeasured)


def _with_unmeasured(plan: Plan, why: str, factor: float) -> Plan:
    """The plan with an ``accumulating`` that could not be measured, by weights that are so many times its own if that
    makes them more."""
    plan = _heavier(plan, factor) if factor > 1 else plan
    note_accumulating(plan, replace(plan.accumulating, measured=None, unmeasured=why))
    return plan


def _exact_or_told(plan: Plan, found: float) -> Plan:
    """The plan that rounds nothing; where none fits, this one, of which it is said what it measures."""
    try:
        return plan.within(plan.memory, plan.time, 0.0)
    except ValueError:
        return _told(plan, found)


def _told(plan: Plan, found: float) -> Plan:
    """The plan with what it measures, of which it is said where that is above what was asked for."""
    if found > plan.error:
        state = "" if plan.graph.standing else ", where gradients are there already,"
        warn(
            f"the gradient's relative error under the plan of {plan.model}{state} measures {found:.3g}, above "
            f"error={plan.error}, after {_MOST} plans that were to lower it; ask for a lower error, or for error=0"
        )
    return replace(plan, measured=found)


def _measured(plan: Plan, measure: Measure) -> tuple[float, str]:
    """The error; or NaN, and why there is none."""
    try:
        found = measure(plan)
        return (found, "") if math.isfinite(found) else (math.nan, "the gradient of the step aside is not finite")
    except Unmeasured as error:
        return math.nan, str(error)
    except (RuntimeError, MemoryError) as error:  # such as for want of memory, which the step itself may have
        return math.nan, f"{type(error).__name__}: {error}"


def _reweighted(plan: Plan, variance: float) -> Plan:
    """A plan for what this one was asked for, with weights by which this one would have had that variance.

    What a derivative in few bits does depends on how its inputs are spread, which is not known ahead: where a part of
    the variance comes of such, what is more than rounding in bits is off by does, too.
    """
    predicted, of_slopes = plan.choice.variance, _variance_of_slopes(plan)
    if not predicted:  # by weights that no factor corrects
        return plan.within(plan.memory, plan.time, 0.0)
    factor = slopes = variance / predicted
    if of_slopes > _NOTICED * predicted and factor > _USUAL:
        factor = _USUAL
        slopes = (variance - factor * (predicted - of_slopes)) / of_slopes
    return _solved(plan, factor, slopes)


def _solved(plan: Plan, factor: float, slopes: float) -> Plan:
    """A plan for what this one was asked for, with weights that are so many times this one's."""
    made = solved_again(plan, _times(plan.menus, factor, slopes), _times(plan.rounded_menus, factor, slopes))
    return made.within(plan.memory, plan.time) if plan.is_bounded else made


def _factor_of_least(plan: Plan, measure: Measure, part: float) -> float:
    """How many times the variance that is predicted the plan of the least memory has, beside which there may be room to
    measure it; 0 where that tells nothing."""
    least = plan.choosing(plan.front[0], plan.bounds)
    if not least.choice.rounds or not least.choice.variance or least.choice == plan.choice:
        return 0.0
    found, why = _measured(least, measure)
    return 0.0 if why else (_ABOVE * found / part / _UNSEEN) ** 2 / least.choice.variance


def _no_less(plan: Plan, variance: float) -> Plan:
    """A plan that is predicted to have no less than that variance: so what is planned from the same menus later, as for
    gradients that are there already, has the correction, too."""
    predicted = plan.choice.variance
    if not 0 < predicted < variance:
        return plan
    return _corrected(plan, variance / predicted)


def _corrected(plan: Plan, factor: float) -> Plan:
    """The same choices with so many times the variance."""

    def corrected(choice: Choice) -> Choice:
        return replace(choice, variance=factor * choice.variance)

    front = [corrected(choice) for choice in plan.front]
    return replace(
        plan,
        choice=corrected(plan.choice),
        front=tuple(choice for choice in front if not choice.rounds or choice.error <= plan.error),
        menus=_times(plan.menus, factor, factor),
        rounded_menus=_times(plan.rounded_menus, factor, factor),
    )


def _waits_alike(one: Plan, other: Plan) -> bool:
    """Whether all values wait in the same way."""
    return replace(one.choice, variance=0.0, seconds_bound=0.0) == replace(
        other.choice, variance=0.0, seconds_bound=0.0
    )


def _variance_of_slopes(plan: Plan) -> float:
    """That of values of which derivatives wait in few bits."""
    menus = plan.menus_of(plan.choice)
    found = [(value, store) for value, store in plan.choice.stores if store is not None and store.slope_bits]
    return sum(menus.weights[value] * menus.option(value, store).noise for value, store in found)


def _times(menus: Menus | None, factor: float, slopes: float) -> Menus | None:
    """Menus whose weights are multiplied by one factor, but for derivatives in few bits, which are by another."""
    if menus is None:
        return None
    found = menus.weighted(tuple(factor * weight for weight in menus.weights))
    if slopes == factor:
        return found

    def noisier(option: Option) -> Option:
        rounds = option.store is None or option.store.slope_bits is None
        return option if rounds else replace(option, noise=option.noise * slopes / factor)

    rows = {row: tuple(map(noisier, row)) for row in dict.fromkeys(menus.options)}
    return replace(found, options=tuple(rows[row] for row in menus.options))
