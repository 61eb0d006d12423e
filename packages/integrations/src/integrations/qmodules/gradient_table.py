"""The norm of the gradient that each sample of a data set had when it was last seen."""

from __future__ import annotations

import torch
from torch import Tensor


class GradientTable:
    """Squared gradient norms by sample, of one layer's output: what ``use_gradient`` remembers.

    An entry is a moving average, half old and half new. bfloat16 has the range of float32 at half its bytes: 2 bytes a
    sample and layer, on the layer's device.

    Args:
        num_samples: the size of the data set.
    """

    def __init__(self, num_samples: int) -> None:
        self.num_samples = num_samples
        self._values: Tensor | None = None

    def lookup(self, indices: Tensor) -> Tensor:
        """``Float32[Tensor, "batch"]``; samples not seen yet have the mean of those in the batch that have been, and 1
        where none has.

        Args:
            indices: ``Int64[Tensor, "batch"]`` on the layer's device, each below ``num_samples``.
        """
        known = self._on(indices.device)[indices].float()
        seen = known > 0
        mean = torch.where(seen, known, 0).sum() / seen.sum()
        return torch.where(seen, known, mean.nan_to_num(1.0))

    def update(self, indices: Tensor, squares: Tensor) -> None:
        """Takes note of a batch's squared norms; but for what is not finite, as after an overflow."""
        values = self._on(indices.device)
        known = values[indices].float()
        fresh = torch.where(known > 0, (known + squares) / 2, squares)
        values[indices] = torch.where(fresh.isfinite(), fresh, known).to(values.dtype)

    def _on(self, device: torch.device) -> Tensor:
        if self._values is None:
            self._values = torch.zeros(self.num_samples, dtype=torch.bfloat16, device=device)
        elif self._values.device != device:
            self._values = self._values.to(device)
        return self._values
