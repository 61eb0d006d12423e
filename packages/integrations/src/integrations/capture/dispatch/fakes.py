"""``Fakes``: torch's mode of tensors without elements, which knows what a CPU computes and torch's mode refuses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensorMode

_GROUPED = "aten::_grouped_mm"  # of experts: torch takes it without elements in bfloat16 alone
_REFUSED = (torch.float32, torch.float16)


class Fakes(FakeTensorMode):
    """A mode in which tensors have no elements, but for those that come from outside."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        given = dict(kwargs or {})
        dtype = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if dtype not in _REFUSED or func._schema.name != _GROUPED:
            return super().__torch_dispatch__(func, types, args, given)
        with self:
            narrow = [one.to(torch.bfloat16) if _has_fractions(one) else one for one in args]
            made = func(*narrow, **given)
            return torch.empty_strided(made.shape, made.stride(), dtype=dtype, device=made.device)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from logging a traceback if an operator fails on this thread's fake tensors. The capture then uses
    real tensors, and says why."""
    logger, thread = logging.getLogger(FakeTensorMode.__module__), threading.get_ident()

    def is_told(record: logging.LogRecord) -> bool:
        return record.thread != thread or not record.exc_info

    logger.addFilter(is_told)
    try:
        yield
    finally:
        logger.removeFilter(is_told)


def _has_fractions(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
