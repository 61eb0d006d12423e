"""The models that are measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch

import integrations
from bench.models.networks import bert, gcn, llama, resnet18, resnet50, vit_tiny
from bench.models.subject import Case
from bench.runner.gradients import backward

MODELS: Mapping[str, Callable[[], Case]] = MappingProxyType(
    {
        "resnet18": partial(resnet18, 16),
        "resnet50": partial(resnet50, 16),
        "vit_tiny": partial(vit_tiny, 4),
        "bert": partial(bert, 4, 0.1),
        "llama": partial(llama, 4),
        "gcn": gcn,
    }
)
"""By the name that the command line knows."""


def made(name: str) -> tuple[Case, torch.Tensor]:
    """One of ``MODELS``, the same at each call, and a state of torch's generator from which its steps start.

    Raises:
        MissingLibrary: the model's library is not installed.
    """
    torch.manual_seed(0)
    return MODELS[name](), torch.get_rng_state()


def compressed(name: str, level: str) -> tuple[Case, torch.Tensor, integrations.Compression]:
    """The same at a level, with its handle; at an adaptive one after two steps, in which it has made its plan."""
    case, generator = made(name)
    handle = integrations.compression(integrations.compress_model(case.model, level))
    if handle.level.adaptive:
        for _ in range(2):
            backward(case, generator)
        assert handle.plan is not None
    return case, generator, handle
