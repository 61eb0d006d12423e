"""Memory budgets in the forms in which users write them, and bounds on time and error."""

from __future__ import annotations

import math
import re
from numbers import Integral, Real
from typing import Any

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}
_WORDS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(k|m|g|ki|mi|gi|)(b?)\s*", re.IGNORECASE)
_PERCENT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*")

Budget = str | int | float

LEAST = "least"
"""The budget that asks for the least memory that there is."""

AUTO = "auto"
"""The budget that asks for the memory that is free when the plan is made; see ``integrations.planner.free_memory``."""


def python_number(value: Any) -> Any:
    """Return a number of another type, such as NumPy's, as an int or a float. Return everything else unchanged."""
    if isinstance(value, bool | int) or not isinstance(value, Real):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def resolve_bytes(budget: Budget, plain: int, name: str = "memory") -> int:
    """Return the bytes of activation peak that a budget allows.

    Args:
        budget: an int, bytes; a string such as ``"4GiB"`` or ``"512 MB"``; or a fraction of ``plain``: a float in
            (0, 1], or a string such as ``"40%"``. The words ``"least"`` and ``"auto"`` have no bytes: see
            ``allowed_bytes`` and ``integrations.planner.free_memory``.
        plain: bytes of the step that keeps everything.
        name: the name of the argument, for errors.

    Raises:
        TypeError: the budget is none of these.
        ValueError: the budget is out of range.
    """
    budget = python_number(budget)
    if isinstance(budget, bool) or not isinstance(budget, (str, int, float)):
        raise TypeError(f"{name} must be bytes as an int, a string such as '4GiB', or a fraction, got {budget!r}")
    fraction = read_fraction(budget)
    if fraction is not None:
        if not 0 < fraction <= 1:
            hint = "; bytes are an int" if isinstance(budget, float) and math.isfinite(budget) and budget > 1 else ""
            if fraction <= 0:
                hint = f"; pass {name}={LEAST!r} for the least memory"
            raise ValueError(f"{name} must be in (0, 1] as a fraction of the plain step's peak, got {budget!r}{hint}")
        return int(fraction * plain)
    if isinstance(budget, str):
        return _bytes_in(budget, name)
    assert isinstance(budget, int)
    if budget == 1:
        raise ValueError(
            f"{name} must be unambiguous, got 1: write 1.0 for the whole of the plain step's peak, or '1B' for one byte"
        )
    if budget <= 0:
        raise ValueError(f"{name} must be above 0, got {budget}; pass {name}={LEAST!r} for the least memory")
    return budget


def allowed_bytes(budget: Budget | None, plain: int, name: str = "memory") -> int | None:
    """Return the bytes that a budget allows; ``None`` if there is no budget, or it asks for the least memory.

    Args:
        budget, plain, name: as for ``resolve_bytes``.

    Raises:
        TypeError, ValueError: as ``resolve_bytes``.
    """
    return None if budget is None or budget == LEAST else resolve_bytes(budget, plain, name)


def require_budget(budget: object, name: str = "memory") -> None:
    """Check a budget in any form, before the plain step's peak is known.

    Raises:
        TypeError, ValueError: as ``resolve_bytes``.
    """
    if budget not in (LEAST, AUTO):
        resolve_bytes(budget, 1, name)  # type: ignore[arg-type]  # it checks the type


def read_fraction(budget: object) -> float | None:
    """Return the fraction that a budget is of the plain step's peak; ``None`` if it is no fraction."""
    budget = python_number(budget)
    if isinstance(budget, float):
        return budget
    found = _PERCENT.fullmatch(budget) if isinstance(budget, str) else None
    return None if found is None else float(found[1]) / 100


def budget_in(text: str) -> Budget:
    """Return the budget that a command's argument stands for: numbers are bytes, or a fraction if they have a point."""
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text  # with a unit, or a word


def _bytes_in(text: str, name: str) -> int:
    """Return the bytes of a text such as ``"4GiB"``."""
    found = _WORDS.fullmatch(text)
    if found is None:
        rule = "be a number with a unit such as '4GiB', '512 MiB' or '2GB', and no sign"
    elif not found[2] and not found[3]:
        rule = f"have a unit as a string, such as '4GiB', or '{found[1]}B' for bytes"
    else:
        return int(float(found[1]) * _UNITS[found[2].lower()])
    raise ValueError(
        f"{name} must {rule}, got {text!r}; a fraction of the plain step's peak is a float or a percentage, such as "
        f"0.5 or '50%'; '{LEAST}' asks for the least memory, '{AUTO}' for the free memory"
    )


def require_ratio(time: object) -> None:
    """Check a bound on a step's time.

    Raises:
        TypeError: it is no number.
        ValueError: it is below 1.
    """
    time = python_number(time)
    if isinstance(time, bool) or not isinstance(time, int | float):
        raise TypeError(f"time must be a multiple of the plain step's time, such as 1.1, got {time!r}")
    if not 1 <= time < math.inf:
        raise ValueError(f"time must be at least 1, the plain step's time, got {time!r}; 1.1 allows 10 % more")


def require_error(error: object) -> None:
    """Check a bound on the gradient's error.

    Raises:
        TypeError: it is no number.
        ValueError: it is out of range.
    """
    error = python_number(error)
    if isinstance(error, bool) or not isinstance(error, int | float):
        raise TypeError(f"error must be a bound on the gradient's relative error, such as 0.1, got {error!r}")
    if not 0 <= error < 1:
        raise ValueError(
            f"error must be at least 0 (the default, without rounding) and below 1, got {error!r}; 0.1 is a usual bound"
        )
