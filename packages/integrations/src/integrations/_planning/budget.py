"""``bytes_of``: a budget in the forms in which users write one."""

from __future__ import annotations

import math
import re

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_WORDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k|m|g|ki|mi|gi|)(b?)\s*", re.IGNORECASE)

Budget = str | int | float


def bytes_of(budget: Budget, plain: int, name: str = "budget") -> int:
    """The bytes of activation peak that a budget allows.

    Args:
        budget: an int, bytes; a string such as ``"4GiB"``, ``"512 MB"``; or a float in (0, 1], a fraction of ``plain``.
        plain: bytes of the step that keeps everything.
        name: the name of the argument, for errors.

    Raises:
        TypeError: it is none of these.
        ValueError: it cannot be met.
    """
    if isinstance(budget, bool) or not isinstance(budget, (str, int, float)):
        raise TypeError(f"{name} must be bytes as an int, a string such as '4GiB', or a fraction, got {budget!r}")
    if isinstance(budget, str):
        found = _WORDS.fullmatch(budget)
        if found is None:
            raise ValueError(
                f"{name} must be a number with a unit such as '4GiB', '512 MiB' or '2GB', and no sign, got {budget!r}; "
                "a fraction of the plain step's peak is a float, such as 0.5"
            )
        if not found[2] and not found[3]:
            raise ValueError(
                f"{name} must have a unit as a string, such as '4GiB', or '{found[1]}B' for bytes, got {budget!r}; a "
                "fraction of the plain step's peak is a float, such as 0.5"
            )
        return int(float(found[1]) * _UNITS[found[2].lower()])
    if isinstance(budget, float):
        if not 0 < budget <= 1:
            hint = "; bytes are an int" if math.isfinite(budget) and budget > 1 else ""
            raise ValueError(f"{name} must be in (0, 1] as a fraction of the plain step's peak, got {budget!r}{hint}")
        return int(budget * plain)
    if budget < 0:
        raise ValueError(f"{name} must not be negative, got {budget}; it is a number of bytes")
    return budget


def require_ratio(time: object) -> None:
    """Checks a bound on a step's time.

    Raises:
        TypeError: it is no number.
        ValueError: it is below 1.
    """
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise TypeError(f"time must be a step's time in those of the plain step, such as 1.1, got {time!r}")
    if not 1 <= time < math.inf:
        raise ValueError(f"time must be from 1, the plain step's, got {time!r}; 1.1 allows a tenth more")


def require_error(error: object) -> None:
    """Checks a bound on the gradient's error.

    Raises:
        TypeError: it is no number.
        ValueError: it is out of range.
    """
    if isinstance(error, bool) or not isinstance(error, int | float):
        raise TypeError(f"error must be a bound on the gradient's relative error, such as 0.1, got {error!r}")
    if not 0 <= error < 1:
        raise ValueError(f"error must be from 0, which rounds nothing, to below 1, got {error!r}; 0.1 is the default")
