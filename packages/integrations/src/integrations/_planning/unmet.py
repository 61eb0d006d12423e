"""Why there is no plan within the bounds, and what would lower the least that there is."""

from __future__ import annotations

import math

from integrations._planning.at_peak import largest_at_peak
from integrations._planning.bounds import FULL, ONLY_RECOMPUTE, ROUNDING, WAYS, Bounds
from integrations._planning.budget import LEAST, read_fraction
from integrations._planning.chunked import SHARE, logits_bytes
from integrations._planning.solution import Solution
from integrations.report.words import format_bytes

# A smaller batch lowers the plain step's peak, too, and with it the bytes that a fraction of it allows.
_SMALLER, _LARGER = "take a smaller batch", "take a larger fraction"


def out_of_memory(plan: Solution, asked: Bounds) -> str:
    """Return why no plan has such a peak, in words."""
    return f"{_too_little_memory(plan, asked)}{_occupied(plan)}{_without_logits(plan)}"


def _too_little_memory(plan: Solution, asked: Bounds) -> str:
    budget, least, plain = asked.memory, plan.front[0].peak, plan.uncompressed_peak
    relative = read_fraction(budget) is not None
    share = f", {round_up_share(least, plain)} of the plain step's {format_bytes(plain)}" if 0 < least <= plain else ""
    found = f"at least {least} bytes ({format_bytes(least)}{share}), the least activation peak of all plans"
    if plan.compressed:
        smaller = "" if relative else f"{_SMALLER}, or "
        name, least_of_all = (
            ("checkpoint", ", with checkpoint='optimal',") if plan.stores == ONLY_RECOMPUTE else ("memory", "")
        )
        return (
            f"{name} must be a budget of {found} at this level, got {budget!r}; {smaller}call "
            f"integrations.restore_model(model) and compress_model with such a budget{least_of_all} or at a level of "
            "fewer bits"
        )
    other = plan.accumulating
    adding = ""
    most = other.front[0].peak
    if other is not plan and not relative and most > least:  # a fraction is of each state's own peak
        adding = f", and {most} bytes ({format_bytes(most)}) in steps that add to gradients that are there already"
    proof = "no other is less" if plan.exact else f"none is below {format_bytes(plan.peak_bound)}"
    if plan.menus is None:
        name, way_out = "budget", f"pass {LEAST!r}, compress what is kept, or {_LARGER if relative else _SMALLER}"
    else:
        name = f"memory with error={plan.error:g}"
        rest = _allow(plan, else_=_LARGER if relative else _SMALLER)
        way_out = f"pass memory={LEAST!r} for this plan, {'' if rest.startswith('allow') else 'or '}{rest}"
    fraction = read_fraction(budget)
    if fraction is not None and other is not plan and other.peak <= fraction * other.uncompressed_peak:
        way_out = (
            "the gradients, which are not in it, outweigh the activations in a first step, so that there is little "
            "to gain; in steps that add to gradients that are there already, activations go from "
            f"{format_bytes(other.plain_peak)} to {format_bytes(other.peak)}: for those, name bytes"
        )
    return f"{name} must be {found} ({proof}){adding}, got {budget!r}; {way_out}"


def round_up_share(least: int, plain: int) -> float:
    """Return bytes as a fraction of others, rounded up to thousandths, so that the fraction allows them."""
    return min(1000, 1000 * least // plain + 1) / 1000


def out_of_time(plan: Solution, asked: Bounds) -> str:
    """Why no plan within the memory is as fast, in words."""
    bounded = asked.memory not in (None, LEAST)
    fastest = plan.within(asked.memory) if bounded else plan.choosing(plan.front[-1], asked)
    ratio = math.ceil(1000 * (1 + fastest.overhead)) / 1000  # rounded up, so that it can be met
    within = f"of all plans within memory={asked.memory!r}" if bounded else "of all plans"
    way_out = _allow(plan, "more memory") if bounded else _allow(plan)
    return f"time must be at least {ratio}, the least {within}, got {asked.time!r}; {way_out}"


def _allow(plan: Solution, *first: str, else_: str = _SMALLER) -> str:
    """What would lower the least that there is, in words, and what else there is to do."""
    found = list(first)
    if not plan.compressed and plan.menus is not None:
        if _rounds_as_allowed(plan):
            found.append(f"a larger error than {plan.error:g}")
        ways = [way for way in WAYS if plan.error or way not in ROUNDING]
        missing = [repr(way) for way in ways if way not in plan.stores]
        found += [f"{', '.join(missing)} among stores"] if missing else []
    return f"allow {' or '.join(found)}, or {else_}" if found else else_


def _without_logits(plan: Solution) -> str:
    """Return a hint that no plan makes a loss's logits smaller. Return an empty string if the logits are small, or the
    model cannot compute the loss without them."""
    largest = logits_bytes(plan.graph)
    if not plan.chunking or plan.chunked is not None or largest * SHARE < plan.front[0].peak:
        return ""
    way_out = (
        "leave out loss='full', which forbids to compute the loss without them"
        if plan.bounds.loss == FULL
        else f"{plan.chunking} together with memory computes the loss without them"
    )
    return f". The loss takes {format_bytes(largest)} or more for its logits, which no plan makes smaller: {way_out}"


def _occupied(plan: Solution) -> str:
    """Return a sentence on what is in memory at the peak of the plan of the least memory. Return an empty string for a
    plan for a level, whose stores have no names."""
    if plan.compressed:
        return ""
    found = largest_at_peak(plan.choosing(plan.front[0], plan.bounds))
    if not found.values:
        return ""
    values = ", ".join(f"{format_bytes(nbytes)} made by {maker}" for nbytes, maker in found.values)
    others = f", {found.others} smaller ones" if found.others else ""
    return (
        f". In memory at that peak, in {'backward' if found.backward else 'the forward'}: {values}{others}; and "
        f"{format_bytes(found.rest)} for gradients of activations and temporaries"
        + (f", less {format_bytes(found.later)} for gradients of parameters that are made later" if found.later else "")
    )


def _rounds_as_allowed(plan: Solution) -> bool:
    """Whether the bound on the error may keep the plan of the least memory from less memory: the plan uses at least
    half of the allowed variance. Return ``False`` for exact plans: an estimate of what rounding allows is told besides,
    or the plan must not round."""
    return plan.error > 0 and plan.front[0].variance >= plan.error**2 / 2
