"""Batch normalisation across ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import actcore
from integrations._torch import BatchNorm, sync_norm_check_channels, sync_norm_check_input_dim
from integrations.qmodules.functions.saving import Saving
from integrations.qmodules.functions.sync_norm import SyncBatchNorm
from integrations.qmodules.layers.norms import AnyBatchNorm
from integrations.rules.norms import FEW


class QSyncBatchNorm(AnyBatchNorm, BatchNorm):
    """``torch.nn.SyncBatchNorm`` whose input is stored in a few bits.

    It trains on the CPU as well, which torch's refuses, as does DistributedDataParallel for it: so this one is no
    subclass of it, only of what both are. With one rank, or without a process group, it is a ``QBatchNorm`` of any
    number of dimensions. ``torch.nn.SyncBatchNorm.convert_sync_batchnorm`` comes before ``QModule``.

    Args:
        process_group: the ranks that share statistics; all of them by default.
        group: which of the level's ``bits`` is the layer's average.
        options: what later versions of torch have besides (``bias``).
    """

    counterpart = nn.SyncBatchNorm

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        group: int = 0,
        **options: Any,
    ) -> None:
        options = {"device": device, "dtype": dtype, "group": group, **options}
        super().__init__(num_features, eps, momentum, affine, track_running_stats, **options)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        sync_norm_check_input_dim(self, input)  # asks nothing of it
        sync_norm_check_channels(self, input)

    def _check_non_zero_input_channels(self, input: Tensor) -> None:
        """Done by ``_check_input_dim``; torch's forward asks for it."""

    def _may_normalize(self, input: Tensor) -> bool:
        return self._ranks() is not None or super()._may_normalize(input)

    def _normalize(
        self, x: Tensor, statistics: tuple[Tensor | None, Tensor | None], momentum: float, saving: Saving
    ) -> Tensor:
        ranks = self._ranks()
        if ranks is None:
            return super()._normalize(x, statistics, momentum, saving)
        # The same exchange between ranks, whatever each stores: one may have more elements than another.
        if x.numel() * dist.get_world_size(ranks) <= FEW * x.shape[1]:
            saving = replace(saving, codec=actcore.Raw())
        output: Tensor = SyncBatchNorm.apply(x, self.weight, self.bias, *statistics, momentum, self.eps, ranks, saving)
        return output

    def _torchs(self, input: Tensor) -> Tensor:
        if self.training and input.device.type == "cpu" and self._ranks() is not None:
            return self._normalize(input, self._statistics(), self._count(), Saving(actcore.Raw(), self.precision))
        return nn.SyncBatchNorm.forward(self, input)  # type: ignore[arg-type]

    def _ranks(self) -> Any:
        """The process group that shares statistics; ``None`` for one rank alone."""
        if not (dist.is_available() and dist.is_initialized()):
            return None
        group = self.process_group or dist.group.WORLD
        return group if dist.get_world_size(group) > 1 else None
