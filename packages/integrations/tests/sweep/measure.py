"""One subject: a plain step, the same compressed, an optimizer's step, and the plain step of the restored model."""

from __future__ import annotations

import importlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import integrations
from integrations.report import Report
from integrations.report.words import format_bytes

from .case import Case, relative_error
from .results import Swept, easing
from .subjects import INTEGRATIONS, Subject

LEARNING_RATE = 1e-3
_REASONS = 3  # of what is kept; the largest
_APART = 10  # times what plain steps differ by, and times less than a compressed one is off, is as good as restored


@dataclass(frozen=True)
class Step:
    """What one step gave.

    Attributes:
        loss: a scalar.
        gradient: of each parameter; ``None`` for those that have none.
        seconds: that forward and backward took.
    """

    loss: Tensor
    gradient: list[Tensor | None]
    seconds: float

    def same_gradient(self, other: Step) -> bool:
        """Whether both have the same gradient, bit for bit."""
        return all(
            one is theirs or (one is not None and theirs is not None and torch.equal(one, theirs))
            for one, theirs in zip(self.gradient, other.gradient, strict=True)
        )

    def filled(self) -> list[Tensor]:
        """The gradient, zero for parameters that have none."""
        return [torch.zeros(()) if found is None else found for found in self.gradient]


class Start:
    """Weights, buffers and random numbers that every step of a subject begins with."""

    def __init__(self, case: Case, seed: int) -> None:
        self.case = case
        self._seed = seed
        self._kept = {tensor: tensor.detach().clone() for tensor in self._tensors()}

    def reset(self) -> None:
        """Brings all of them back."""
        with torch.no_grad():
            for tensor in self._tensors():
                if tensor in self._kept:  # otherwise a forward made it
                    tensor.copy_(self._kept[tensor])
        self.case.model.zero_grad()
        seed_all(self._seed)

    def step(self) -> Step:
        """Forward and backward from here."""
        self.reset()
        begin = time.perf_counter()
        loss = self.case.loss()
        loss.backward()
        if loss.is_cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        found = [None if p.grad is None else p.grad.clone() for p in self.case.model.parameters()]
        return Step(loss.detach(), found, seconds)

    def _tensors(self) -> list[Tensor]:
        return [*self.case.model.parameters(), *self.case.model.buffers()]


def measure(subject: Subject, level: str, steps: int, seed: int, device: str = "cpu") -> Swept:
    """Measures a subject, whose model and batch are made on the device.

    Raises:
        Exception: whatever its forward, or compression, fails with.
    """
    seed_all(seed)
    with torch.device(device):
        case = subject.make()
    model = case.model.to(device)  # some layers make parameters of torch.Tensor(), which is on the CPU
    start = Start(case, seed)
    plain = start.step()
    again = start.step()  # by now the model has made what it makes in its first forward
    repeated = plain.same_gradient(again)
    apart = 0.0 if repeated else relative_error(start.step().filled(), again.filled())
    before = surface(model)

    compress_model(subject, model, level)
    found = [start.step() for _ in range(steps)]
    report = integrations.compression(model).report()
    stepped = optimize(model)
    integrations.restore_model(model)
    errors = [relative_error(step.filled(), again.filled()) for step in found]
    restored = surface(model) == before and is_plain(start.step(), again, apart, min(errors))

    where, share = largest_share(model, found[0], again)
    kept, kept_bytes = most_kept(report)
    swept = Swept(
        ecosystem=subject.ecosystem,
        family=subject.family,
        name=subject.name,
        what=case.what,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        original_bytes=report.original_bytes,
        stored_bytes=report.stored_bytes,
        rows=len(report.rows),
        kept=kept,
        kept_bytes=kept_bytes,
        why=why_not_smaller(report),
        errors=errors,
        where=where,
        share=share,
        repeated=repeated,
        same_loss=all(torch.equal(step.loss, again.loss) for step in found),
        stepped=stepped,
        restored=restored,
        plain_seconds=min(plain.seconds, again.seconds),
        seconds=min(step.seconds for step in found),
    )
    options = easing(level)
    if swept.accurate or not options:
        return swept
    compress_model(subject, model, level, **options)
    found = [start.step() for _ in range(steps)]
    report = integrations.compression(model).report()
    integrations.restore_model(model)
    errors = [relative_error(step.filled(), again.filled()) for step in found]
    return replace(swept, eased_errors=errors, eased_bytes=report.stored_bytes)


