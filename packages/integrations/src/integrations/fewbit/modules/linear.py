"""Linear layers that keep a sketch or a sample of their input."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from integrations._utils.layer_replacement import StandIn
from integrations._utils.unscriptable import Unscriptable
from integrations.fewbit.functional.column_rows import require_features, sampled_linear
from integrations.fewbit.functional.linear import new_double_backward, require_one_source, sketched_linear
from integrations.fewbit.sketches import Sketching, drawn_key, seeded_key
from integrations.fewbit.sketches.keys import next_stream
from integrations.tracing.double_backward import DoubleBackward


class _Noisy(Unscriptable):
    """Where a layer's noise comes from.

    Attributes:
        generator: draws the noise; ``None`` for torch's own.
        seed: decides the noise in a generator's place.
        double_backward: records whether weights' gradients are differentiated. The layers of one conversion share it.
    """

    generator: torch.Generator | None
    seed: int | None
    double_backward: DoubleBackward | None = None  # as in layers that were pickled without it

    def _begin_noise(self, generator: torch.Generator | None, seed: int | None) -> None:
        require_one_source(seed, generator)
        self.generator, self.seed = generator, seed
        self.double_backward = new_double_backward()

    def _key(self, x: Tensor) -> Tensor:
        if self.seed is None:
            return drawn_key(x, self.generator)
        return seeded_key(x.device, self.seed, next_stream(x, self.seed))


class _NoisyLinear(_Noisy, StandIn, nn.Linear):
    """What the layers in the place of ``nn.Linear`` have: the layer of torch that they came from."""

    counterpart = nn.Linear
    _own = ("generator", "seed", "double_backward", "sketching", "proj_dim")

    @classmethod
    def _of(cls, linear: nn.Linear) -> Self:
        cls._require_counterpart(linear, "linear")
        return cls._in_place_of(linear)

    def to_linear(self) -> nn.Linear:
        """The layer of torch, with the very parameters, buffers and hooks: the inverse of ``from_linear``."""
        linear = self._to_counterpart()
        assert isinstance(linear, nn.Linear)
        return linear


class RandomizedLinear(_NoisyLinear):
    """``torch.nn.Linear`` that keeps a random sketch of its input in training, which takes a fraction of the memory.

    ::

        layer = RandomizedLinear(768, 3072, proj_dim_ratio=0.2)     # keeps a fifth of the input

    Output, input gradient and bias gradient are those of ``nn.Linear``; the weight's gradient is right on average. See
    ``fewbit.functional.linear_randomized`` for the method and its options, and ``fewbit.variance`` for the variance.
    Each forward draws a new sketch. In ``eval()``, without gradients and with a frozen weight the layer is
    ``nn.Linear``.

    Args:
        in_features, out_features, bias, device, dtype: as in ``nn.Linear``.
        proj_dim_ratio: rows of the sketch as a share of the tokens. Give either this or ``proj_dim``.
        proj_dim: rows of the sketch.
        proj_dim_min, proj_dim_max: bounds of the rows.
        matmul: ``"gaussian"``, ``"rademacher"``, ``"dct"``, ``"dft"`` or ``"rows"``.
        generator: draws the seeds of the sketches; ``None`` takes torch's generator of the input's device. A copy of
            the layer has a copy of it, which draws the same numbers.
        seed: any int, in place of a generator. Layers with equal seeds share one counter of the process, so no two
            forwards share a sketch, and ``torch.manual_seed`` has no effect.
        block_size: the largest number of tokens in a block of the sketch; ``None`` for one block.
        bits: 1 to 8 stores the sketch in that many bits per element.

    Attributes:
        sketching: the checked options; you may set another object between forwards.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option is out of range; the size of the sketch is given twice or not at all; seed and generator
            are both given.
    """

    sketching: Sketching

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        proj_dim_ratio: float | None = None,
        proj_dim: int | None = None,
        proj_dim_min: int | None = None,
        proj_dim_max: int | None = None,
        matmul: str = "gaussian",
        generator: torch.Generator | None = None,
        seed: int | None = None,
        block_size: int | None = 1024,
        bits: int | None = None,
    ) -> None:
        sketching = Sketching(proj_dim_ratio, proj_dim, proj_dim_min, proj_dim_max, matmul, block_size, bits)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.sketching = sketching
        self._begin_noise(generator, seed)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> Self:
        """Return the randomized layer of a linear layer. Both share the same parameters, buffers and hooks.

        Args:
            linear: a layer of exactly the class ``nn.Linear``.
            generator, seed: as in the constructor.
            options: ``proj_dim_ratio`` and the other options of the constructor.

        Raises:
            TypeError: the layer is of another class, or an option is unknown.
            ValueError: an option is out of range.
        """
        layer = cls._of(linear)
        layer.sketching = Sketching(**options)
        layer._begin_noise(generator, seed)
        return layer

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return sketched_linear(
            input, self.weight, self.bias, self.sketching, lambda: self._key(input), self.double_backward
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.sketching}"


LinearGRP = RandomizedLinear
"""FewBit's other name of ``RandomizedLinear``."""


