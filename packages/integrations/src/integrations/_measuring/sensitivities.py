"""``sensitivities``: how much each saved tensor's rounding changes the gradient, from one extra step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from actcore import current_rank
from integrations._adaptive.measurement import Measurement
from integrations._adaptive.one_step import OneStep
from integrations._adaptive.probe import Probe
from integrations._calls.tensors import tensors_in
from integrations._common.modules import ModulePaths
from integrations._common.progress import stage
from integrations._runtime.session import Session
from integrations._runtime.specs import Specs
from integrations._step.capturing.loss import Loss
from integrations.rules.levels import LEVELS
from integrations.rules.policy import FixedBits

# Stored in this way, the step measures as well as one that keeps everything, in a third of its memory.
_STORED = replace(LEVELS["L1.1"], attention_bits=8, min_bytes=0)
_IMITATED = 4
"""The width whose rounding is imitated: the middle of those from which plans choose."""

# An adaptive level needs each tensor's sensitivity right, once in a thousand steps. A plan's whole error is measured
# afterwards, and corrected: for a Llama of 4 layers, the sum is 2 % off what 16 hops give, in the time of 14 steps
# instead of 48.
_HOPS = 1


def sensitivities(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss: Loss | None = None,
) -> Measurement | None:
    """What one step with these inputs tells; it takes as long as some 14 steps. ``None`` if it cannot be measured. The
    model is as before afterwards.

    Args:
        model, args, kwargs, loss: as for ``measured_error``.
    """
    stage("measuring how much rounding changes the gradient")
    probe = Probe(_IMITATED, _STORED.seed, 0, hops=_HOPS)
    try:
        OneStep(model, args, kwargs, loss).gradients(_probed(probe), _let_go)
    except (RuntimeError, MemoryError):  # such as a lack of memory, of which the step itself may have enough
        found = None
    else:
        found = probe.measurement
    return found if found is not None and found.finite and found.tensors else None


def _let_go(place: int, gradient: Tensor) -> None:
    """Frees a gradient: the probe has looked at it."""


def _probed(probe: Probe) -> Any:
    @contextmanager
    def around(model: nn.Module, given: Any) -> Iterator[None]:
        specs = Specs(FixedBits(_STORED))
        session = Session(model, ModulePaths(model), specs, _STORED, 0, current_rank(), observer=probe)
        with session:
            session.owners.add_inputs(tensors_in(given))
            yield

    return around
