"""``Form``: a way for a value of a training step to wait for backward other than as it is."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

MOST_BYTES = 1 << 55
"""Sizes add up to less, so that prices in bytes do not overflow."""

MOST_FORMS = 127


@dataclass(frozen=True)
class Form:
    """A stored form of a value until backward reads it: quantized, as a mask, or in host memory.

    Attributes:
        held: bytes of the form while it is stored.
        restored: bytes of the restored value, alive while it is read. 0: nothing is restored.
        passing: extra bytes while the value is being stored.
        store_seconds: time to store it once.
        restore_seconds: time to restore it, each time.
        noise: variance of its rounding, relative to the mean square of the value. 0: exact.
        serves: whether the form has all of the value, for a repeated operator and for any step of backward. If not,
            only the steps of backward that read the value can use it, as with signs.

    Raises:
        TypeError: an attribute has the wrong type.
        ValueError: a number is negative or not finite.
    """

    held: int
    restored: int
    passing: int = 0
    store_seconds: float = 0.0
    restore_seconds: float = 0.0
    noise: float = 0.0
    serves: bool = True

    def __post_init__(self) -> None:
        for name in ("held", "restored", "passing"):
            require_size(name, getattr(self, name))
        for name in ("store_seconds", "restore_seconds", "noise"):
            require_amount(name, getattr(self, name))
        if not isinstance(self.serves, bool):
            raise TypeError(f"serves must be a bool, got {self.serves!r}")


def forms_of(rows: Sequence[object]) -> tuple[tuple[Form, ...], ...]:
    """The forms of each value, checked."""
    forms = []
    for value, row in enumerate(rows):
        if not isinstance(row, Sequence) or not all(isinstance(form, Form) for form in row):
            raise TypeError(f"forms[{value}] must be a sequence of Forms, got {row!r}")
        if len(row) > MOST_FORMS:
            raise ValueError(f"forms[{value}] must have at most {MOST_FORMS} entries, got {len(row)}")
        forms.append(tuple(row))
    for name in ("held", "restored", "passing"):
        most = sum(max((getattr(form, name) for form in row), default=0) for row in forms)
        if most >= MOST_BYTES:
            raise ValueError(
                f"the largest {name} of each value's forms must add up to less than 2**55, got {most}; "
                "use a larger unit"
            )
    return tuple(forms)


def require_int(name: str, value: object) -> None:
    """It is an int, and no bool."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


def require_size(name: str, size: int) -> None:
    """It is an int that is not negative."""
    require_int(name, size)
    if size < 0:
        raise ValueError(f"{name} must not be negative, got {size}; it is a number of bytes")


def are_sizes(row: Sequence[object]) -> bool:
    """Return whether all are non-negative and exactly of type ``int``, not of a subclass."""
    return set(map(type, row)) <= {int} and min(row, default=0) >= 0  # type: ignore[type-var, operator]


def require_bytes(name: str, sizes: Sequence[int]) -> None:
    """Each is an int that is not negative, and together they are below ``MOST_BYTES``."""
    if not are_sizes(sizes):
        for i, size in enumerate(sizes):
            require_size(f"{name}[{i}]", size)
    if sum(sizes) >= MOST_BYTES:
        raise ValueError(f"{name} must add up to less than 2**55, got {sum(sizes)}; use a larger unit")


def require_amounts(name: str, amounts: Sequence[object]) -> None:
    """Each is an int or a float that is finite and not negative."""
    finite = set(map(type, amounts)) <= {float} and all(map(math.isfinite, amounts))  # type: ignore[arg-type]
    if not finite or min(amounts, default=0) < 0:  # type: ignore[type-var, operator]
        for i, amount in enumerate(amounts):
            require_amount(f"{name}[{i}]", amount)


def require_amount(name: str, amount: object) -> None:
    """An int or a float that is finite and not negative."""
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{name} must be an int or a float, got {amount!r}")
    if not 0 <= amount <= sys.float_info.max:  # an int may be larger than any float
        raise ValueError(f"{name} must be finite and not negative, got {amount}")
