"""``LayerPrecision``: with how many bits a layer stores its input."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

import actcore
from integrations.qmodules.batch import Batch
from integrations.qmodules.device_rows import DeviceRows, rows_of
from integrations.qmodules.gradient_table import GradientTable
from integrations.qmodules.levels import QLevel
from integrations.qmodules.per_sample import range_energies, rounding_profile, sample_bits
from integrations.qmodules.scheme import ModelPrecision, Observation, QBNScheme, QScheme

Kind = Literal["linear", "norm", "other"]

# Forwards from one measurement of a layer's profile to the next: the shape of a distribution changes slowly.
_PROFILE_EVERY = 16

# What the error of a batch norm's input does to all gradients below, in units of what it does to the norm's own weight.
_BELOW = 25.0

_numbers = itertools.count()


@dataclass(frozen=True)
class Token:
    """What a backward needs to know of its forward.

    Attributes:
        energies: ``Float64[Tensor, "rows"]``: what ``range_energies`` found; one row where samples share bits.
        profile: ``Float64[Tensor, "8"]``: see ``rounding_profile``.
        size: elements of a row.
        samples: the size of the batch dimension.
        positions: places of the input, pixels or tokens: its elements over samples and channels.
        precision: of a norm's input: the mean over channels of the inverse of their variance, a scalar.
        indices: the samples' places in the data set, where they count.
    """

    energies: Tensor
    profile: Tensor
    size: int
    samples: int
    positions: float
    precision: Tensor | None
    indices: Tensor | None


class LayerPrecision:
    """The precision of one layer: what its forwards store, and what its backwards tell.

    A layer calls, in this order: ``codec(x)``, ``token()`` and ``stream()`` once in each forward that a backward may
    follow, and ``observe(token, grad_output)`` in the backward of that forward. Under ``torch.compile`` it calls
    ``codec`` alone.

    Attributes:
        level: the level of the model or the one that was set when the layer was built.
        kind: convolutions and linear layers are ``"linear"``, batch normalisations ``"norm"``. ``"other"`` are those that
            ActNN has not, and no model of their variance (LayerNorm, attention): they take 8 bits for every element.
        group: which of ``level.bits`` is the layer's average.
        kernel_locations: places of a convolution's kernel; 1 for a linear layer.
        conv_groups: a convolution's groups.
        channel_dim: the dimension of ``x`` that the weight sums over: 1, or -1 for a linear layer.
        transposed: whether it is a transposed convolution.
        name: the layer's path in its model, which names its noise; empty for a layer built by hand.
        model: what the layers of one converted model share; ``None`` for a layer built by hand.
        bits: the average for the next forward: the level's, until the model has allocated another.
    """

    def __init__(
        self,
        level: QLevel,
        kind: Kind,
        group: int = 0,
        kernel_locations: int = 1,
        conv_groups: int = 1,
        channel_dim: int = 1,
        transposed: bool = False,
    ) -> None:
        if isinstance(group, bool) or not isinstance(group, int):
            raise TypeError(f"group must be an int, got {group!r}")
        if not 0 <= group < len(level.bits):
            raise ValueError(
                f"group must be a place in the level's bits {level.bits}, from 0 to {len(level.bits) - 1}, got "
                f"{group}; set config.activation_compression_bits to one number for each group"
            )
        self.level = level
        self.kind = kind
        self.group = group
        self.kernel_locations = kernel_locations
        self.conv_groups = conv_groups
        self.channel_dim = channel_dim
        self.transposed = transposed
        self.name = ""
        self.model: ModelPrecision | None = None
        self.bits = float(level.bits[group])
        self._number: int | None = None
        self._forwards = 0
        self._profile: tuple[int, Tensor, Tensor | None] | None = None
        self._gradients: GradientTable | None = None
        self._token: Token | None = None

    def codec(self, x: Tensor) -> actcore.Codec | None:
        """How the input ``x`` of this forward is stored; ``None`` keeps it exactly.

        Raises:
            ValueError: the level uses gradients, and there are no indices for the batch, or no ``num_samples``, or an
                index that exceeds it.
        """
        level = self.level
        self._token = None
        inner: actcore.Codec | None = None
        if level.compress and x.is_floating_point() and (level.norms or self.kind != "norm"):
            inner = self._quantiser(x.detach())
        if level.offload:
            return actcore.Offload(inner or actcore.Raw())
        return inner

    def token(self) -> Token | None:
        """What ``observe`` needs to know of the forward whose ``codec`` was asked for last."""
        token, self._token = self._token, None
        return token

    def stream(self) -> int:
        """The stream of this forward's noise: one of its own, which a second run of the program draws again."""
        if not self.name and self._number is None:
            self._number = next(_numbers)
        self._forwards += 1
        stream: int = actcore.stream_of(self.name or f"layer {self._number}", self._forwards, 0)
        return stream

    def observe(self, token: Token | None, grad_output: Tensor) -> None:
        """Learns from the gradient of the layer's output, in the backward of the forward that ``token`` is of."""
        if token is None:
            return
        squares = _squares(grad_output.detach())
        matched = squares.numel() == token.samples
        if token.indices is not None and matched:
            self._table().update(token.indices, squares)
        if not self._allocated:
            return
        if token.indices is None or not matched or token.energies.numel() != token.samples:
            squares = squares.mean()
        assert self.model is not None
        self.model.observe(Observation(self, token.energies * (squares * self._scale(token, grad_output)), token.profile, token.size))

    @property
    def adaptive(self) -> bool:
        """Whether samples get bits of their own."""
        return self.level.norm_adaptive if self.kind == "norm" else self.level.per_sample

    @property
    def _allocated(self) -> bool:
        """Whether the model decides about the average."""
        return self.level.per_layer and self.model is not None

    def _quantiser(self, x: Tensor) -> actcore.Codec:
        level = self.level
        if self.kind == "other":
            return actcore.GroupAffine(8, level.group_size)
        uniform = actcore.GroupAffine(min(int(self.bits), level.initial_bits), level.group_size)
        if torch.compiler.is_compiling() or x.dim() < 2 or not x.numel():
            return uniform  # what a compiled region computes here once would stand for all steps
        samples = x.shape[0]
        # Rows shorter than a group are stored together: bounds for each would take more bytes than bits save.
        own = self.adaptive and samples > 1 and x.numel() // samples >= level.group_size
        if not own and not self._allocated:
            return uniform
        if self._allocated and self.model is not None:
            self.model.settle()
        rows = rows_of(x) if own else rows_of(x[None])
        energies = range_energies(rows, level.group_size)
        profile, precision = self._profile_of(rows, x)
        indices = self._indices(samples, x.device) if level.use_gradient else None
        positions = x.numel() / (samples * x.shape[self.channel_dim])
        self._token = Token(energies, profile, rows.shape[1], samples, positions, precision, indices)
        if not own:
            return actcore.GroupAffine(min(int(self.bits), level.initial_bits), level.group_size)
        if indices is not None:
            energies = energies * self._table().lookup(indices)
        most = level.initial_bits
        total = min(max(math.floor(self.bits * samples + 1e-6), samples), samples * most)
        return DeviceRows(total, level.group_size, sample_bits(energies, profile, total, most))

    def _profile_of(self, rows: Tensor, x: Tensor) -> tuple[Tensor, Tensor | None]:
        kept = self._profile
        if kept is None or self._forwards - kept[0] >= _PROFILE_EVERY or kept[1].device != rows.device:
            precision = _inverse_variance(x) if self.kind == "norm" else None
            kept = self._forwards, rounding_profile(rows, self.level.group_size), precision
            self._profile = kept
        return kept[1:]

    def _scale(self, token: Token, gradient: Tensor) -> float | Tensor:
        """What a unit of rounding variance and a unit of squared output gradient make in the weight's gradient: the
        products of a kernel's place with a position, over those positions and the groups (docs/qmodules.md)."""
        if token.precision is not None:
            return token.precision * (_BELOW * token.samples / gradient.numel())
        positions = token.positions
        if self.transposed:
            positions = gradient.numel() / (gradient.shape[0] * gradient.shape[1])
        return self.kernel_locations / (self.conv_groups * positions)

    def _indices(self, samples: int, device: torch.device) -> Tensor | None:
        """The batch's places in the data set; ``None`` for an input of another batch dimension, such as a head's."""
        scheme = QBNScheme if self.kind == "norm" else QScheme
        batch: Batch | None = (self.model.indices if self.model is not None else None) or scheme.indices
        if batch is None:
            raise ValueError(
                "batch must be set before each forward where use_gradient is on: QScheme.batch = indices, with the "
                "indices that qmodules.DataLoader returns with each batch"
            )
        return batch.on(device, self._table().num_samples) if len(batch) == samples else None

    def _table(self) -> GradientTable:
        if self._gradients is None:
            number = self.level.num_samples or QScheme.num_samples
            if number is None:
                raise ValueError(
                    "num_samples must be the size of the training set where use_gradient is on, got None; set "
                    "QScheme.num_samples or config.num_samples"
                )
            self._gradients = GradientTable(number)
        return self._gradients

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a layer built by hand names its noise anew: two layers with one noise would add up their errors."""
        return self.__dict__ | {"_number": None, "_token": None}


def _squares(gradient: Tensor) -> Tensor:
    """``Float32[Tensor, "batch"]``: each sample's squared norm."""
    dims = tuple(range(1, gradient.dim()))
    if not dims:
        return gradient.float().square()
    kept = gradient.dtype if gradient.dtype is torch.float64 else torch.float32
    return torch.linalg.vector_norm(gradient, dim=dims, dtype=kept).square().float()


def _inverse_variance(x: Tensor) -> Tensor:
    """The mean over channels of the inverse of their variance in a batch."""
    variance = x.float().var((0, *range(2, x.dim())))
    return torch.where(variance > 0, 1 / variance, 0).mean()
