"""One operator: each sample plain, at L0, at a level, and under an exact plan."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

import integrations
from integrations.report import Report

from .bounds import STORED, Judged, bound_for, judged
from .results import EXACT, KEPT, ROUNDED, Operated, Saved
from .step import Step, flat, forward, gradients, step
from .stored import Saves
from .subjects import Applied, Subject

_STEPS = 2  # the second stores as the first has found


class _Found:
    """What is found of an operator, sample by sample."""

    def __init__(self) -> None:
        self.left_out, self.wrong = Counter[str](), Counter[str]()
        self.saved: dict[Saved, None] = {}
        self.bounds: dict[str, float] = {}
        self.counts = Counter[str]()
        self.error = 0.0

    @contextmanager
    def trying(self, where: str) -> Iterator[None]:
        """What is raised in the block is wrong, and the rest goes on."""
        try:
            yield
        except Exception as error:  # whatever an operator fails with under compression
            self.wrong[f"{where}: {reason(error)}"] += 1

    def require(self, same: bool, what: str) -> None:
        """Notes that something is wrong, unless it is the same."""
        if not same:
            self.wrong[what] += 1

    def judge(self, found: Judged, what: str) -> None:
        """Takes up a gradient's error."""
        self.error = max(self.error, found.error)
        self.bounds[found.bound] = max(self.bounds.get(found.bound, 0.0), found.share)
        if not found.share <= 1:  # NaN is no pass
            self.wrong[f"{what}: {found.share:.3g} of the bound {found.bound!r}"] += 1


def measure(subject: Subject, level: str, samples: int, planned: int, seed: int) -> Operated:
    """Measures an operator.

    Args:
        subject: the operator.
        level: at which tensors of any size are stored.
        samples: the most that are taken.
        planned: the most of those that a plan is followed with.
        seed: of the samples.

    Raises:
        Exception: what the database's samples fail with.
    """
    if subject.does_not_apply:
        return Operated(*subject.place, does_not_apply=subject.does_not_apply)
    chosen = subject.samples(samples, seed)
    found = _Found()
    every = max(1, -(-len(chosen) // planned)) if planned else 0
    for place, sample in enumerate(chosen):
        model = Applied(subject.call, sample).train()
        plain = _plain(model, found)
        if plain is None:
            continue
        found.counts["samples"] += 1
        _off(model, plain, found)
        _level(subject, model, plain, level, found)
        if every and place % every == 0:
            _planned(Applied(subject.call, sample, read=True).train(), found)
    return Operated(
        *subject.place,
        samples=found.counts["samples"],
        left_out=dict(found.left_out),
        planned=found.counts["planned"],
        recomputed=found.counts["recomputed"],
        saved=list(found.saved),
        rounded=found.counts["rounded"],
        bounds=found.bounds,
        error=found.error,
        wrong=dict(found.wrong),
    )


def reason(error: Exception) -> str:
    """An error in one line."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")


def _plain(model: Applied, found: _Found) -> Step | None:
    """The plain step; ``None`` where there is nothing to compare with."""
    try:
        plain = step(model)
        again = step(model)
    except Exception as error:  # torch itself refuses the sample, as copies or in place
        found.left_out[reason(error)] += 1
        return None
    if not plain.results:
        found.left_out["no gradient goes through the sample"] += 1
    elif not (plain.same_results(again) and plain.same_gradients(again)):
        found.left_out["two plain steps differ"] += 1
    else:
        return plain
    return None


@contextmanager
def _compressed(model: Applied, *args: Any, **options: Any) -> Iterator[None]:
    integrations.compress_model(model, *args, **options)
    try:
        yield
    finally:
        integrations.restore_model(model)


def _off(model: Applied, plain: Step, found: _Found) -> None:
    with found.trying("L0"), _compressed(model, "L0"):
        off = step(model)
        found.require(off.same_results(plain), "L0: results differ")
        found.require(off.same_gradients(plain), "L0: gradients differ")


def _level(subject: Subject, model: Applied, plain: Step, level: str, found: _Found) -> None:
    with found.trying(level):
        steps = []
        with _compressed(model, level, min_bytes=0):
            for _ in range(_STEPS):
                steps.append(step(model))
                _take_up(integrations.compression(model).report(), found)
            report = integrations.compression(model).report()
        for one in steps:
            found.require(one.same_results(plain), f"{level}: results differ")
        others = [one for one in steps if not one.same_gradients(plain)]
        found.counts["rounded"] += bool(others)
        rounded = [(row.operator, row.role) for row in report.rows if _store(row.codec) == ROUNDED]
        for one in others:
            if not rounded:
                found.require(False, f"{level}: gradients differ, and nothing is rounded")
                continue
            finite = flat(plain.gradients).isfinite(), flat(one.gradients).isfinite()
            if not torch.equal(*finite):
                found.require(False, f"{level}: gradients are not finite where the plain ones are, or the reverse")
                continue
            bound = bound_for(subject.info.name, rounded)
            found.judge(_judged(bound, model, plain, one), level)


def _judged(bound: str, model: Applied, plain: Step, compressed: Step) -> Judged:
    if bound == STORED:
        return _at_the_stored(model, plain, compressed)
    saves = Saves()
    returned = saves.forward(lambda: forward(model))
    saves.take(returned, compressed.results)
    saves.part = 1
    again = gradients(model, returned, plain.given)
    if not replace(compressed, gradients=again).same_gradients(compressed):
        raise ValueError("the gradient is not that of the tensors that were restored")
    return judged(bound, model, plain, saves, returned)


def _at_the_stored(model: Applied, plain: Step, compressed: Step) -> Judged:
    """Attention's own bound: its plain gradient with the query, key and value that were stored, bit for bit."""
    [node] = {one.grad_fn for one in compressed.results}
    stored = [one for one in node.saved_tensors if one is not None]  # type: ignore[union-attr]
    taken = iter(stored)
    tensors = [next(taken).detach().requires_grad_() if one.requires_grad else one for one in model.tensors]
    at = step(model.with_tensors(tensors))
    exact, found = flat(plain.gradients), flat(compressed.gradients)
    return Judged(STORED, float((found - exact).norm() / exact.norm()), 0.0 if at.same_gradients(compressed) else 2.0)


def _take_up(report: Report, found: _Found) -> None:
    for row in report.rows:
        if row.codec and not row.owner:
            why = row.why.partition("; ")[0]
            found.saved[Saved(row.operator, row.role, _store(row.codec), why)] = None


def _store(codec: str) -> str:
    if codec in ("kept", "copied"):
        return KEPT
    return ROUNDED if "bits=" in codec else EXACT


def _planned(model: Applied, found: _Found) -> None:
    """Two steps under an exact plan."""
    plain = _plain(model, _Found())
    if plain is None:  # a sine is not there for every dtype
        return
    with found.trying("plan"), _compressed(model, error=0.0):
        found.counts["planned"] += 1
        for _ in range(_STEPS):
            one = step(model)
            found.require(one.same_results(plain), "plan: results differ")
            found.require(one.same_gradients(plain), "plan: gradients differ")
        report = integrations.compression(model).report()
        found.counts["recomputed"] += any(row.codec == "recomputed" for row in report.rows)
