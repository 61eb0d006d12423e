"""Gated activations as layers."""

from __future__ import annotations

from torch import Tensor, nn

from integrations._utils.unscriptable import Unscriptable
from integrations.fewbit.functional import gates
from integrations.policies.codebooks.options import check_approximate, check_options


class GLU(Unscriptable, nn.GLU):
    """``torch.nn.GLU``, which keeps only its input; with ``bits``, three times that many bits per output element.

    Args:
        bits: see ``fewbit.functional.swiglu``.
    """

    def __init__(self, dim: int = -1, *, bits: int | None = None) -> None:
        check_options(bits=bits)
        super().__init__(dim)
        self.bits = bits

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        return gates.glu(input, other, self.dim, bits=self.bits if self.training else None)

    def extra_repr(self) -> str:
        """torch's, and the bits."""
        return super().extra_repr() + ("" if self.bits is None else f", bits={self.bits}")


class Gate(Unscriptable):
    """``act(gate) * value`` of one tensor, split in half, or of two.

    Args:
        dim: where one tensor is split.
        bits: see ``fewbit.functional.swiglu``; ``None`` is exact.
        gate_first: whether the gate is the first of the two.
    """

    def __init__(self, dim: int = -1, *, bits: int | None = None, gate_first: bool = True) -> None:
        check_options(bits=bits)
        super().__init__()
        self.dim, self.bits, self.gate_first = dim, bits, gate_first

    def extra_repr(self) -> str:
        """The arguments that are not the defaults."""
        shown = [f"dim={self.dim}"]
        if self.bits is not None:
            shown.append(f"bits={self.bits}")
        if not self.gate_first:
            shown.append("gate_first=False")
        return ", ".join(shown)

    @property
    def _bits(self) -> int | None:
        return self.bits if self.training else None


class SwiGLU(Gate):
    """``silu(gate) * value``: see ``fewbit.functional.swiglu``."""

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        return gates.swiglu(input, other, self.dim, bits=self._bits, gate_first=self.gate_first)


class GEGLU(Gate):
    """``gelu(gate) * value``: see ``fewbit.functional.geglu``."""

    def __init__(
        self, dim: int = -1, approximate: str = "none", *, bits: int | None = None, gate_first: bool = True
    ) -> None:
        super().__init__(dim, bits=bits, gate_first=gate_first)
        check_approximate(approximate)
        self.approximate = approximate

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        return gates.geglu(input, other, self.dim, self.approximate, bits=self._bits, gate_first=self.gate_first)

    def extra_repr(self) -> str:
        """The arguments that are not the defaults."""
        return super().extra_repr() + ("" if self.approximate == "none" else f", approximate={self.approximate!r}")


class ReGLU(Gate):
    """``relu(gate) * value``: see ``fewbit.functional.reglu``."""

    def forward(self, input: Tensor, other: Tensor | None = None) -> Tensor:
        return gates.reglu(input, other, self.dim, bits=self._bits, gate_first=self.gate_first)
