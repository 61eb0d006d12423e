"""``Codebook``: what an activation saves, stored as the few bits that tell its derivative."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from actcore import FLOATS, Compressed, Layout
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.noise import slope_noise
from integrations.policies.codebooks.options import constant
from integrations.policies.codebooks.representatives import Representatives, representatives
from integrations.policies.codebooks.slopes import list_numbers
from integrations.policies.codebooks.tables import table

_STRETCH = 1024  # elements that share a byte, which tells whether one of them is not finite
# Elements are restored in parts of at least this size, at most so many parts. Restoring takes two parts beside the
# tensor.
_PART, _PARTS = 1 << 18, 16

# The deviation of inputs for which noise is given if nothing is known of them. Activations of an untrained ViT have
# 0.3, those of trained ones 1 to 2, where the noise is smaller.
_SPREAD = 0.5


@dataclass(frozen=True)
class Codebook:
    """Stores the index of the interval that each element is in, and restores an element at which the slope is that
    interval's level.

    A codec for what torch's own activation saves for backward: its gradient becomes that of "Few-bit backward" (Novikov
    et al., ICML 2023), whichever layer or library calls the activation. The restored tensor serves nothing else.

    * An element that is NaN or infinite, and the others of its stretch of 1024 in memory order, are restored as NaN.
    * Nothing is drawn: seed and stream do not matter.
    * The second derivative at the restored elements means nothing.

    The stored form takes ``ceil(bits * n / 8)`` bytes and one more for each 1024 elements.

    Args:
        function: a smooth one of ``FUNCTIONS``.
        bits: 1 to 8.
        parameters: in torch's order; empty for the defaults.
        weight: as for ``table``.
        result: whether the result is saved, as torch saves that of sigmoid and tanh, and not the input.
    """

    function: str
    bits: int = 3
    parameters: tuple[float, ...] = ()
    weight: str = "uniform"
    result: bool = False

    def __post_init__(self) -> None:
        parameters = list_numbers(self.parameters)
        table(self.function, self.bits, parameters, self.weight)  # raises for arguments that it does not know
        object.__setattr__(self, "parameters", parameters or tuple(FUNCTIONS[self.function].defaults.values()))

    def stored_bytes(self, numel: int) -> int:
        """Bytes of the payload for ``numel`` stored elements."""
        return -(-numel * self.bits // 8) + -(-numel // _STRETCH)

    @property
    def noise(self) -> float:
        """The noise on what is stored that would harm the gradient as much (``slope_noise``), for usual inputs."""
        return slope_noise(self.function, self.bits, self.parameters, self.weight, _SPREAD)

    def representatives(self, dtype: torch.dtype) -> Representatives | None:
        """The steps of what is saved, and an element for each; ``None`` if some level has none in this dtype."""
        return representatives(self.function, self.bits, self.parameters, self.weight, self.result, dtype)

    def compress(self, tensor: Tensor, *, seed: int | Tensor = 0, stream: int | Tensor = 0) -> Compressed:
        """``Float["..."] -> (codes: UInt8[ceil(bits*n/8) + ceil(n/1024)],)``.

        Raises:
            TypeError: the tensor is not of a dtype of ``actcore.FLOATS``.
            ValueError: torch's backward of the function reads something else, or a level is not an attained slope in
                that dtype.
        """
        if tensor.dtype not in FLOATS:
            raise TypeError(f"{self!r} takes floating-point numbers, got {tensor.dtype}; keep the tensor as it is")
        found = self._representatives(tensor.dtype)
        elements = Layout.of(tensor).flatten(tensor.detach())
        codes = torch.ops.actcore.stepwise_codes(
            elements, constant(found.boundaries, elements), self.bits, found.even, "nonfinite"
        )
        return Compressed.of(self, tensor, [codes])

    def decompress(self, compressed: Compressed) -> Tensor:
        """A tensor at which the activation's own derivative has the levels."""
        [codes] = compressed.payload
        numel, dtype = compressed.layout.stored_numel, compressed.dtype
        found = self._representatives(dtype)
        if codes.numel() != self.stored_bytes(numel):
            raise ValueError(
                f"the payload of {compressed!r} must hold {self.stored_bytes(numel)} bytes, got {codes.numel()}; it is "
                "damaged or truncated: store the tensor again"
            )
        part = max(_PART, -(-numel // (_PARTS * _STRETCH)) * _STRETCH)
        ones = codes.new_ones(min(part, numel), dtype=dtype)
        elements = constant(found.elements, ones)
        if numel <= part:
            flat = torch.ops.actcore.stepwise_backward(ones, codes, elements, self.bits, True)
            return compressed.layout.restore(flat)
        flat = codes.new_empty(numel, dtype=dtype)
        guards = -(-numel * self.bits // 8)
        for begin in range(0, numel, part):
            end = min(begin + part, numel)
            own = torch.cat(
                [
                    codes[begin * self.bits // 8 : -(-end * self.bits // 8)],
                    codes[guards + begin // _STRETCH : guards + -(-end // _STRETCH)],
                ]
            )
            flat[begin:end] = torch.ops.actcore.stepwise_backward(ones[: end - begin], own, elements, self.bits, True)
        return compressed.layout.restore(flat)

    def __str__(self) -> str:
        return f"{self.bits}-bit derivative"

    def _representatives(self, dtype: torch.dtype) -> Representatives:
        found = self.representatives(dtype)
        if found is None:
            what = "result" if self.result else "input"
            raise ValueError(
                f"{self!r} must have only levels that torch's own backward of {self.function} can produce from its "
                f"{what} in {dtype}, but has others; use fewbit.functional.{self.function}, whose own backward "
                "supports them"
            )
        return found
