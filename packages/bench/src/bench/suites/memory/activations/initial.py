"""The error of the gradient that image models have when they are made, before any training."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import integrations
from bench.models.networks import image_model
from bench.runner.gradients import gradient, relative_error
from bench.suites.memory.activations.results import InitialError

MODELS = (
    "resnet18",
    "densenet121",
    "mobilenetv3_small_100",
    "vit_tiny_patch16_224",
    "repvgg_a0",
    "xcit_nano_12_p16_224",
)
"""timm's names of models whose operators differ as much as six models' can."""

LEVELS = ("L1", "L1.1")


def measure(name: str, steps: int, levels: Sequence[str] = LEVELS) -> list[InitialError]:
    """The error at each of some levels in some steps, each with noise of its own, of one of timm's models.

    Raises:
        MissingLibrary: timm is not installed.
    """
    torch.manual_seed(0)
    plain, generator = image_model(name, 4), torch.get_rng_state()
    exact = gradient(plain, generator)
    found = []
    for level in levels:
        torch.manual_seed(0)
        case = image_model(name, 4)
        integrations.compress_model(case.model, level)
        errors = [relative_error(gradient(case, generator), exact) for _ in range(steps)]
        found.append(InitialError(name, level, plain.what, errors))
    return found
