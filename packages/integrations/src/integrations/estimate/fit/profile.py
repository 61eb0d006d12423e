"""``Profile``: the bytes at each event of a training step, by what takes them, and the same of a deeper model or of a
larger input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from actcore import TrainingStep, simulate
from integrations.capture.graphs.graph import Graph
from integrations.capture.loss import OF_LOSSES
from integrations.planner.problem import training_step
from integrations.planner.storage_candidates import StorageCandidates


@dataclass(frozen=True)
class Moment:
    """One event.

    Attributes:
        waiting: bytes that wait for backward, the loss's left out.
        loss: bytes of logits, their gradient, and what else the loss takes.
        gradients: bytes of the parameters' gradients that are complete.
        passing: bytes of everything else: what operators make and let go, what is restored or recomputed.
        gathered: bytes of the parameters that FSDP2 has gathered.
    """

    waiting: int
    loss: int
    gradients: int
    passing: int
    gathered: int = 0

    @property
    def nbytes(self) -> int:
        """All of them."""
        return self.waiting + self.loss + self.gradients + self.passing + self.gathered


@dataclass(frozen=True)
class Profile:
    """A training step: bytes at each event, those of ``Moment``, each a row.

    Attributes:
        parts: (5, events) in float64: waiting, loss, gradients, passing, gathered.
        forward: what tells the operators of the forward apart, in their order.
        backward: the same of the steps of backward.
        seconds: modelled seconds of the step.
        gradients: bytes of all gradients.
        held: bytes that are alive between forward and backward, without parameters and inputs.
        loss: the number of the first operator of the loss, and how many steps of backward are the loss's.
    """

    parts: Tensor
    forward: tuple[Any, ...]
    backward: tuple[Any, ...]
    seconds: float
    gradients: int
    held: float
    loss: tuple[int, int]

    def peak(self, fresh: bool = True) -> Moment:
        """The moment of the most bytes.

        Args:
            fresh: whether the step makes the gradients. Otherwise all of them are there from the beginning.
        """
        parts = self.parts.clone()
        if not fresh:
            parts[2] = self.gradients
        at = int(parts.sum(0).argmax())
        return Moment(*(round(float(part)) for part in parts[:, at]))

    def continued(self, other: Profile, times: float) -> Profile | None:
        """The profile on the line through this one and another, at ``times`` their distance from this one. ``None`` if
        they do not have the same events.

        Events are alike if they come in the same order. Where the other step has more of them, it has one layer more:
        the events before the middle one of its layers are those of this step, and so are those behind it.
        """
        forward = _inserted(self.forward, other.forward)
        backward = _inserted(self.backward, other.backward)
        if forward is None or backward is None:
            return None
        there = [*forward, *(len(other.forward) + place for place in backward)]
        parts = self.parts + times * (other.parts[:, there] - self.parts)
        return replace(
            self,
            parts=parts.clamp(min=0),
            seconds=self.seconds + times * (other.seconds - self.seconds),
            gradients=round(self.gradients + times * (other.gradients - self.gradients)),
            held=self.held + times * (other.held - self.held),
        )

    def scaled(self, factor: float) -> Profile:
        """The profile of inputs that are larger by a factor, whose gradients are as large."""
        parts = self.parts * factor
        parts[2] = self.parts[2]
        return replace(self, parts=parts, seconds=self.seconds * factor, held=self.held * factor)


def _inserted(less: Sequence[Any], more: Sequence[Any]) -> list[int] | None:
    """The places in ``more`` of the entries of ``less``, where ``more`` has a run of entries besides; ``None`` if it
    differs in anything else."""
    extra = len(more) - len(less)
    if not extra:
        same = all(one[0] == other[0] for one, other in zip(less, more, strict=True))  # of whatever size
        return [*range(len(less))] if same else None
    before = _alike(less, more)
    behind = _alike(less[::-1], more[::-1])
    first, last = len(less) - behind, before
    if extra < 0 or first > last:
        return None
    split = (first + last) // 2
    return [*range(split), *range(split + extra, len(more))]


def _alike(one: Sequence[Any], other: Sequence[Any]) -> int:
    """How many entries two sequences have in common, from their beginning."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def make_profile(
    graph: Graph,
    candidates: StorageCandidates | None = None,
    kept: Sequence[bool] | None = None,
    held: Sequence[bool] | None = None,
    forms: Sequence[int] | None = None,
    step: TrainingStep | None = None,
) -> Profile:
    """The profile of a step.

    Args:
        graph: the step, in which gradients are made.
        candidates, kept, held, forms: how values wait, as ``actcore.simulate`` takes it; without them all are kept.
        step: that of the graph and the candidates, if it is known.
    """
    step = training_step(graph, candidates) if step is None else step
    kept = [True] * len(graph.values) if kept is None else kept
    forms = [-1] * len(graph.values) if forms is None else forms
    usage = simulate(step, kept, held, forms if candidates is not None else None)
    events = len(graph.other)
    total = torch.tensor(usage.nbytes, dtype=torch.float64)
    gradients = torch.tensor(graph.standing or [0] * events, dtype=torch.float64)
    loss_ops, loss_steps = _of_loss(graph)
    waiting, loss = torch.zeros(2, events + 1, dtype=torch.float64)
    taken_over = {value.reuses for value in graph.values}
    between = 0
    for number, value in enumerate(graph.values):
        if number in taken_over:
            continue
        option = None if candidates is None or forms[number] < 0 else candidates.options[number][forms[number]]
        waits = value.saved >= 0 and kept[number]
        if value.until >= len(graph.ops):
            between += value.nbytes
        elif waits:
            between += value.nbytes if option is None else option.held
        if not waits:
            continue
        row = loss if value.producer >= loss_ops else waiting
        begin = (
            value.producer if option is None or candidates is None else max(candidates.stored_at[number], value.until)
        )
        nbytes = value.nbytes if option is None else option.held
        row[min(begin, events)] += nbytes
        row[min(value.saved + 1, events)] -= nbytes
    waiting, loss = waiting.cumsum(0)[:events], loss.cumsum(0)[:events]
    waiting = torch.minimum(waiting, (total - gradients).clamp(min=0))
    loss = torch.minimum(loss, (total - gradients - waiting).clamp(min=0))
    passing = (total - gradients - waiting - loss).clamp(min=0)
    of_loss = slice(loss_ops, len(graph.ops) + loss_steps)
    loss[of_loss] += passing[of_loss]
    passing[of_loss] = 0
    return Profile(
        torch.stack((waiting, loss, gradients, passing, torch.zeros_like(passing))),
        tuple((op.name, op.shapes) for op in graph.ops),
        tuple((len(step.reads), step.seconds) for step in graph.steps),
        graph.seconds + usage.seconds,
        graph.gradients,
        float(between),
        (loss_ops, loss_steps),
    )


def _of_loss(graph: Graph) -> tuple[int, int]:
    """The number of the first operator behind the model's layers, and how many steps of backward come before theirs. A
    step that starts from no loss has none."""
    if graph.differentiated not in OF_LOSSES:
        return len(graph.ops), 0
    inner = [number for number, op in enumerate(graph.ops) if len(op.module.split(".")) > _depth_of_head(graph)]
    first = inner[-1] + 1 if inner else 0
    if first in (0, len(graph.ops)):
        return len(graph.ops), 0
    values = {value for op in graph.ops[first:] for value in (*op.makes, *op.reads)}
    steps = sum(1 for _ in takewhile(lambda step: values.issuperset(step.reads), graph.steps))
    return first, steps


def _depth_of_head(graph: Graph) -> int:
    """How many names the path of a head has: one more than the model's whose forward ends the step."""
    last = graph.ops[-1].module if graph.ops else ""
    return len(last.split(".")) if last else 1
