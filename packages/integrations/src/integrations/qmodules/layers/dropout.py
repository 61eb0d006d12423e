"""Dropout."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import actcore
from integrations._utils.in_place import placed
from integrations.qmodules.layers.activations import DTYPES
from integrations.qmodules.layers.base import QLayer


class QDropout(QLayer, nn.Dropout):
    """``torch.nn.Dropout`` that keeps one bit an element.

    Its noise is ``actcore.dropout``'s: a seed from torch's generator, so that ``torch.manual_seed`` decides, but other
    zeros than torch's own with that seed; the probability is a multiple of 2**-16.
    """

    counterpart = nn.Dropout

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def forward(self, input: Tensor) -> Tensor:
        if not self._stores(input) or input.dtype not in DTYPES:
            return super().forward(input)
        return placed(actcore.dropout(input, self.p), input, self.inplace)
