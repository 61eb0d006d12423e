"""What is run: each operator of torch's own database of operators, as a function and in place, on its own samples."""

from __future__ import annotations

import copy
import importlib
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

FUNCTION, IN_PLACE = "function", "in place"
_DATABASE = "torch.testing._internal.common_methods_invocations"
_DTYPES = torch.float32, torch.complex64


class Applied(nn.Module):
    """An operator, called with copies of a sample's tensors.

    What autograd saves is the copies then, which belong to nobody else: a model's own inputs would be left alone.

    Args:
        call: the operator.
        sample: of its database.
        process: what the database does to a result before it is differentiated, such as to leave out the phases of
            eigenvectors, which no gradient may depend on.
        read: whether backward reads the result, as the next layer's would.
    """

    def __init__(self, call: Callable[..., Any], sample: Any, read: bool = False) -> None:
        super().__init__()
        self._call, self._read, self._process = call, read, sample.output_process_fn_grad
        self._leaves, self._spec = tree_flatten((sample.input, sample.args, sample.kwargs))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Those of the sample: what the forward is called with."""
        return tuple(leaf for leaf in self._leaves if isinstance(leaf, Tensor))

    def with_tensors(self, tensors: Iterable[Tensor]) -> Applied:
        """The same, called with others."""
        left = iter(tensors)
        other = copy.copy(self)
        other._leaves = [next(left) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        return other

    def forward(self, *tensors: Tensor) -> Any:
        """What the operator returns; of one that is read, what ``finished`` makes of it, each with its sine taken."""
        left = iter(tensors)
        leaves = [next(left).clone() if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        first, args, kwargs = tree_unflatten(leaves, self._spec)
        returned = self._call(first, *args, **kwargs)
        return [one.sin() for one in self._differentiable(returned)] if self._read else returned

    def finished(self, returned: Any) -> tuple[Tensor, ...]:
        """The results that have a gradient, of what the forward returned."""
        return tuple(returned) if self._read else self._differentiable(returned)

    def _differentiable(self, returned: Any) -> tuple[Tensor, ...]:
        results, _ = tree_flatten(self._process(returned))
        found = (one for one in results if isinstance(one, Tensor) and one.requires_grad)
        return tuple(one if one.layout is torch.strided else one.to_dense() for one in found)


@dataclass(frozen=True)
class Subject:
    """An operator in one of its forms.

    Attributes:
        info: torch's ``OpInfo`` of it.
        form: ``FUNCTION`` or ``IN_PLACE``.
        dtype: of the samples; ``None`` where it has no gradient on a CPU.
    """

    info: Any
    form: str
    dtype: torch.dtype | None

    @property
    def name(self) -> str:
        """As below ``torch``, with the variant if the database has several."""
        variant = self.info.variant_test_name
        return f"{self.info.name} ({variant})" if variant else str(self.info.name)

    @property
    def place(self) -> tuple[str, str, str]:
        """Name, form and dtype."""
        return self.name, self.form, "" if self.dtype is None else str(self.dtype).removeprefix("torch.")

    @property
    def call(self) -> Callable[..., Any]:
        """What is called with a sample's tensors."""
        found: Callable[..., Any] = self.info.op if self.form == FUNCTION else self.info.inplace_variant
        return found

    @property
    def does_not_apply(self) -> str:
        """Why it is not run; empty where it is."""
        if self.dtype is not None:
            return ""
        return "no gradient on a CPU" if self.info.supports_autograd else "no gradient"

    def samples(self, most: int, seed: int) -> list[Any]:
        """The largest first. Where the database has more than ``most``, every second, third, and so on."""
        seed_all(seed)
        with _without_test_case():
            found = list(self.info.sample_inputs("cpu", self.dtype, requires_grad=True))
        if self.form == IN_PLACE:  # a tensor that is broadcast cannot be changed in place
            found = [sample for sample in found if not sample.broadcasts_input]
        found.sort(key=_size, reverse=True)
        return [found[place * len(found) // most] for place in range(most)] if len(found) > most else found


@contextmanager
def _without_test_case() -> Iterator[None]:
    """The database looks through the stack for torch's own test, to note samples there. There is none, and under pytest
    it takes 50 ms to find that out, for each operator twice."""
    with ExitStack() as patches:
        for name in ("common_utils", "opinfo.core"):
            module = importlib.import_module(f"torch.testing._internal.{name}")
            patches.enter_context(patch.object(module, "extract_test_fn", lambda: None))
        yield


def _size(sample: Any) -> int:
    leaves, _ = tree_flatten((sample.input, sample.args, sample.kwargs))
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, Tensor))


def seed_all(seed: int) -> None:
    """Seeds all generators that samples and operators draw from."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global one is what some samples draw from


@cache
def subjects() -> tuple[Subject, ...]:
    """All that there are, in the database's order. The import takes seconds, and expecttest."""
    return tuple(_subjects(importlib.import_module(_DATABASE).op_db))


def _subjects(infos: list[Any]) -> Iterator[Subject]:
    for info in infos:
        known = info.supported_backward_dtypes("cpu") if info.supports_autograd else ()
        dtypes: list[torch.dtype | None] = [dtype for dtype in _DTYPES if dtype in known]
        yield from (Subject(info, FUNCTION, dtype) for dtype in dtypes or [None])
        if info.inplace_variant is not None and info.supports_inplace_autograd:
            yield from (Subject(info, IN_PLACE, dtype) for dtype in dtypes)
