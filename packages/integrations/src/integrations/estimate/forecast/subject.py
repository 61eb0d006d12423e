"""``Subject``: a model by name, and inputs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Subject:
    """A model for which a report is asked for.

    Attributes:
        name: in words, for the title.
        model: on ``meta`` if it could be made there.
        args, kwargs: its inputs.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def cast(self, dtype: torch.dtype | None) -> Subject:
        """The same with numbers of this dtype; ``None`` leaves theirs."""

        def number(value: Any) -> Any:
            return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value

        if dtype is None:
            return self
        kwargs = {name: number(value) for name, value in self.kwargs.items()}
        return replace(self, args=tuple(map(number, self.args)), kwargs=kwargs)


def made(make: Callable[[], nn.Module], elements: bool) -> nn.Module:
    """The model that ``make`` makes: on ``meta``, where it takes no memory; on the CPU if ``elements`` are asked for,
    or if the model looks at numbers that it makes, which ``meta`` does not have."""
    if elements:
        return make()
    try:
        with torch.device("meta"):
            return make()
    except (NotImplementedError, RuntimeError):
        return make()


def numbers(shape: tuple[int, ...], elements: bool) -> Tensor:
    """An input of normally distributed numbers, or one on ``meta``, which takes no memory."""
    return torch.randn(shape) if elements else torch.empty(shape, device="meta")
