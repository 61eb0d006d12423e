"""``simulate``: what a choice of values to keep, and of the forms in which they wait, takes of a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import actcore._native as _native
from actcore.forms import require_int
from actcore.training_step import TrainingStep, require_step


@dataclass(frozen=True)
class StepUsage:
    """What a training step takes.

    Attributes:
        peak: the most bytes at once.
        event: the first event that reaches it.
        seconds: of the operators that are repeated, twice of those that are so twice, and of storing and restoring.
        nbytes: the most bytes during each event.
        segments: the operators that are repeated, those together that are repeated at once, in their order.
        inner: those that make what is not held once more, in the same way.
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
    """Runs through forward and backward in numbers: bytes at each event, and the seconds of what a plan does besides.

    A value lives from the operator that makes it to the last one that reads it, and if it is kept, to the last step of
    backward that needs it. What is not kept and still needed is recomputed from what is kept. The operators that do so
    fall into segments, connected by the values that they hand to each other. A segment is repeated as a whole, when
    backward first reads one of its values; these live until backward reads them last, others until the segment does.
    What nobody needs is not repeated. An operator that is not repeatable keeps its values whatever ``kept`` says.

    Checkpoints are nested where ``held`` leaves values out. Of what a segment makes, only values that are held stay.
    The others that backward reads are made once more, by inner segments, connected by such values and repeated as a
    whole when backward first reads one of theirs, from what is kept or held. What is held and not there is made first;
    it lives until backward and inner segments need it last.

    Between two steps of backward, where a segment is repeated, ``other`` is the smaller of the two.

    What waits does so in a form where ``forms`` says so. A kept value is there as it is until the forward and the
    caller have had it last and it has been stored; its form is there from ``stored_at`` on, and ``passing`` at that
    event. One that is recomputed is there as it is until its segment has read it last, and is stored then. Either is
    restored at each step of backward that reads it. What was restored last stays for the next step of backward that
    reads the same value; it is let go as soon as backward restores another one, and where there is no such step.
    Within a step, what it repeats comes before what is restored of that, and after what is restored of the rest. An
    operator that is repeated restores what it reads for itself. A form in which nothing waits, or that does not serve
    an operator that reads the value when it is repeated, is none.

    Noise adds up. What is recomputed has that of all that its operator reads, where it is repeated: of what waits in a
    form, that of the form, too; and to backward it has that of its own form besides. ``variance`` is the sum over the
    values that backward reads, each noise times its weight.

    Args:
        step: the numbers.
        kept: of each value, whether it is kept.
        held: of each value that is not kept, whether a segment that recomputes it holds it for backward. ``None``: all
            are, and no operator is repeated twice.
        forms: of each value, the number of the form in which it waits, from 0, or -1: as it is, as far as
            ``formed`` lets it. ``None``: all do so.

    Raises:
        TypeError: ``step`` is no ``TrainingStep``, ``kept`` or ``held`` no sequence of bools, or ``forms`` no
            sequence of ints.
        ValueError: ``kept``, ``held`` or ``forms`` has not one entry for each value, or a value has no such form.
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
