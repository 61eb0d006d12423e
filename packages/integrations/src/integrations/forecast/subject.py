"""``Subject``: a model by name, and inputs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Subject:
    """A model of which a report is asked for.

    Attributes:
        name: in words, for the title.
        model: on ``meta`` where it could be made so.
        args, kwargs: its inputs.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def made_without_elements(make: Callable[[], nn.Module]) -> nn.Module:
    """The model that ``make`` makes, on ``meta``, where that takes no memory; on the CPU where it looks at numbers that
    it makes, which ``meta`` does not have."""
    try:
        with torch.device("meta"):
            return make()
    except (NotImplementedError, RuntimeError):
        return make()
