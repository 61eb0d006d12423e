"""Dropout."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import actcore
from integrations._utils.in_place import placed
from integrations.qmodules.layers.activations import DTYPES
from integrations.qmodules.layers.base import QLayer


class QDropout(QLayer, nn.Dropout):
    """``torch.nn.Dropout`` that keeps one bit per element.

    Its noise is that of ``actcore.dropout``, with a seed from torch's generator. So ``torch.manual_seed`` determines
    it, but the zeros differ from torch's own with that seed. The probability is rounded to a multiple of 2**-16.
    """

    counterpart = nn.Dropout
    _rounds = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._begin(None, 0)

    def forward(self, input: Tensor) -> Tensor:
        if not self._stores(input) or input.dtype not in DTYPES:
            return super().forward(input)
        return placed(actcore.dropout(input, self.p), input, self.inplace)
