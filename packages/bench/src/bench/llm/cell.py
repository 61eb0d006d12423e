"""One subject in one way, in a process of its own: ``python -m bench.llm.cell SUBJECT WAY THREADS`` answers requests.

``"peak"`` and ``"error"`` measure once; ``"seconds"`` times one step, so that ways are timed in turn.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench.errors import BenchError, reason
from bench.gradients import relative_error
from bench.llm.subjects import LOSS, SUBJECTS, Hidden, in_way
from bench.process_memory import counters
from bench.workers import serve

# Rows of the reference in float64 that are there at once.
_ROWS = 256


class Cell:
    """A subject in a way, whose steps are measured."""

    def __init__(self, subject: str, way: str) -> None:
        self.subject = SUBJECTS[subject]
        torch.manual_seed(0)
        self.case = self.subject.make()
        self._plain = None if self.subject.kind == LOSS else self._gradients(self.case.loss)
        self._loss = in_way(self.subject, self.case, way)
        for _ in range(2):  # what only a first step does
            self._step()

    def answer(self, request: Any) -> dict[str, Any]:
        """What a request asks for, or why it cannot be had."""
        try:
            return {"value": getattr(self, request)()}
        except Exception as error:  # what one measurement fails with, others are to be made
            return {"failure": reason(error)}

    def seconds(self) -> float:
        """Of one step, forward and backward."""
        self._forget()
        start = time.perf_counter()
        self._loss().backward()
        return time.perf_counter() - start

    def peak(self) -> int:
        """The most bytes of a step beyond what was there before it, gradients that it makes among them."""
        count = counters(torch.device("cpu"))
        if isinstance(count, str):
            raise BenchError(count)
        self._forget()
        gc.collect()
        before = count.start_peak()
        self._loss().backward()
        return count.peak() - before

    def gradients(self) -> int:
        """Bytes of the gradients that a step makes."""
        self._step()
        return sum(one.grad.nbytes for one in self.case.model.parameters() if one.grad is not None)

    def error(self) -> float:
        """Of the whole gradient, relative: a loss's to float64, a model's to plain training's."""
        exact = self._reference() if self._plain is None else self._plain
        found = self._gradients(self._loss)
        return relative_error([one.to(exact[0].dtype) for one in found], exact)

    def loss_error(self) -> float:
        """Of the loss itself, to float64; 0 for a model, of which it is not known."""
        if not isinstance(self.case.model, Hidden):
            return 0.0
        self._reference()
        return abs(self._loss().item() - self._exact_loss)

    def _reference(self) -> list[Tensor]:
        """The gradients of the loss in float64, some rows at a time, by torch's own functions."""
        model = self.case.model
        assert isinstance(model, Hidden)
        hidden, weight = (tensor.detach().double().requires_grad_() for tensor in (model.hidden, model.weight))
        self._exact_loss = 0.0
        for first in range(0, len(hidden), _ROWS):
            rows, labels = hidden[first : first + _ROWS], model.labels[first : first + _ROWS]
            loss = F.cross_entropy(F.linear(rows, weight), labels, reduction="sum") / len(hidden)
            loss.backward()
            self._exact_loss += loss.item()
        assert hidden.grad is not None
        assert weight.grad is not None
        return [hidden.grad, weight.grad]

    def _gradients(self, loss: Callable[[], Tensor]) -> list[Tensor]:
        self._forget()
        torch.manual_seed(1)
        loss().backward()
        return [one.grad.clone() for one in self.case.model.parameters() if one.grad is not None]

    def _step(self) -> None:
        self._forget()
        self._loss().backward()

    def _forget(self) -> None:
        self.case.model.zero_grad(set_to_none=True)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[3]))
    serve(Cell(*sys.argv[1:3]).answer, sys.stdin)
