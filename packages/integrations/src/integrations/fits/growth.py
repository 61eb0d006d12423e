"""``largest``: how large an input may be that still fits."""

from __future__ import annotations

from collections.abc import Callable

from integrations.fits.profile import Profile
from integrations.fits.ways import Room

_MOST = 1 << 30
_CHECKS = 4  # captures at a size that was foretold, at the most


def largest(
    size: int, inputs: int, room: Room, profile: Profile, at: Callable[[int], Profile] | None, exact: bool
) -> int | None:
    """The largest size of an input that fits, from 0; ``None`` if it cannot be told.

    The bytes of each event are taken to be on the line through those of two sizes. Where they need not be, as those of
    attention that keeps its weights, the step of the size found is captured, and the line goes through it, too.

    Args:
        size: of the inputs in ``profile``.
        inputs: their bytes.
        room: what may be taken.
        profile: the step's.
        at: the profile of a step with another size; ``None`` scales all that is no gradient.
        exact: whether bytes are on a line.
    """
    if at is None:
        return _last(size, inputs, room, lambda times: profile.scaled(1 + times))
    other, beyond = at(2 * size), 2 * size
    found = None
    for _ in range(1 if exact else _CHECKS):
        line = _line(profile, other, size / (beyond - size))
        found = None if line is None else _last(size, inputs, room, line)
        if found is None or found in (0, beyond, size):
            return found
        if not exact:
            other, beyond = at(found), found
            if _last(size, inputs, room, _line(profile, other, size / (beyond - size)) or line) == found:
                return found
    return found


def _line(profile: Profile, other: Profile, per: float) -> Callable[[float], Profile] | None:
    """The profile of inputs that are larger by so many times their size, by two of them."""
    if profile.continued(other, 1.0) is None:
        return None

    def at(times: float) -> Profile:
        found = profile.continued(other, times * per)
        assert found is not None
        return found

    return at


def _last(size: int, inputs: int, room: Room, at: Callable[[float], Profile]) -> int:
    """The largest size whose profile fits."""

    def fits(count: int) -> bool:
        return room.fits(at((count - size) / size), inputs * count // size)

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high) and high < _MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
