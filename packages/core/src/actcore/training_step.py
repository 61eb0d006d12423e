"""``TrainingStep``: forward and backward in numbers, and ``simulate``: what a choice of values to keep takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import actcore._native as _native

MOST_BYTES = 1 << 55
"""Sizes add up to less, so that prices in bytes do not overflow."""


@dataclass(frozen=True)
class TrainingStep:
    """The operators of a forward pass, the values that they make, and what backward reads.

    Operators and values are numbered from 0, operators in the order in which they run. Time is counted in events: the
    operators, and then the steps of backward. Parameters and inputs, which live anyway, are no values.

    Attributes:
        nbytes: of each value.
        reads: of each operator, the values that it reads, made by earlier ones.
        makes: of each operator, the values that it makes. Each value is made once.
        seconds: of each operator, or any other unit of time.
        backward: of each step of backward, in its order, the values that it reads.
        other: of each event, bytes that are alive whatever is kept: gradients, temporaries of backward. Empty: none.
        repeatable: of each operator, whether it gives the same again. Empty: all do.
        scratch: of each operator, bytes that it takes only while it runs, the first time and when it is repeated.
            Empty: none.
        reuses: of each value, the one that its operator has overwritten with it, or ``None``: they share the memory.
            An overwritten value is not kept. Empty: none.
        until: of each value, the event up to which it is alive whatever is kept, or ``None``. What is alive up to
            the last event, such as a result that the caller holds, is kept. Empty: none.

    Raises:
        TypeError: an attribute is no sequence of what it must hold.
        ValueError: lengths that differ, a number out of range, a value that is made twice or never, or read before
            it is made or after it is overwritten. The message says which.
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
        ):
            got = getattr(self, name)
            if not got and name not in ("makes", "seconds"):
                object.__setattr__(self, name, (default,) * length)
            elif len(got) != length:
                raise ValueError(f"{name} must have one entry for each {of}, {length}, got {len(got)}")
        for name in ("nbytes", "other", "scratch"):
            require_bytes(name, getattr(self, name))
        for i, seconds in enumerate(self.seconds):
            if isinstance(seconds, bool) or not isinstance(seconds, int | float):
                raise TypeError(f"seconds[{i}] must be an int or a float, got {seconds!r}")
            if not 0 <= seconds < math.inf:
                raise ValueError(f"seconds[{i}] must be finite and not negative, got {seconds}")
        if not math.isfinite(sum(self.seconds)):
            raise ValueError("seconds must have a finite sum; use a larger unit")
        for i, repeatable in enumerate(self.repeatable):
            if not isinstance(repeatable, bool):
                raise TypeError(f"repeatable[{i}] must be a bool, got {repeatable!r}")
        for name in ("reads", "makes", "backward"):
            object.__setattr__(
                self, name, tuple(_values(f"{name}[{i}]", row, values) for i, row in enumerate(getattr(self, name)))
            )
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
            raise ValueError(f"makes must hold each value once, got none with {producers.index(-1)}; leave out inputs")
        return producers

    def _require_lives(self, producers: list[int], events: int) -> None:
        for value, event in enumerate(self.until):
            if event is None:
                continue
            _require_int(f"until[{value}]", event)
            if not 0 <= event < events:
                raise ValueError(f"until[{value}] must be an event, from 0 to {events - 1}, or None, got {event}")
        last_use = list(producers)
        for event, row in enumerate((*self.reads, *self.backward)):
            for value in row:
                last_use[value] = max(last_use[value], event)
        overwritten: dict[int, int] = {}
        for value, old in enumerate(self.reuses):
            if old is None:
                continue
            _require_int(f"reuses[{value}]", old)
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
        )


@dataclass(frozen=True)
class StepUsage:
    """What a training step takes.

    Attributes:
        peak: the most bytes at once.
        event: the first event that reaches it.
        seconds: of the operators that are repeated, twice of those that are so twice.
        nbytes: the most bytes during each event.
        segments: the operators that are repeated, those together that are repeated at once, in their order.
        inner: those that make what is not held once more, in the same way.
    """

    peak: int
    event: int
    seconds: float
    nbytes: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[int, ...], ...] = ()