class RandomizedConv1D(_Noisy):
    """transformers' ``Conv1D``, a linear layer with a transposed weight, that keeps a sketch of its input in training.

    Args:
        nf: output features.
        nx: input features.
        device, dtype: device and dtype of the parameters.
        generator, seed: as in ``RandomizedLinear``.
        options: ``proj_dim_ratio`` and the other options of ``RandomizedLinear``.

    Raises:
        TypeError: an option has the wrong type.
        ValueError: an option is out of range; the size of the sketch is given twice or not at all; seed and generator
            are both given.
    """

    def __init__(
        self,
        nf: int,
        nx: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight = nn.Parameter(torch.empty(nx, nf, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(nf, device=device, dtype=dtype))
        nn.init.normal_(self.weight, std=0.02)  # as in GPT-2
        self.sketching = Sketching(**options)
        self._begin_noise(generator, seed)

    def forward(self, x: Tensor) -> Tensor:
        """``Float["... nf"]`` of ``Float["... nx"]``."""
        if not self.training:
            return torch.addmm(self.bias, x.view(-1, self.nx), self.weight).view(*x.shape[:-1], self.nf)
        return sketched_linear(
            x, self.weight.t(), self.bias, self.sketching, lambda: self._key(x), self.double_backward
        )

    def extra_repr(self) -> str:
        return f"nf={self.nf}, nx={self.nx}, {self.sketching}"


class LinearCRS(_NoisyLinear):
    """``torch.nn.Linear`` that keeps a random sample of its input's features in training.

    See ``fewbit.functional.linear_crs``. In ``eval()``, without gradients and with a frozen weight it is ``nn.Linear``.

    Args:
        in_features, out_features, bias, device, dtype: as in ``nn.Linear``.
        proj_dim: number of features to keep; by default half of them. If it is at least ``in_features``, the input
            itself is kept.
        generator, seed: as in ``RandomizedLinear``.

    Raises:
        TypeError: ``proj_dim`` is not an int.
        ValueError: ``proj_dim`` is below 1; seed and generator are both given.
    """

    proj_dim: int

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        proj_dim: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._begin(proj_dim, generator, seed)

    @classmethod
    def from_linear(
        cls,
        linear: nn.Linear,
        *,
        proj_dim: int | None = None,
        generator: torch.Generator | None = None,
        seed: int | None = None,
    ) -> Self:
        """Return the sampling layer of a linear layer: see ``RandomizedLinear.from_linear``."""
        layer = cls._of(linear)
        layer._begin(proj_dim, generator, seed)
        return layer

    def _begin(self, proj_dim: int | None, generator: torch.Generator | None, seed: int | None) -> None:
        self.proj_dim = max(self.in_features // 2, 1) if proj_dim is None else proj_dim
        require_features("proj_dim", self.proj_dim)
        self._begin_noise(generator, seed)

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        return sampled_linear(
            input, self.weight, self.bias, self.proj_dim, lambda: self._key(input), self.double_backward
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, proj_dim={self.proj_dim}"