def is_plain(found: Step, plain: Step, apart: float, rounded: float) -> bool:
    """Whether a step has the gradient of a plain one: bit for bit, or nearly so where two plain ones differ, as on a
    GPU that adds up in any order.

    Args:
        found: the step.
        plain: the plain one.
        apart: how far two plain ones are from each other; 0 where they are the same.
        rounded: how far a compressed one is from the plain one, of which a model that is restored has nothing.
    """
    if found.same_gradient(plain):
        return True
    return relative_error(found.filled(), plain.filled()) <= min(_APART * apart, rounded / _APART)


def compress_model(subject: Subject, model: nn.Module, level: str, **options: Any) -> None:
    """``compress_model`` of the subject's ecosystem."""
    importlib.import_module(INTEGRATIONS[subject.ecosystem]).compress_model(model, level, **options)


def largest_share(model: nn.Module, found: Step, exact: Step) -> tuple[str, float]:
    """The parameter with the largest part of the gradient's squared error, and that part."""
    pairs = zip(found.filled(), exact.filled(), strict=True)
    errors = [(one - other).square().sum().item() for one, other in pairs]
    largest = max(range(len(errors)), key=errors.__getitem__)
    names = [name for name, _ in model.named_parameters()]
    return names[largest], errors[largest] / sum(errors) if sum(errors) else 0.0


def seed_all(seed: int) -> None:
    """Seeds torch's generator and those of Python and NumPy: some models drop layers, or mask sounds, by these."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global one is what models use


def optimize(model: nn.Module) -> bool:
    """Steps an optimizer; whether each parameter with a gradient other than zero changed, to finite numbers."""
    before = [parameter.detach().clone() for parameter in model.parameters()]
    torch.optim.SGD(model.parameters(), lr=LEARNING_RATE).step()
    return all(
        bool(after.isfinite().all()) and (not moves(after, kept) or not torch.equal(after, kept))
        for after, kept in zip(model.parameters(), before, strict=True)
    )


def moves(parameter: Tensor, kept: Tensor) -> bool:
    """Whether SGD must change a parameter: its gradient is not too small beside it for the dtype."""
    return parameter.grad is not None and not torch.equal(kept - LEARNING_RATE * parameter.grad, kept)


def surface(model: nn.Module) -> list[object]:
    """What is to be the same after ``restore_model``: of each module its class, attributes and hooks, and the keys."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules: Sequence[object] = [
        (name, type(module), sorted(vars(module)), [len(getattr(module, kind)) for kind in hooks])
        for name, module in model.named_modules()
    ]
    return [*modules, list(model.state_dict())]


def most_kept(report: Report) -> tuple[str, int]:
    """The operator and the reason that keep the most bytes exactly, in words, and the bytes."""
    sizes: Counter[str] = Counter()
    for row in report.rows:
        if row.codec in ("kept", "copied"):
            sizes[f"{row.operator or 'unknown'}: {row.why}"] += row.stored_bytes
    return sizes.most_common(1)[0] if +sizes else ("", 0)


def why_not_smaller(report: Report) -> str:
    """The report's reasons for what takes the most bytes, where no fewer are stored; empty otherwise."""
    if report.stored_bytes < report.original_bytes:
        return ""
    reasons: Counter[str] = Counter()
    for row in report.rows:
        if row.stored_bytes and row.why:
            reasons[row.why] += row.stored_bytes
    if not reasons:
        owners = Counter(row.owner for row in report.rows if row.owner)
        return ", ".join(f"{count} x {owner}" for owner, count in owners.most_common())
    return "; ".join(f"{format_bytes(count)}: {why}" for why, count in reasons.most_common(_REASONS))