def simulate(step: TrainingStep, kept: Sequence[bool], held: Sequence[bool] | None = None) -> StepUsage:
    """Runs through forward and backward in numbers: bytes at each event, and the seconds of what is computed again.

    A value lives from the operator that makes it to the last one that reads it, and if it is kept, to the last step of
    backward that needs it. What is not kept and still needed is made again from what is kept. The operators that do so
    fall into segments, connected by the values that they hand to each other. A segment is repeated as a whole, when
    backward first reads one of its values; these live until backward reads them last, others until the segment does.
    What nobody needs is not repeated. An operator that is not repeatable keeps its values whatever ``kept`` says.

    Checkpoints are nested where ``held`` leaves values out. Of what a segment makes, only values that are held stay.
    The others that backward reads are made once more, by inner segments, connected by such values and repeated as a
    whole when backward first reads one of theirs, from what is kept or held. What is held and not there is made first;
    it lives until backward and inner segments need it last.

    Between two steps of backward, where a segment is repeated, ``other`` is the smaller of the two.

    Args:
        step: the numbers.
        kept: of each value, whether it is kept.
        held: of each value that is not kept, whether a segment that makes it again holds it for backward. ``None``: all
            are, and no operator is repeated twice.

    Raises:
        TypeError: ``step`` is no ``TrainingStep``, or ``kept`` or ``held`` no sequence of bools.
        ValueError: ``kept`` or ``held`` has not one entry for each value.
    """
    _require_step(step)
    _require_bools("kept", kept, len(step.nbytes))
    if held is not None:
        _require_bools("held", held, len(step.nbytes))
    peak, event, seconds, nbytes, outer, inner = _native.simulate(step._native(), ranks_of(kept, held))
    return StepUsage(peak, event, seconds, tuple(nbytes), _segments(outer), _segments(inner))


def ranks_of(kept: Sequence[bool], held: Sequence[bool] | None) -> list[int]:
    """Of each value 0 where it is kept, 1 where it is held once it has been made again, and else 2."""
    if held is None:
        return [int(not entry) for entry in kept]
    return [0 if is_kept else 1 if is_held else 2 for is_kept, is_held in zip(kept, held, strict=True)]


def _segments(first: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Operators by the first one of their segment."""
    segments: dict[int, list[int]] = {}
    for op, segment in enumerate(first):
        if segment >= 0:
            segments.setdefault(segment, []).append(op)
    return tuple(map(tuple, segments.values()))


def require_bytes(name: str, sizes: Sequence[int]) -> None:
    """Each is an int that is not negative, and together they are below ``MOST_BYTES``."""
    for i, size in enumerate(sizes):
        _require_int(f"{name}[{i}]", size)
        if size < 0:
            raise ValueError(f"{name}[{i}] must not be negative, got {size}; it is a number of bytes")
    if sum(sizes) >= MOST_BYTES:
        raise ValueError(f"{name} must add up to less than 2**55, got {sum(sizes)}; use a larger unit")


def _require_step(step: object) -> None:
    if not isinstance(step, TrainingStep):
        raise TypeError(f"step must be a TrainingStep, got {step!r}")


def _require_bools(name: str, entries: object, values: int) -> None:
    if not isinstance(entries, Sequence) or not all(isinstance(entry, bool) for entry in entries):
        raise TypeError(f"{name} must be a sequence of bools, got {entries!r}")
    if len(entries) != values:
        raise ValueError(f"{name} must have one entry for each value, {values}, got {len(entries)}")


def _require_int(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r}")


def _values(name: str, row: object, values: int) -> tuple[int, ...]:
    if not isinstance(row, Sequence) or isinstance(row, str | bytes):
        raise TypeError(f"{name} must be a sequence of values, got {row!r}")
    for value in row:
        _require_int(f"each value of {name}", value)
        if not 0 <= value < values:
            raise ValueError(f"{name} must hold values from 0 to {values - 1}, got {value}")
    return tuple(dict.fromkeys(row))
