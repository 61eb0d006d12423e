"""Batch normalisation across ranks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from integrations.qmodules.functions.sync_norm import SyncBatchNorm
from integrations.qmodules.layers.norms import AnyBatchNorm


class QSyncBatchNorm(AnyBatchNorm, nn.SyncBatchNorm):
    """``torch.nn.SyncBatchNorm`` whose input is stored in a few bits.

    It trains on the CPU as well, which torch's refuses. With one rank, or without a process group, it is a
    ``QBatchNorm`` of any number of dimensions.
    """

    counterpart = nn.SyncBatchNorm

    def _may_normalize(self, input: Tensor) -> bool:
        return self._group() is not None or super()._may_normalize(input)

    def _normalize(
        self, x: Tensor, statistics: tuple[Tensor | None, Tensor | None], momentum: float, saving: Any
    ) -> Tensor:
        group = self._group()
        if group is None:
            return super()._normalize(x, statistics, momentum, saving)
        output: Tensor = SyncBatchNorm.apply(x, self.weight, self.bias, *statistics, momentum, self.eps, group, saving)
        return output

    def _group(self) -> Any:
        """The ranks that share statistics; ``None`` for one alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.process_group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None
