"""Which samples of the data set a batch holds."""

from __future__ import annotations

import torch
from torch import Tensor

from integrations._utils.warn import warn
from integrations.qmodules.config import config


class Batch:
    """The places of a batch's samples in the data set, checked and brought to a device once for all layers.

    Args:
        indices: integers, a tensor or a sequence. On the CPU they are checked without waiting for a device.
        before: the batch whose place this one takes, which has been retired.

    Raises:
        TypeError: they are no integers.
    """

    def __init__(self, indices: object, before: Batch | None = None) -> None:
        try:
            given = indices if isinstance(indices, Tensor) else torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError) as error:  # whichever torch raises
            raise TypeError(
                f"batch must hold the integer indices of the samples in the data set, got {indices!r}; "
                "qmodules.DataLoader returns them with each batch"
            ) from error
        if given.numel() and (given.is_floating_point() or given.is_complex() or given.dtype is torch.bool):
            raise TypeError(f"batch must hold the integer indices of the samples in the data set, got {given.dtype}")
        self.indices = given.detach().to(torch.int64).flatten()
        self._asked: bool = before is not None and before._asked
        self._told: bool = before is not None and before._told
        self._fits = False
        self._sizes: set[int] = set()  # of inputs that it did not fit
        self._checked = 0
        self._moved: dict[torch.device, Tensor] = {}

    def __len__(self) -> int:
        return self.indices.numel()

    def of(self, samples: int, device: torch.device, num_samples: int) -> Tensor | None:
        """``on`` for an input of so many samples; ``None`` where it has another number of them, as a head's may."""
        self._asked = True
        if samples != len(self):
            self._sizes.add(samples)
            return None
        self._fits = True
        return self.on(device, num_samples)

    def retire(self) -> None:
        """Warns, once for a row of batches, where these indices did nothing: when others take their place."""
        if self._told:
            return
        if self._sizes and not self._fits:
            self._told = True
            sizes = ", ".join(map(str, sorted(self._sizes)))
            warn(
                f"batch has {len(self)} indices, but the layers' inputs had {sizes} samples, so per-sample gradients "
                "were neither used nor recorded; set QScheme.batch to one index for each sample of the batch"
            )
        elif not self._asked and config.use_gradient:
            self._told = True
            warn(
                "batch was set, but no layer used it, although config.use_gradient is on: QModule reads config when it "
                "converts a model without a level. Set config before that, or call "
                "QModule(model, level, use_gradient=True)"
            )

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
