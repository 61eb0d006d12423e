"""``simulate``: what a choice of values to keep, and of the forms in which they wait, takes of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import actcore._native as _native
from actcore.forms import require_int
from actcore.training_step import TrainingStep, require_step


@dataclass(frozen=True)
class StepUsage:
    """The memory and the extra time of a training step.

    Attributes:
        peak: the peak in bytes.
        event: the first event at which the peak is reached.
        seconds: the time of the repeated operators, counted twice if they are repeated twice, and of storing and
            restoring.
        nbytes: the peak in bytes during each event.
        segments: the repeated operators, grouped by those that are repeated together, in order.
        inner: the operators that recompute values that are not held, grouped in the same way.
        variance: the square of the gradient's relative error.
    """

    peak: int
    event: int
    seconds: float
    nbytes: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]
    inner: tuple[tuple[int, ...], ...] = ()
    variance: float = 0.0


def simulate(
    step: TrainingStep,
    kept: Sequence[bool],
    held: Sequence[bool] | None = None,
    forms: Sequence[int] | None = None,
) -> StepUsage:
    """Simulate forward and backward: the bytes at each event, and the extra seconds of a plan.

    A value lives from the operator that makes it to the last operator that reads it, and, if it is kept, to the last
    step of backward that needs it. A value that is not kept but needed later is recomputed from kept values. The
    operators that recompute form segments, connected by the values that they pass to each other. A segment is repeated
    as a whole when backward first reads one of its values. Values that backward reads then live until its last read,
    the others until the segment ends. Values that nothing needs are not recomputed. An operator that is not repeatable
    keeps its values whatever ``kept`` says.

    Checkpoints are nested if ``held`` leaves values out. Only the held values of a segment stay. Inner segments
    recompute the others that backward reads: they are connected by such values, start from kept or held values, and are
    repeated as a whole when backward first reads one of theirs. A held value that is missing is recomputed first; it
    lives until backward and the inner segments need it last.

    Between two steps of backward, where a segment is repeated, ``other`` is the smaller of the two.

    Values are stored in a form if ``forms`` says so. A kept value exists unchanged until the forward and the caller
    have read it last and it has been stored; its form exists from ``stored_at`` on, with ``passing`` extra bytes at
    that event. A recomputed value exists unchanged until its segment has read it last, and is stored then. Either is
    restored at each step of backward that reads it. The value restored last stays for the next step of backward that
    reads the same value; it is freed when backward restores another one, or if there is no such step. Within a step, a
    segment is repeated before the values of that segment are restored, and after the other values are restored. A
    repeated operator restores the values that it reads by itself. A form counts as none if nothing is stored in it, or
    if it does not serve a repeated operator that reads the value.

    Noise adds up. A recomputed value has the noise of all values that its operator reads when it is repeated, including
    the noise of their forms; for backward the noise of its own form is added. ``variance`` is the sum over the values
    that backward reads of noise times weight.

    Args:
        step: the step to simulate.
        kept: for each value, whether it is kept.
        held: for each value that is not kept, whether a segment that recomputes it holds it for backward. ``None``: all
            are held, and no operator is repeated twice.
        forms: for each value, the index of its form, from 0, or -1: unchanged, as far as ``formed`` allows. ``None``:
            -1 for all.

    Raises:
        TypeError: ``step`` is not a ``TrainingStep``, ``kept`` or ``held`` not a sequence of bools, or ``forms`` not a
            sequence of ints.
        ValueError: ``kept``, ``held`` or ``forms`` does not have one entry for each value, or a value has no such form.
    """
    require_step(step)
    _require_bools("kept", kept, len(step.nbytes))
    if held is not None:
        _require_bools("held", held, len(step.nbytes))
    if forms is not None:
        _require_forms(forms, step)
    native = step._native()
    peak, event, seconds, variance, nbytes, outer, inner = _native.simulate(
        native, ranks_of(kept, held), list(forms or ())
    )
    return StepUsage(peak, event, seconds, tuple(nbytes), _segments(outer), _segments(inner), variance)


def ranks_of(kept: Sequence[bool], held: Sequence[bool] | None) -> list[int]:
    """Of each value 0 where it is kept, 1 where it is held once it has been recomputed, and else 2."""
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


def _require_bools(name: str, entries: object, values: int) -> None:
    if not isinstance(entries, Sequence) or not all(isinstance(entry, bool) for entry in entries):
        raise TypeError(f"{name} must be a sequence of bools, got {entries!r}")
    if len(entries) != values:
        raise ValueError(f"{name} must have one entry for each value, {values}, got {len(entries)}")


def _require_forms(forms: object, step: TrainingStep) -> None:
    if not isinstance(forms, Sequence) or isinstance(forms, str | bytes):
        raise TypeError(f"forms must be a sequence of ints, got {forms!r}")
    if len(forms) != len(step.nbytes):
        raise ValueError(f"forms must have one entry for each value, {len(step.nbytes)}, got {len(forms)}")
    for value, form in enumerate(forms):
        require_int(f"forms[{value}]", form)
        if not -1 <= form < len(step.forms[value]):
            raise ValueError(f"forms[{value}] must be from -1 to {len(step.forms[value]) - 1}, got {form}")
