"""One subject in one way, in a process of its own: peak and errors once, and single steps, so that ways take turns."""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import BenchError
from bench.runner.gradients import relative_error
from bench.runner.process_memory import counters
from bench.suites.llm.entries import Trained
from bench.suites.llm.subjects import SUBJECTS, Hidden, Step

# Rows of the reference in float64 that are there at once.
_ROWS = 256


class Cell:
    """A subject in a way, whose steps are measured."""

    def __init__(self, subject: str, way: str) -> None:
        named = SUBJECTS[subject]
        torch.manual_seed(0)
        task = named.make()
        self._model, self._way = task.model, way
        self._exact_loss: float | None = None
        if isinstance(task.model, Hidden):
            self._exact_loss, self._exact = _reference(task.model)
        else:
            self._exact = self._gradients(task.step(named.ways[0]))
        self._step = task.step(way)
        for _ in range(2):  # what only a first step does
            self._forget()
            self._step()

    def once(self) -> dict[str, Any]:
        """What is measured once: the most bytes of a step beyond what was there before it, those of the gradients that
        it makes, and errors: a loss's of its gradient and itself to float64, a model's of its gradient to plain."""
        count = counters(torch.device("cpu"))
        if isinstance(count, str):
            raise BenchError(count)
        self._forget()
        gc.collect()
        before = count.start_peak()
        self._step()
        peak = count.peak() - before
        made = sum(one.grad.nbytes for one in self._model.parameters() if one.grad is not None)
        return {"peak": peak, "gradients": made, **self.errors()}

    def errors(self) -> dict[str, float]:
        """Those of the gradient and of the loss; the latter is 0 for a model, of which it is not known."""
        found = [one.to(exact.dtype) for one, exact in zip(self._gradients(self._step), self._exact, strict=True)]
        loss_error = 0.0 if self._exact_loss is None else abs(self._loss - self._exact_loss)
        return {"error": relative_error(found, self._exact), "loss_error": loss_error}

    def seconds(self) -> float:
        """Of one step, forward and backward."""
        self._forget()
        start = time.perf_counter()
        self._step()
        return time.perf_counter() - start

    def _gradients(self, step: Step) -> list[Tensor]:
        self._forget()
        torch.manual_seed(1)
        self._loss = step().item()
        return [one.grad.clone() for one in self._model.parameters() if one.grad is not None]

    def _forget(self) -> None:
        self._model.zero_grad(set_to_none=True)


def _reference(model: Hidden) -> tuple[float, list[Tensor]]:
    """The loss and its gradients in float64, some rows at a time, by torch's own functions."""
    hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (model.hidden, model.weight))
    total = 0.0
    for first in range(0, len(hidden), _ROWS):
        rows, labels = hidden[first : first + _ROWS], model.labels[first : first + _ROWS]
        loss = F.cross_entropy(F.linear(rows, weight), labels, reduction="sum") / len(hidden)
        loss.backward()
        total += loss.item()
    assert hidden.grad is not None
    assert weight.grad is not None
    return total, [hidden.grad, weight.grad]


@cache  # a process measures one cell, again and again
def _cell(subject: str, way: str) -> Cell:
    return Cell(subject, way)


def measure_once(entry: Trained) -> Trained:
    """Measure peak and errors in this process."""
    return replace(entry, **_cell(entry.subject, entry.way).once())


def measure_step(entry: Trained) -> tuple[Trained, float]:
    """Time one more step, so that ways are timed in turn."""
    return entry, _cell(entry.subject, entry.way).seconds()
