"""Part ``time``: forward and backward of ResNet-20 with Q-layers beside torch's own, in turn."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

import torch

from bench.models.data.images import Images
from bench.models.resnet20 import backward, batch_of, resnet20
from bench.runner.clock import in_turn
from bench.suites.vision.results import StepTimes
from integrations import qmodules

BATCH = 128
FORMATS: Mapping[str, torch.memory_format] = MappingProxyType(
    {"contiguous": torch.contiguous_format, "channels last": torch.channels_last}
)
"""Orders of memory, by the name that tables have."""


def measure(order: str, levels: Sequence[str], images: Images, rounds: int) -> StepTimes:
    """Times steps of one batch; at each level after two, in which layers get their bits.

    Args:
        order: of ``FORMATS``.
        levels: names of ``qmodules.LEVELS``.
        images: the batch is of these.
        rounds: that count.
    """
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        plain = resnet20(images.x.shape[1]).to(memory_format=FORMATS[order])
    _, x, y = batch_of(images.x, images.y, BATCH)
    x = x.to(memory_format=FORMATS[order])
    models = [plain, *(qmodules.QModule(copy.deepcopy(plain), level) for level in levels)]
    actions = [partial(backward, model, x, y) for model in models]
    for action in actions:
        for _ in range(2):
            action()
    plain_seconds, *seconds = in_turn(actions, rounds, torch.device("cpu"))
    return StepTimes(order, BATCH, plain_seconds, dict(zip(levels, seconds, strict=True)))
