"""``largest``: how large an input may be that still fits."""

from __future__ import annotations

from collections.abc import Callable

from integrations.estimate.fit.profile import Profile
from integrations.estimate.fit.ways import Room

_MOST = 1 << 30
_CHECKS = 4  # captures at sizes that were foretold, at the most

Line = Callable[[float], Profile]


def largest(size: int, room: Room, profile: Profile, at: Callable[[int], Profile] | None, exact: bool) -> int | None:
    """The largest size of an input that fits, from 0; ``None`` if it cannot be told.

    The bytes of each event are taken to be on the line through those of two sizes. Where they need not be, as those of
    attention that keeps its weights, the step of the size found is captured, and the line goes through it, too.

    Args:
        size: of the inputs in ``profile``.
        room: what may be taken.
        profile: the step's.
        at: the profile of a step with another size; ``None`` scales all that is no gradient.
        exact: whether bytes are on a line.
    """

    def last(line: Line) -> int:
        return _last(lambda count: room.fits(line(count), room.inputs * count // size))

    if at is None:
        return last(lambda count: profile.scaled(count / size))
    line = _line(profile, size, at(2 * size), 2 * size)
    if line is None and exact:  # a batch of one may take other operators than any other
        line = _line(at(2 * size), 2 * size, at(4 * size), 4 * size)
    found = None if line is None else last(line)
    for _ in range(0 if exact else _CHECKS):
        if found in (None, 0, size, 2 * size, _MOST):
            break
        assert found is not None
        line = _line(profile, size, at(found), found)
        before, found = found, None if line is None else last(line)
        if found is not None and abs(found - before) <= before // 256:
            break
    return found


def _line(one: Profile, size: int, other: Profile, beyond: int) -> Line | None:
    """The profile of inputs of any size, by those of two sizes; ``None`` if these have other events."""
    if one.continued(other, 1.0) is None:
        return None

    def at(count: float) -> Profile:
        found = one.continued(other, (count - size) / (beyond - size))
        assert found is not None
        return found

    return at


def _last(fits: Callable[[int], bool]) -> int:
    """The largest size that fits; 0 if 1 does not."""
    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < _MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
