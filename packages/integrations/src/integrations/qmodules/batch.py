"""Which samples of the data set a batch holds."""

from __future__ import annotations

import torch
from torch import Tensor


class Batch:
    """The places of a batch's samples in the data set, checked and brought to a device once for all layers.

    Args:
        indices: integers, a tensor or a sequence. On the CPU they are checked without waiting for a device.

    Raises:
        TypeError: they are no integers.
    """

    def __init__(self, indices: object) -> None:
        given = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        if given.numel() and (given.is_floating_point() or given.is_complex() or given.dtype is torch.bool):
            raise TypeError(f"batch must hold the samples' places in the data set, integers, got {given.dtype}")
        self.indices = given.detach().to(torch.int64).flatten()
        self._checked = 0
        self._moved: dict[torch.device, Tensor] = {}

    def __len__(self) -> int:
        return self.indices.numel()

    def on(self, device: torch.device, num_samples: int) -> Tensor:
        """``Int64[Tensor, "batch"]`` on the device.

        Raises:
            ValueError: an index is negative, or not below ``num_samples``.
        """
        if num_samples != self._checked and len(self):
            low, high = (int(bound) for bound in self.indices.aminmax())
            if low < 0 or high >= num_samples:
                raise ValueError(
                    f"num_samples must exceed every index of the batch, from 0 to {num_samples - 1} here, got "
                    f"num_samples={num_samples} and the index {low if low < 0 else high}; set QScheme.num_samples or "
                    "config.num_samples to the size of the training set before the first forward"
                )
            self._checked = num_samples
        if device not in self._moved:
            indices = self.indices
            if device.type == "cuda" and not indices.is_cuda:
                indices = indices.pin_memory()
            self._moved[device] = indices.to(device, non_blocking=True)
        return self._moved[device]
