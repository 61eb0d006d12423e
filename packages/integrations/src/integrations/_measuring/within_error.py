"""``within_error``: a plan whose measured error is within the bound that was asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from integrations._adaptive.one_step import Unmeasured
from integrations._adaptive.weights import KNOWN_LOSS
from integrations._common.warn import warn
from integrations._planning.choice import Choice
from integrations._planning.menus import Menus, Option
from integrations._planning.noted import note_accumulating
from integrations._planning.plan import Plan
from integrations._planning.search import solved_again

Measure = Callable[[Plan], float]
"""A function that returns the gradient's relative error under a plan, and raises ``Unmeasured`` if it cannot be found
out."""

_MOST = 2  # how many plans are solved anew
_ABOVE = 1.1  # the next plan's predicted error is the measured one times this, at most
_USUAL = 1.9  # rounding in bits has at most this times its predicted variance, as far as was seen
_NOTICED = 0.05  # the part of the variance from which on derivatives in few bits may be to blame
_HELD = 0.85  # a plan that is predicted above this part of the bound was held back by it
_UNSEEN = 0.8  # the part of the bound for a plan that relies on another's measurement: one had 1.2 times as much
_LOW = 0.6  # below this part of the bound, a plan that was held back by the bound may be made smaller or faster


def within_error(plan: Plan, measure: Measure, *, part: float = 1.0) -> Plan:
    """The plan with its measured error; or another plan for the same bounds, with weights that fit the measurement.

    If the measured error is above its part of the bound, the weights are corrected by the ratio of measured to
    predicted, and the plan is solved again, at most twice. The same happens if the measured error is much less and the
    bound has held the plan back. If no plan measures its part, the one that measures least below ``KNOWN_LOSS``'s share
    of it stays: its error is within the bound, though another draw of noise may be above.

    The plan for gradients that exist already is another one, with the same weights, which are corrected if its error is
    above the bound, too. If there is no room to measure it, it relies on the measurement of the plan of the least
    memory.

    Args:
        plan: for an error, a memory, a time.
        measure: measures a plan.
        part: the part of the bound that may be measured, since another step draws other noise, and may have another
            loss.

    Raises:
        ValueError: with corrected weights, nothing fits the bounds.
    """
    return _within_where_gradients_are(_within(plan, measure, part), measure, part)


def _within(plan: Plan, measure: Measure, part: float) -> Plan:
    """``within_error`` for steps that find no gradients."""
    good: Plan | None = None
    spare: Plan | None = None  # it stays if no other plan measures less
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
    """The plan with weights by which its ``accumulating`` has an error within the bound. The plan's own choice stays if
    it was measured."""
    spare: Plan | None = None  # it stays if no other's ``accumulating`` measures less
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
        if not other.choice.variance:  # its weights are zero, which no factor corrects
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
    """What a plan may measure if no other measures its part: so much that nothing is left for the noise of other
    steps."""
    return min(1.0, part / KNOWN_LOSS) * plan.error


def _heavier(plan: Plan, factor: float) -> Plan:
    """The plan with its weights multiplied by a factor. If it was not itself measured, it is solved anew."""
    if not plan.unmeasured:
        return _corrected(plan, factor)
    return replace(_solved(plan, factor, factor), unmeasured=plan.unmeasured)


def _with_unmeasured(plan: Plan, why: str, factor: float) -> Plan:
    """The plan with an ``accumulating`` that could not be measured, whose weights are multiplied by a factor above
    1."""
    plan = _heavier(plan, factor) if factor > 1 else plan
    note_accumulating(plan, replace(plan.accumulating, measured=None, unmeasured=why))
    return plan


def _exact_or_told(plan: Plan, found: float) -> Plan:
    """The plan that rounds nothing. If none fits, this plan, with a note of what it measures."""
    try:
        return plan.within(plan.memory, plan.time, 0.0)
    except ValueError:
        return _told(plan, found)


def _told(plan: Plan, found: float) -> Plan:
    """The plan with its measured error, and a warning if that is above the bound."""
    if found > plan.error:
        state = "" if plan.graph.standing else ", where gradients are there already,"
        warn(
            f"the gradient's relative error under the plan of {plan.model}{state} measures {found:.3g}, above "
            f"error={plan.error}, after {_MOST} plans that were to lower it; ask for a lower error, or for error=0"
        )
    return replace(plan, measured=found)


def _measured(plan: Plan, measure: Measure) -> tuple[float, str]:
    """The error; or NaN, and why it could not be measured."""
    try:
        found = measure(plan)
        return (found, "") if math.isfinite(found) else (math.nan, "the gradient of the step aside is not finite")
    except Unmeasured as error:
        return math.nan, str(error)
    except (RuntimeError, MemoryError) as error:  # such as a lack of memory, of which the step itself may have enough
        return math.nan, f"{type(error).__name__}: {error}"


def _reweighted(plan: Plan, variance: float) -> Plan:
    """A plan for the same bounds, with weights by which this plan would have had that variance.

    The harm of a derivative in few bits depends on the spread of its inputs, which is not known ahead. If such
    derivatives are a part of the variance, the excess over what rounding in bits can be off by is attributed to them.
    """
    predicted, of_slopes = plan.choice.variance, _variance_of_slopes(plan)
    if not predicted:  # its weights are zero, which no factor corrects
        return plan.within(plan.memory, plan.time, 0.0)
    factor = slopes = variance / predicted
    if of_slopes > _NOTICED * predicted and factor > _USUAL:
        factor = _USUAL
        slopes = (variance - factor * (predicted - of_slopes)) / of_slopes
    return _solved(plan, factor, slopes)


def _solved(plan: Plan, factor: float, slopes: float) -> Plan:
    """A plan for the same bounds, with its weights multiplied by factors."""
    made = solved_again(plan, _times(plan.menus, factor, slopes), _times(plan.rounded_menus, factor, slopes))
    return made.within(plan.memory, plan.time) if plan.is_bounded else made


def _factor_of_least(plan: Plan, measure: Measure, part: float) -> float:
    """The ratio of measured to predicted variance of the plan of the least memory, which may leave room to measure it;
    0 if that tells nothing."""
    least = plan.choosing(plan.front[0], plan.bounds)
    if not least.choice.rounds or not least.choice.variance or least.choice == plan.choice:
        return 0.0
    found, why = _measured(least, measure)
    return 0.0 if why else (_ABOVE * found / part / _UNSEEN) ** 2 / least.choice.variance


def _no_less(plan: Plan, variance: float) -> Plan:
    """A plan that is predicted to have at least that variance, so that later plans from the same menus, such as those
    for gradients that exist already, are corrected, too."""
    predicted = plan.choice.variance
    if not 0 < predicted < variance:
        return plan
    return _corrected(plan, variance / predicted)


def _corrected(plan: Plan, factor: float) -> Plan:
    """The same choices with their variance multiplied by a factor."""

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
    """The variance of the values that wait as derivatives in few bits."""
    menus = plan.menus_of(plan.choice)
    found = [(value, store) for value, store in plan.choice.stores if store is not None and store.slope_bits]
    return sum(menus.weights[value] * menus.option(value, store).noise for value, store in found)


def _times(menus: Menus | None, factor: float, slopes: float) -> Menus | None:
    """Menus with weights multiplied by one factor, or, for derivatives in few bits, by another."""
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
