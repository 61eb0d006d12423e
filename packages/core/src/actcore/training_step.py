"""``TrainingStep``: forward and backward in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import actcore._native as _native
from actcore.forms import Form, are_sizes, forms_of, require_amounts, require_bytes, require_int


@dataclass(frozen=True)
class TrainingStep:
    """The operators of a forward pass, the values that they make, and the values that backward reads.

    Operators and values are numbered from 0, operators in the order in which they run. Time is counted in events: the
    operators, followed by the steps of backward. Parameters and inputs, which are alive anyway, are not values. An
    empty optional attribute takes its default for all entries.

    Attributes:
        nbytes: bytes of each value.
        reads: for each operator, the values that it reads, made by earlier operators.
        makes: for each operator, the values that it makes. Each value is made once.
        seconds: time of each operator, in seconds or any other unit.
        backward: for each step of backward, in order, the values that it reads.
        other: for each event, bytes that are alive whatever is kept: gradients, temporaries of backward. Default: 0.
        repeatable: for each operator, whether repeating it gives the same result. Default: True.
        scratch: for each operator, bytes that it takes only while it runs, the first time and when it is repeated.
            Default: 0.
        reuses: for each value, the value that its operator overwrites with it, so that both share memory, or ``None``.
            An overwritten value is not kept. Default: ``None``.
        until: for each value, the event up to which it is alive whatever is kept, or ``None``. A value that is alive up
            to the last event, such as a result that the caller holds, is kept. Default: ``None``.
        forms: for each value, the forms in which it may be stored. Default: no forms.
        weights: for each value, the square of the gradient's relative error if the value that backward reads has a
            noise of 1. Default: 0.
        aside: for each value, bytes that the forward stores even if the value is recomputed, until backward reads it
            last: data by which backward decides. Default: 0.
        stored_at: for each value, the operator after which it is stored. ``None``: when a repeated operator first reads
            it, else with the operator that makes it. Default: ``None``.
        formed: for each value, whether it is stored in its first form instead of unchanged, as far as that form serves.
            Default: False.

    Raises:
        TypeError: an attribute is not a sequence of the right type.
        ValueError: lengths differ, a number is out of range, or a value is made twice or never, or read before it is
            made or after it is overwritten. The message says which.
    """

    nbytes: Sequence[int]
    reads: Sequence[Sequence[int]]
    makes: Sequence[Sequence[int]]
    seconds: Sequence[float]
    backward: Sequence[Sequence[int]]
    other: Sequence[int] = ()
    repeatable: Sequence[bool] = ()
    scratch: Sequence[int] = ()
    reuses: Sequence[int | None] = ()
    until: Sequence[int | None] = ()
    forms: Sequence[Sequence[Form]] = ()
    weights: Sequence[float] = ()
    aside: Sequence[int] = ()
    stored_at: Sequence[int | None] = ()
    formed: Sequence[bool] = ()

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not isinstance(value, Sequence) or isinstance(value, str | bytes):
                raise TypeError(f"{name} must be a sequence, got {value!r}")
            object.__setattr__(self, name, tuple(value))
        ops, values = len(self.reads), len(self.nbytes)
        events = ops + len(self.backward)
        for name, length, of, default in (
            ("makes", ops, "operator", None),
            ("seconds", ops, "operator", None),
            ("other", events, "event", 0),
            ("repeatable", ops, "operator", True),
            ("scratch", ops, "operator", 0),
            ("reuses", values, "value", None),
            ("until", values, "value", None),
            ("forms", values, "value", ()),
            ("weights", values, "value", 0.0),
            ("aside", values, "value", 0),
            ("stored_at", values, "value", None),
            ("formed", values, "value", False),
        ):
            got = getattr(self, name)
            if not got and name not in ("makes", "seconds"):
                object.__setattr__(self, name, (default,) * length)
            elif len(got) != length:
                raise ValueError(f"{name} must have one entry for each {of}, {length}, got {len(got)}")
        for name in ("nbytes", "other", "scratch", "aside"):
            require_bytes(name, getattr(self, name))
        for name in ("seconds", "weights"):
            require_amounts(name, getattr(self, name))
        object.__setattr__(self, "forms", forms_of(self.forms))
        if not math.isfinite(sum(self.seconds)):
            raise ValueError("seconds must have a finite sum; use a larger unit")
        for name in ("repeatable", "formed"):
            entries = getattr(self, name)
            if not set(map(type, entries)) <= {bool}:
                i = next(i for i, entry in enumerate(entries) if not isinstance(entry, bool))
                raise TypeError(f"{name}[{i}] must be a bool, got {entries[i]!r}")
        for value, formed in enumerate(self.formed):
            if formed and not self.forms[value]:
                raise ValueError(f"formed[{value}] must be False, since the value has no forms")
        for name in ("reads", "makes", "backward"):
            object.__setattr__(self, name, _values(name, getattr(self, name), values))
        producers = self._producers()
        for op, row in enumerate(self.reads):
            for value in row:
                if producers[value] >= op:
                    raise ValueError(
                        f"reads[{op}] must hold values of earlier operators, got {value}, which operator "
                        f"{producers[value]} makes"
                    )
        self._require_lives(producers, events)

    def _producers(self) -> list[int]:
        producers = [-1] * len(self.nbytes)
        for op, row in enumerate(self.makes):
            for value in row:
                if producers[value] >= 0:
                    raise ValueError(
                        f"makes must hold each value once, got {value} from operators {producers[value]} and {op}"
                    )
                producers[value] = op
        if -1 in producers:
            raise ValueError(
                f"makes must hold each value once, but lacks value {producers.index(-1)}; leave out inputs"
            )
        return producers

    def _require_lives(self, producers: list[int], events: int) -> None:
        for value, event in enumerate(self.until):
            if event is None:
                continue
            require_int(f"until[{value}]", event)
            if not 0 <= event < events:
                raise ValueError(f"until[{value}] must be an event, from 0 to {events - 1}, or None, got {event}")
        for value, op in enumerate(self.stored_at):
            if op is None:
                continue
            require_int(f"stored_at[{value}]", op)
            if not producers[value] <= op < len(self.reads):
                raise ValueError(
                    f"stored_at[{value}] must be an operator from {producers[value]}, which makes the value, to "
                    f"{len(self.reads) - 1}, or None, got {op}"
                )
        last_use = list(producers)
        for event, row in enumerate((*self.reads, *self.backward)):
            for value in row:
                last_use[value] = event
        overwritten: dict[int, int] = {}
        for value, old in enumerate(self.reuses):
            if old is None:
                continue
            require_int(f"reuses[{value}]", old)
            if not 0 <= old < len(self.nbytes) or producers[old] >= producers[value] or old in overwritten:
                raise ValueError(
                    f"reuses[{value}] must be a value of an earlier operator that nothing else overwrites, or None, "
                    f"got {old}"
                )
            overwritten[old] = value
            if max(last_use[old], self.until[old] or 0) > producers[value] or old not in self.reads[producers[value]]:
                raise ValueError(
                    f"reuses[{value}] must be a value that operator {producers[value]} is the last to read, got {old}"
                )

    def _native(self) -> _native.TrainingStep:
        return _native.TrainingStep(
            list(self.nbytes),
            [-1 if value is None else value for value in self.reuses],
            [-1 if event is None else event for event in self.until],
            [list(row) for row in self.reads],
            [list(row) for row in self.makes],
            [float(seconds) for seconds in self.seconds],
            [int(repeatable) for repeatable in self.repeatable],
            list(self.scratch),
            [list(row) for row in self.backward],
            list(self.other),
            [
                [
                    (
                        form.held,
                        form.restored,
                        form.passing,
                        float(form.store_seconds),
                        float(form.restore_seconds),
                        float(form.noise),
                        form.serves,
                    )
                    for form in row
                ]
                for row in self.forms
            ],
            [float(weight) for weight in self.weights],
            list(self.aside),
            [-1 if op is None else op for op in self.stored_at],
            list(self.formed),
        )


def require_step(step: object) -> None:
    """It is a ``TrainingStep``."""
    if not isinstance(step, TrainingStep):
        raise TypeError(f"step must be a TrainingStep, got {step!r}")


def _values(name: str, rows: Sequence[Sequence[int]], values: int) -> tuple[tuple[int, ...], ...]:
    """The values of each row, once each."""
    for i, row in enumerate(rows):
        # A plan's search makes steps of many thousand values, so what is right is found without a call for each.
        if isinstance(row, tuple | list) and are_sizes(row) and max(row, default=-1) < values:
            continue
        if not isinstance(row, Sequence) or isinstance(row, str | bytes):
            raise TypeError(f"{name}[{i}] must be a sequence of values, got {row!r}")
        for value in row:
            require_int(f"each value of {name}[{i}]", value)
            if not 0 <= value < values:
                raise ValueError(f"{name}[{i}] must hold values from 0 to {values - 1}, got {value}")
    return tuple(tuple(dict.fromkeys(row)) for row in rows)
