"""``Converted``: the handle of a model that ``QModule`` or ``fewbit.convert`` changed, and nobody compressed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from integrations import fewbit, qmodules
from integrations._handle.compression import Compression
from integrations._runtime.first_forward import first_records
from integrations.report import Report
from integrations.rules.levels import LEVELS

_NOTE = (
    "The report has the tensors that exchanged layers stored in the first training forward. It has none that other "
    "operators save: compress_model with layers=, activations= or linear= exchanges the same layers and counts all."
)


class Converted(Compression):
    """The handle of a model with layers that store for themselves, at level L0. It is not attached to the model, and no
    forward runs under it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, "L0", LEVELS["L0"])
        self.records = first_records(model)
        self._kept = model

    @property
    def title(self) -> str:
        """The calls that converted the model."""
        done = ("QModule", qmodules.is_converted(self.model)), ("fewbit.convert", fewbit.is_converted(self.model))
        return " and ".join(call for call, is_done in done if is_done)

    def report(self, closure: Callable[[], Any] | None = None) -> Report:
        """What the exchanged layers stored in the first training forward after the conversion.

        Raises:
            TypeError: the closure cannot be called.
            ValueError: there is a closure: what layers store for themselves is not timed.
        """
        report = super().report(closure)
        # The peaks take all that is saved.
        return replace(report, note=_NOTE if report.rows else "", peak_source="", peak_bytes=0, original_peak_bytes=0)


def is_converted(model: nn.Module) -> bool:
    """Return whether ``QModule`` or ``fewbit.convert`` changed this very model."""
    return qmodules.is_converted(model) or fewbit.is_converted(model)
