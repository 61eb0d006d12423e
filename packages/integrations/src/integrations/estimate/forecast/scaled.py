"""The report of a forward that cannot run without elements: extrapolated from real forwards of two small batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from integrations.api.compress import compress_model
from integrations.capture.loss import Loss
from integrations.estimate.forecast.run import MEAN, make_report, mean_bits
from integrations.estimate.forecast.subject import Subject
from integrations.policies.levels import resolve_level
from integrations.report import Report, Row

_SMALL = 2
_NUMBER = re.compile(r"\d+")


def scaled(
    make: Callable[[int], Subject],
    batch: int,
    level: str,
    exchanged: Mapping[str, Any] | None = None,
    loss: Loss | str | None = None,
    **options: Any,
) -> Report:
    """The report for a batch. For a larger one, it is extrapolated from real forwards of two and of four.

    A statistic over few elements is kept in small batches, though not in a larger one: the report has too much rather
    than too little.

    Args:
        make: makes the subject with a batch of a size, with elements.
        batch: the size that is asked for.
        level: as for ``forecast``; so are the options.
        exchanged: ``activations``, ``linear`` and ``layers``, as for ``forecast``.
        loss: as for ``forecast``.

    Raises:
        RuntimeError: the two forwards save different tensors, for instance because layers are dropped at random.
    """
    asked = {**(exchanged or {})}
    if batch <= 2 * _SMALL:
        return replace(
            _real(make(batch), level, asked, loss, options),
            note="Its forward reads tensor values, so it ran on real tensors.",
        )
    small, large = (_real(make(size), level, asked, loss, options) for size in (_SMALL, 2 * _SMALL))
    if list(map(_place, small.rows)) != list(map(_place, large.rows)):
        raise RuntimeError(
            "the forward reads tensor values and saves other tensors in each batch, so its bytes cannot be scaled "
            f"to a larger batch: turn off its randomness (--set layerdrop=0.0), or use a batch of {2 * _SMALL} or "
            "less, which runs as it is"
        )
    times = (batch - _SMALL) / _SMALL
    rows = [_between(one, other, times) for one, other in zip(small.rows, large.rows, strict=True)]
    note = (
        f"An estimate: the forward reads tensor values, so it ran on real batches of {_SMALL} and {2 * _SMALL}, and "
        f"their bytes were extrapolated linearly to {batch}; nothing was trained."
    )
    names = ("gradient_bytes", "original_peak_bytes", "peak_bytes")
    pairs = ((getattr(small, name), getattr(large, name)) for name in names)
    counts = {name: round(one + times * (other - one)) for name, (one, other) in zip(names, pairs, strict=True)}
    return replace(small, rows=rows, note=note, **counts)


def _real(
    subject: Subject, level: str, exchanged: dict[str, Any], loss: Loss | str | None, options: dict[str, Any]
) -> Report:
    wanted = resolve_level(level, options)
    with torch.random.fork_rng([]), torch.enable_grad():
        torch.manual_seed(0)
        model = compress_model(subject.model, level, **exchanged, **{**options, **mean_bits(wanted)}).train()
        report = make_report(model, subject.args, subject.kwargs, loss)
    return replace(report, level=wanted.title(level), plan=MEAN if wanted.adaptive else "")


def _place(row: Row) -> tuple[str, str, str, int]:
    return row.module, row.operator, row.role, len(row.shape)


def _between(one: Row, other: Row, times: float) -> Row:
    """The row on the line through ``one`` and ``other``, at ``times`` their distance from ``one``."""
    shape = tuple(round(a + times * (b - a)) for a, b in zip(one.shape, other.shape, strict=True))
    original = round(one.original_bytes + times * (other.original_bytes - one.original_bytes))
    stored = round(one.stored_bytes + times * (other.stored_bytes - one.stored_bytes))
    codec = _codec_between(one.codec, other.codec, times)
    return replace(other, shape=shape, codec=codec, original_bytes=original, stored_bytes=stored)


def _codec_between(one: str, other: str, times: float) -> str:
    """A codec in words whose numbers are extrapolated as bytes are: a sketch has more rows for a larger batch."""
    numbers = iter(zip(map(int, _NUMBER.findall(one)), map(int, _NUMBER.findall(other)), strict=False))
    if one == other or _NUMBER.sub("", one) != _NUMBER.sub("", other):
        return other
    return _NUMBER.sub(lambda found: str(round((pair := next(numbers))[0] + times * (pair[1] - pair[0]))), other)
