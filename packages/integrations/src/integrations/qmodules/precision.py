"""``LayerPrecision``: with how many bits a layer stores its input. ``Forward``: what the input tells about the error of
its rounding, before the bits are chosen."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

import actcore
from integrations.policies.norms import Normalizer
from integrations.policies.standardizing import CHANNELS
from integrations.qmodules.batch import Batch
from integrations.qmodules.device_rows import DeviceRows, view_as_rows
from integrations.qmodules.gradient_table import GradientTable
from integrations.qmodules.levels import QLevel
from integrations.qmodules.per_sample import range_energies, rounding_profile, sample_bits
from integrations.qmodules.scheme import ModelPrecision, Observation, QBNScheme, QScheme, new_double_backward
from integrations.qmodules.sharing import packed
from integrations.tracing.double_backward import DoubleBackward


@dataclass(frozen=True)
class Forward:
    """One forward of a layer, as its backward needs to know it.

    Attributes:
        energies: ``Float64[Tensor, "rows"]``: what ``range_energies`` found; one row where samples share bits. Those of
            a batch norm's input are in units of its channels' variance.
        profile: ``Float64[Tensor, "8"]``: see ``rounding_profile``.
        size: elements of a row.
        samples: the size of the batch dimension.
        positions: places of the input, pixels or tokens: its elements over samples and channels.
        indices: the samples' places in the data set, where they count.
        source: the same object for all forwards that were given the same tensor: it is stored once. ``None`` for one
            that takes no part in the allocation among layers.
    """

    energies: Tensor
    profile: Tensor
    size: int
    samples: int
    positions: float
    indices: Tensor | None = None
    source: object = None


# By the tensor itself; its version, and the source that stands for both.
_sources: Any = WeakIdKeyDictionary()


def find_source(x: Tensor) -> object:
    """An object that stands for this tensor with the values that it has now."""
    found = _sources.get(x)
    if found is None or found[0] != x._version:
        found = _sources[x] = (x._version, object())
    return found[1]


def squared_norms(gradient: Tensor) -> Tensor:
    """``Float64[Tensor, "batch"]``: each sample's squared norm, summed in float32."""
    dims = tuple(range(1, gradient.dim()))
    if not dims:
        return gradient.double().square()
    kept = gradient.dtype if gradient.dtype is torch.float64 else torch.float32
    norms: Tensor = torch.linalg.vector_norm(gradient, dim=dims, dtype=kept)
    return norms.double().square()


Kind = Literal["linear", "norm", "other"]

# Forwards from one measurement of a layer's profile to the next: the shape of a distribution changes slowly.
_PROFILE_EVERY = 16

# What the error of a batch norm's input does to all gradients below, in units of what it does to the norm's own weight.
# Between 7 and 60 for the norms of a ResNet-20 on CIFAR-10. Half or twice as much changes the whole gradient's variance
# little there.
_BELOW = 16.0

_numbers = itertools.count()
_numbers_in_trials = itertools.count(-1, -1)  # trial runs must not change the noise of training


@dataclass(frozen=True)
class _Kept:
    """What is measured once in several forwards."""

    forward: int
    shape: tuple[int, ...]
    profile: Tensor


