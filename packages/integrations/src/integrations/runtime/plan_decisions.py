"""``PlanDecision``: what a plan says of a tensor that autograd saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from integrations.runtime.replay_cache import Site
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.storage_policy import StoragePolicy
from integrations.tracing.storage.store import StoredLater


class PlanDecision(NamedTuple):
    """What a plan says of a tensor that autograd saves.

    Attributes:
        way: how the tensor is stored, at once or once it has been recomputed.
        placeholder: called when the tensor will be recomputed. Returns the placeholder that autograd keeps instead, or
            ``None`` if the tensor must be stored now. ``None`` for a tensor that is not recomputed.
        waits: whether the tensor is stored once it has been recomputed. Otherwise the recomputed tensor itself waits
            for its readers.
        aside: whether what backward decides by, such as signs, is stored in the forward even if the tensor is
            recomputed.
    """

    way: StoragePolicy
    placeholder: Callable[[Tensor, StoredLater | None], Packed | None] | None = None
    waits: bool = False
    aside: bool = False


class PlanDecisions(Protocol):
    """What a plan says of the tensors of one forward.

    Attributes:
        values: the plan's number of the memory at each address of a storage; ``None`` where only sites know the
            numbers.
        placeholder: the ``placeholder`` of each ``PlanDecision`` that has one; ``None`` where nothing is recomputed.
        meet: says whether the memory of a tensor, which has no number, is what the running call has made under this
            number, and gives it that; ``None`` where all memory has its number before it is saved.
    """

    @property
    def values(self) -> Mapping[int, int] | None: ...

    @property
    def placeholder(self) -> Callable[[Tensor], Packed | None] | None: ...

    @property
    def meet(self) -> Callable[[torch.UntypedStorage, int, Tensor], bool] | None: ...

    def recomputes(self, tensor: Tensor) -> bool:
        """Return whether backward recomputes the tensor."""

    def of(self, tensor: Tensor, site: Site | None) -> PlanDecision:
        """What the plan says of a tensor that is saved now. ``site`` is the tensor's, if it has one."""
