"""``FewBitActivation``: what the layers share."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from integrations._utils.unscriptable import Unscriptable
from integrations.policies.codebooks.options import DEFAULT_BITS, Options, check_options
from integrations.policies.codebooks.steps import StepTable


class FewBitActivation(Unscriptable):
    """A subclass of a layer of torch, with its arguments, and keywords beside them.

    In ``eval()`` it *is* the layer of torch. It has no parameters and no buffers.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Gives the class the signature of its layer of torch, with the keywords."""
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls).parameters.values()
        torchs = next((base for base in cls.__mro__ if base.__module__.startswith("torch.nn")), nn.Module)
        theirs = [
            parameter
            for parameter in inspect.signature(torchs).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        ]
        keywords = [parameter for parameter in own if parameter.kind is parameter.KEYWORD_ONLY]
        cls.__signature__ = inspect.Signature([*theirs, *keywords])  # type: ignore[attr-defined]


class Smooth(FewBitActivation):
    """A layer whose derivative is a step function.

    Args:
        bits: bits of the derivative, 1 to 8; ``None`` for 3, or for as many as ``table`` needs.
        rounding: ``"nearest"`` or ``"stochastic"``, which makes the expected derivative exact.
        table: a ``StepTable`` that replaces the function's own steps.
        weight: the distribution of inputs for which the function's own steps are optimal.
    """

    def __init__(
        self,
        *args: Any,
        bits: int | None = None,
        rounding: str = "nearest",
        table: StepTable | None = None,
        weight: Any = "uniform",
        **kwargs: Any,
    ) -> None:
        check_options(bits=bits, rounding=rounding, table=table, weight=weight)
        super().__init__(*args, **kwargs)
        self.bits = table.bits if table is not None else DEFAULT_BITS if bits is None else bits
        self.rounding, self.table, self.weight = rounding, table, weight

    def extra_repr(self) -> str:
        """torch's, and the bits."""
        own = [f"bits={self.bits}"]
        if self.rounding != "nearest":
            own.append(f"rounding={self.rounding!r}")
        if self.table is not None:
            own.append("table=StepTable")
        elif self.weight != "uniform":
            own.append(f"weight={self.weight!r}")
        return ", ".join(filter(None, [super().extra_repr(), *own]))

    def _options(self) -> Options:
        if self.table is not None:
            return {"table": self.table}
        return {"bits": self.bits, "rounding": self.rounding, "weight": self.weight}  # type: ignore[typeddict-item]


class Piecewise(FewBitActivation):
    """A layer whose derivative is a step function already: torch's gradients, bit for bit, from 1 bit an element.

    Args:
        bits: taken, so that all layers can be built alike, and without effect.
    """

    def __init__(self, *args: Any, bits: int | None = None, **kwargs: Any) -> None:
        check_options(bits=bits)
        super().__init__(*args, **kwargs)