class LayerPrecision:
    """The precision of one layer: what its forwards store, and what its backwards tell.

    A layer calls ``codec(x)``, then ``token()``, and ``stream()`` once in each forward that a backward may follow, and
    ``observe(token, grad_output)`` in the backward of that forward. Under ``torch.compile`` it calls
    ``codec`` alone, and samples and layers share the average: what a region computes while it is traced stands for all
    steps.

    Attributes:
        level: the level of the model or the one that was set when the layer was built.
        kind: convolutions and linear layers are ``"linear"``, batch normalisations ``"norm"``; all others are
            ``"other"``, have the level's bits for every element and are not allocated any.
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
                f"group must be an index into the level's bits {level.bits}, from 0 to {len(level.bits) - 1}, got "
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
        self._profile: _Kept | None = None
        self._gradients: GradientTable | None = None
        self._tokens: dict[int, Forward] = {}  # by thread: replicas of DataParallel share this object
        self._watched = True
        self._double = new_double_backward()

    @property
    def double(self) -> DoubleBackward:
        """Records whether a backward with ``create_graph=True`` reads rounded inputs of the model's layers, or of this
        one, if it was built by hand."""
        return self._double if self.model is None else self.model.double

    def quantizes(self, x: Tensor) -> bool:
        """Whether ``codec`` stores this input in fewer bits. Raises the same errors as that."""
        if self._may_quantize(x) and self.level.use_gradient and self._is_by_sample(x):
            self._indices(x.shape[0], x.device)
        return self._may_quantize(x)

    def _may_quantize(self, x: Tensor) -> bool:
        return self.level.compress and x.is_floating_point() and (self.level.norms or self.kind != "norm")

    def codec(self, x: Tensor, normal: Tensor | None = None) -> actcore.Codec | None:
        """How the input ``x`` of this forward is stored; ``None`` keeps it exactly.

        Args:
            x: the input.
            normal: of a batch norm, its normalized elements, which are what is stored; ``None``: they are computed.

        Raises:
            ValueError: the level uses gradients, and there are no indices for the batch, or no ``num_samples``, or an
                index that it does not exceed.
        """
        level = self.level
        if not torch.compiler.is_compiling():
            self._tokens.pop(threading.get_ident(), None)
        inner = self._quantiser(x, normal) if self._may_quantize(x) else None
        if level.offload:
            return actcore.Offload(inner or actcore.Raw())
        return inner

    def token(self) -> Forward | None:
        """What ``observe`` needs to know of the forward whose ``codec`` was asked for last."""
        return self._tokens.pop(threading.get_ident(), None)

    def stream(self) -> int | None:
        """The stream of this forward's noise: one of its own, which a second run of the program draws again. ``None``
        while a CUDA graph is captured, whose replays draw theirs on the device."""
        if actcore.in_cuda_graph():
            return None
        if not self.name and self._number is None:
            self._number = next(_numbers if self._watched else _numbers_in_trials)
        self._forwards += 1
        stream: int = actcore.stream_of(self.name or f"layer {self._number}", self._forwards, 0)
        return stream

    def observe(self, token: object, grad_output: Tensor) -> None:
        """Learns from the gradient of the layer's output, in the backward of the forward that ``token`` is of."""
        if not isinstance(token, Forward) or not self._watched:
            return
        gradient = grad_output.detach()
        squares = squared_norms(gradient)
        known = token.indices is not None and squares.numel() == token.samples
        if known and token.indices is not None:
            self._table().update(token.indices, squares)
        if token.source is not None and self.model is not None:
            # Without a table the next forward, too, knows nothing of its samples' gradients.
            squares = squares if known and token.energies.numel() == token.samples else squares.mean()
            sensitivities = token.energies * squares * self.gain(token, gradient)
            if self.kind == "norm":
                sensitivities = sensitivities * _BELOW
            self.model.observe(Observation(self, sensitivities, token.profile, token.size, token.source))

    def describe(self, x: Tensor, own: bool, normal: Tensor | None = None) -> Forward:
        """What an input tells about its rounding.

        Args:
            x: ``Float[Tensor, "batch ..."]`` with at least two dimensions and one element.
            own: whether samples are looked at one by one, or all together.
            normal: as for ``codec``.
        """
        x = x.detach()
        samples, group_size = x.shape[0], self.level.group_size
        if self.kind == "norm":  # as it is stored
            x = Normalizer(CHANNELS, x.shape[1]).normalized(x)[0] if normal is None else normal
        rows = view_as_rows(x) if own else view_as_rows(x[None])
        kept = self._profile
        fresh = kept is not None and kept.shape == tuple(rows.shape) and kept.profile.device == x.device
        if kept is None or not fresh or self._forwards - kept.forward >= _PROFILE_EVERY:
            kept = _Kept(self._forwards, tuple(rows.shape), rounding_profile(rows, group_size))
            self._profile = kept
        energies = range_energies(rows, group_size)
        positions = x.numel() / (samples * x.shape[self.channel_dim])
        return Forward(energies, kept.profile, rows.shape[1], samples, positions)

    def gain(self, forward: Forward, gradient: Tensor) -> float:
        """What a unit of an input's rounding variance and a unit of squared output gradient together make in the
        gradient of the layer's weight: docs/reference/q-layers.md, section Precision.

        A convolution's ``dW[o, i, k] = sum over samples n and places p of dY[n, o, p] * X[n, i, p + k]`` is linear in
        ``X``. So its variance is the sum of ``v * dY**2`` over kernel positions, output channels of a group, and
        elements, with the rounding variance ``v`` of an element. Here, the mean of ``v`` over a sample stands for each
        element. A norm's ``dgamma = sum dY * (X - mean) / deviation`` has exact statistics, so its variance is ``sum v
        * dY**2 / deviation**2``."""
        if self.kind != "linear":
            return forward.samples / gradient.numel()
        positions = forward.positions
        if self.transposed:
            positions = gradient.numel() / (gradient.shape[0] * gradient.shape[1])
        return self.kernel_locations / (self.conv_groups * positions)

    @contextmanager
    def unwatched(self) -> Iterator[Callable[[], None]]:
        """A block whose forwards and backwards teach this layer nothing, and whose noise later ones draw again.
        Entering it returns a function that has the next forward draw the noise of the block's first one."""
        before = dict(vars(self))

        def redraw() -> None:
            vars(self).update(before, _watched=False, _number=self._number)

        self._watched = False
        try:
            yield redraw
        finally:
            vars(self).update(before)

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """A block in which the layer is torch's."""
        level, self.level = self.level, replace(self.level, compress=False, offload=False)
        try:
            yield
        finally:
            self.level = level

    @property
    def _allocated(self) -> bool:
        """Whether the model decides about the average in this forward.

        Not where hooks pack: those of checkpointing compare what the recomputation saves with what forward saved, and
        another forward's backward may have allocated other bits in between.
        """
        if not self.level.per_layer or self.model is None or self.kind == "other":
            return False
        return not torch.compiler.is_compiling() and not packed()

    def _is_by_sample(self, x: Tensor) -> bool:
        """Whether each sample of an input gets its own bits."""
        adaptive = self.level.norm_adaptive if self.kind == "norm" else self.level.per_sample
        if not adaptive or self.kind == "other" or torch.compiler.is_compiling() or x.dim() < 2 or not x.numel():
            return False
        # Rows shorter than a group are stored together: bounds for each would take more bytes than their bits save.
        return x.shape[0] > 1 and x.numel() // x.shape[0] >= self.level.group_size

    def _quantiser(self, x: Tensor, normal: Tensor | None) -> actcore.Codec:
        level, allocated = self.level, self._allocated
        if allocated and self.model is not None and self._watched:
            self.model.settle()
        average = min(self.bits if allocated else level.bits[self.group], level.initial_bits)
        uniform = actcore.GroupAffine(int(average), level.group_size)
        if self.kind == "other" or torch.compiler.is_compiling() or x.dim() < 2 or not x.numel():
            return uniform
        samples, own = x.shape[0], self._is_by_sample(x)
        if not own and not allocated:
            return uniform
        forward = self.describe(x, own, normal)
        indices = self._indices(samples, x.device) if level.use_gradient and own else None
        self._tokens[threading.get_ident()] = replace(
            forward, indices=indices, source=find_source(x) if allocated else None
        )
        if not own:
            return uniform
        energies = forward.energies if indices is None else forward.energies * self._table().lookup(indices)
        total = math.floor(average * samples + 1e-6)  # of a mean of whole numbers
        bits = sample_bits(energies, forward.profile, max(total, samples), level.initial_bits)
        return DeviceRows(max(total, samples), level.group_size, bits)

    def _indices(self, samples: int, device: torch.device) -> Tensor | None:
        """The batch's places in the data set; ``None`` for an input of another batch dimension, such as a head's."""
        scheme = QBNScheme if self.kind == "norm" else QScheme
        batch: Batch | None = (self.model.indices if self.model is not None else None) or scheme.indices
        if batch is None:
            raise ValueError(
                "batch must be set before each forward when use_gradient is on, got None; set QScheme.batch to the "
                "indices that qmodules.DataLoader returns with each batch"
            )
        return batch.of(samples, device, self._table().num_samples)

    def _table(self) -> GradientTable:
        if self._gradients is None:
            number = self.level.num_samples or QScheme.num_samples
            if number is None:
                raise ValueError(
                    "num_samples must be the size of the training set when use_gradient is on, got None; set "
                    "QScheme.num_samples or config.num_samples"
                )
            self._gradients = GradientTable(number)
        return self._gradients

    def __getstate__(self) -> dict[str, Any]:
        """A copy of a layer built by hand names its noise anew: two layers with one noise would add up their errors."""
        return self.__dict__ | {"_number": None, "_tokens": {}}
