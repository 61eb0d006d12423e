"""``Fakes``: torch's mode of tensors without elements, which knows what a CPU computes and torch's mode refuses.
``as_on_device``: the strides of results, which a device may give otherwise."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensorMode, OpOverload
from integrations.capture.dispatch.operators import WAITS
from integrations.capture.dispatch.recurrent import RECURRENT, with_workspace

_GROUPED = "aten::_grouped_mm"  # of experts: torch takes it without elements in bfloat16 alone
_REFUSED = (torch.float32, torch.float16)


class Fakes(FakeTensorMode):
    """A mode in which tensors have no elements, but for those that come from outside."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        given = dict(kwargs or {})
        if func._schema.name in WAITS:
            return args[0]  # torch's mode returns another tensor in memory of its own
        dtype = args[0].dtype if args and isinstance(args[0], Tensor) else None
        if dtype not in _REFUSED or func._schema.name != _GROUPED:
            run = partial(super().__torch_dispatch__, func, types, args, given)
            return run() if func._schema.name not in RECURRENT else with_workspace(func, args, run, self._make_bytes)
        with self:
            narrow = [one.to(torch.bfloat16) if _has_fractions(one) else one for one in args]
            made = func(*narrow, **given)
            return torch.empty_strided(made.shape, made.stride(), dtype=dtype, device=made.device)

    def _make_bytes(self, count: int) -> Tensor:
        with self:
            return torch.empty(count, dtype=torch.uint8)


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


_GROUP_NORM = torch.ops.aten.native_group_norm.default
_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def as_on_device(func: OpOverload, args: tuple[Any, ...], out: Any) -> Any:
    """An operator's results on fake tensors, with the strides that they have on real ones.

    A CPU's group norm keeps channels last; torch 2.14's kernel for fake tensors returns channels first.
    """
    if func is not _GROUP_NORM or not isinstance(args[0], Tensor) or args[0].device.type != "cpu":
        return out
    given, last = args[0], _LAST.get(args[0].dim())
    if last is None or given.is_contiguous() or not given.is_contiguous(memory_format=last):
        return out
    return (out[0].contiguous(memory_format=last), *out[1:])
