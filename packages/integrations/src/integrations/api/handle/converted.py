"""``Converted``: the handle of a model that was converted by ``QModule`` or ``fewbit.convert``, but not compressed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from integrations import fewbit, qmodules
from integrations.api.handle.compression import Compression
from integrations.api.handle.gradient_error import GradientError
from integrations.policies.levels import LEVELS
from integrations.report import Report
from integrations.runtime.first_forward import first_records

_NOTE = (
    "The report lists the tensors that converted layers stored in the first training forward. It does not list "
    "tensors that other operators save: compress_model with layers=, activations= or linear= converts the same "
    "layers and lists all saved tensors."
)


class Converted(Compression):
    """Handle of a model with converted layers, at level L0. It is not attached to the model, and no forward runs under
    it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, "L0", LEVELS["L0"])
        self._records = first_records(model)
        self._kept = model

    @property
    def title(self) -> str:
        """Return the calls that converted the model."""
        done = ("QModule", qmodules.is_converted(self.model)), ("fewbit.convert", fewbit.is_converted(self.model))
        return " and ".join(call for call, is_done in done if is_done)

    def gradient_error(self, closure: Callable[[], Any] | None = None) -> GradientError:
        """Not available for a model that is only converted.

        Raises:
            ValueError: always.
        """
        raise self._needs_compress_model("gradient_error")

    def monitor(self, *args: Any, **options: Any) -> None:
        """Not available for a model that is only converted.

        Raises:
            ValueError: always.
        """
        raise self._needs_compress_model("monitor")

    def _needs_compress_model(self, name: str) -> ValueError:
        return ValueError(
            f"handle.{name} needs a compressed model, got a {type(self.model).__name__} that was only converted by "
            f"{self.title}; call integrations.compress_model(model, level='L0') first, which compresses nothing else"
        )

    def report(self, closure: Callable[[], Any] | None = None) -> Report:
        """Report the tensors that exchanged layers stored in the first training forward after the conversion.

        Raises:
            TypeError: the closure is not callable.
            ValueError: a closure is given. Storing by layers cannot be timed.
        """
        report = super().report(closure)
        # Peaks need all saved tensors.
        return replace(report, note=_NOTE if report.rows else "", peak_source="", peak_bytes=0, original_peak_bytes=0)


def is_converted(model: nn.Module) -> bool:
    """Return whether ``QModule`` or ``fewbit.convert`` converted this very model."""
    return qmodules.is_converted(model) or fewbit.is_converted(model)
