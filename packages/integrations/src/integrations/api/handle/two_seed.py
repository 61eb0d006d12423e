"""GACT's own estimator of sensitivity, kept as the reference: one tensor at a time is rounded with another seed.

Liu et al., ICML 2022, Algorithm 1: ``C = 0.5 * |g(seed) - g(seed')|^2 * (2^b - 1)^2``, where the seeds differ in one
tensor's rounding and everything else, dropout included, is the same. It needs a pass a tensor and pair of seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from actcore import SavedTensor
from integrations._utils.random_states import random_states
from integrations.planner.sensitivity.identity import Identity
from integrations.planner.sensitivity.trial_run import trial

if TYPE_CHECKING:
    from integrations.api.handle.compression import Compression


def two_seed_errors(
    handle: Compression, closure: Callable[[], Any], copies: Sequence[Sequence[Identity]], pair: int = 0
) -> list[float]:
    """The squared change of all gradients when one stored copy is rounded anew, halved: an estimate of the expected
    squared error that the copy's rounding makes at its present bits.

    Args:
        handle: a compressed model's handle.
        closure: runs its forward and backward, with the same data each time.
        copies: for each stored copy, the identities of the saved tensors that share it.
        pair: number of the pair of seeds; the same number gives the same result.

    Returns:
        One number for each copy. Times ``(2**bits - 1)**2`` it is GACT's ``C``.
    """
    step = handle.step
    parameters = [parameter for parameter in handle.model.parameters() if parameter.requires_grad]
    errors = []
    try:
        with handle.trial_run(), trial(handle.model) as met:
            restore = random_states()

            def run(names: Sequence[Identity]) -> None:
                # All tensors draw the noise of this pair; the named ones then draw anew.
                restore()
                met.draw_again()
                handle.step = step
                handle._redraw = partial(_number, {*names}, pair)
                for parameter in parameters:
                    parameter.grad = None
                closure()

            run(())
            first = [parameter.grad for parameter in parameters]
            for names in copies:
                run(names)
                change = 0.0
                for parameter, before in zip(parameters, first, strict=True):
                    if before is not None and parameter.grad is not None:
                        # In place, which takes one more copy of the gradients instead of two.
                        difference = parameter.grad.sub_(before)
                        change += torch.linalg.vector_norm(difference, dtype=torch.float64).square().item()
                errors.append(change / 2)
    finally:
        handle._redraw = None
    return errors


def _number(redrawn: Collection[Identity], pair: int, saved: SavedTensor) -> int:
    return 2 * pair + (2 if Identity.of(saved) in redrawn else 1)
