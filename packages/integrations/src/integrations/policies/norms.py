"""How the input of a normalisation is stored, by the elements that share one of its statistics.

Let n be the normalised input, and h the standard deviation of its rounding. Backward removes from a gradient its part
along 1 and its part along n. Of a gradient like noise over N elements, N - 2 parts in N are left, and rounding n adds
two parts in N times h**2: relative to what is left, the error is ``h * sqrt(2 / (N - 2))``. Two things follow.

A statistic over two elements leaves only what epsilon does, and any rounding is more than that.

And h is the rounding step over the deviation of the elements that share the *statistic*, while the step depends on the
range of the elements that share a *group*. A channel with a hundredth of its neighbours' deviation has a hundred times
their error. So either no group has elements of two statistics, or each statistic's elements are stored normalised.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor

from actcore import Codec, Compressed, GroupAffine, Layout, Raw
from actcore.codec import trusted
from actcore.layout import is_dense
from integrations.policies.arguments import Arguments
from integrations.policies.standardizing import (
    CHANNELS,
    COMPRESS,
    compressed,
    decompressed,
    least_deviation,
    undo_epsilon,
)

FEW = 8
"""Inputs whose statistics are over so few elements are kept: in 16 bits, storing them normalised takes no fewer
bytes."""


@dataclass(frozen=True, order=True)
class Statistics:
    """What a normalisation takes its statistics over.

    Attributes:
        shape: its input's, as the operator sees it: ``(samples, channels, ...)``.
        groups: the number of groups of channels, each of which has a statistic in each sample; or ``CHANNELS``.
    """

    shape: tuple[int, ...]
    groups: int

    @property
    def count(self) -> int:
        """How many statistics there are."""
        samples, channels = self.shape[:2]
        return channels if self.groups == CHANNELS else samples * self.groups

    @property
    def elements(self) -> int:
        """Over how many elements each statistic is."""
        return math.prod(self.shape) // max(1, self.count)

    def codec(self, codec: GroupAffine, shape: Sequence[int], strides: Sequence[int]) -> GroupAffine | None:
        """The codec for an input of this shape and these strides, made from ``codec``, which would store it if nothing
        were normalised. ``None`` keeps it."""
        if self.elements <= FEW:
            return None
        run = self._run if _contiguous(shape, strides) else 1
        size = next((size for size in range(codec.group_size, codec.group_size // 2 - 1, -32) if run % size == 0), 0)
        if size:
            return GroupAffine(codec.bits, size, codec.rounding)
        if tuple(shape) != self.shape:  # a view: it is not known which elements share a statistic
            return codec
        return Standardized(codec.bits, codec.group_size, codec.rounding, self.groups, self.count)

    @property
    def why(self) -> str:
        """The reason for keeping it."""
        return f"a statistic over {self.elements} elements, whose rounding would destroy the gradient: kept exactly"

    @property
    def _run(self) -> int:
        """The elements of one statistic that lie end to end in a contiguous input."""
        return math.prod(self.shape[2:]) if self.groups == CHANNELS else self.elements


# The position and name of the flag that says whether the statistics are those of the input, and its default.
_FROM_INPUT = {"batch_norm": (5, "training", False), "instance_norm": (5, "use_input_stats", True)}
_GROUPS = (1, "num_groups")  # of a group norm


def given_to(operator: str, given: Arguments) -> tuple[int, str, Any] | None:
    """The argument on which a call's statistics depend, besides the input's shape: its position, name and value. The
    value is ``None`` if the call leaves it out. ``None`` for an operator without such statistics."""
    position, name = _GROUPS if operator == "group_norm" else _FROM_INPUT.get(operator, (0, ""))[:2]
    return (position, name, given.get(position, name)) if name else None


def compute_statistics(operator: str, given: Arguments, shape: Sequence[int]) -> Statistics | None:
    """The statistics that a call takes of its input; ``None`` if it takes none, or those of rows.

    Args:
        operator: its name.
        given: its arguments.
        shape: the shape of the input as it is saved. An instance norm's may be one sample with the channels of all
            samples.
    """
    if len(shape) < 2 or 0 in shape:
        return None
    if operator in _FROM_INPUT and given.get(*_FROM_INPUT[operator]):
        return Statistics(tuple(shape), CHANNELS if operator == "batch_norm" else shape[1])
    if operator == "group_norm":
        return Statistics(tuple(shape), given.get(*_GROUPS))
    return None


Normalized: TypeAlias = tuple[Tensor, Tensor]
"""A tensor's normalized elements, dense in memory, and their means and deviations: ``Float[2, count]``."""


def normalize_channels(tensor: Tensor, mean: Tensor, factor: Tensor, epsilon: float) -> Normalized:
    """Normalize each channel by the statistics of a batch norm, in one pass over memory.

    Args:
        tensor: ``Float[Tensor, "samples channels ..."]``, without expanded dimensions.
        mean, factor: ``Float[channels]``: what the norm has subtracted, and multiplied by.
        epsilon: the norm's.
    """
    given = tensor.detach()
    given = given if is_dense(Layout.of(given)) else given.contiguous()
    mean, factor = (one.to(_wide(tensor.dtype)) for one in (mean, factor))
    deviation = undo_epsilon(factor, epsilon)
    # Torch's kernel for evaluation.
    normal = torch.ops.aten.native_batch_norm(given, None, None, mean, deviation.square(), False, 0.0, 0.0)[0]
    if normal.stride() != given.stride():
        normal = torch.empty_like(given).copy_(normal)
    return normal, torch.stack([mean, deviation])


@dataclass(frozen=True)
class Normalizer:
    """Normalises a tensor's elements by their mean and deviation, and restores them.

    Attributes:
        groups: as in ``Statistics``.
        count: how many statistics there are.
    """

    groups: int
    count: int

    def takes(self, tensor: Tensor) -> bool:
        """Whether a tensor has this number of statistics, and each element has memory of its own."""
        expanded = any(step == 0 and size > 1 for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        if tensor.dim() < 2 or expanded:
            return False
        samples, channels = tensor.shape[:2]
        return (channels if self.groups == CHANNELS else samples * self.groups) == self.count

    def normalized(self, tensor: Tensor) -> Normalized:
        """A tensor's normalized elements and their statistics. The same operators run for all tensors of a shape, fake
        ones included."""
        tensor = tensor.detach()
        given = tensor if is_dense(Layout.of(tensor)) else tensor.contiguous()
        whole, over = self._cells(given)
        mean = whole.mean(over, keepdim=True, dtype=_wide(tensor.dtype))
        # Compiled code takes no out= with gaps, as groups of channels last would have.
        if torch.compiler.is_compiling():
            normal = given.clone()
            cells = self._cells(normal)[0].sub_(mean)
        else:
            normal = torch.empty_like(given)
            cells = torch.sub(whole, mean, out=self._cells(normal)[0])
        scale = _norm(cells, over, mean.dtype).mul_(math.sqrt(self.count / max(1, tensor.numel())))
        cells.div_(scale.clamp(min=least_deviation(mean.dtype)))
        return normal, torch.stack([mean.view(-1), scale.view(-1)])

    def restored(self, normal: Tensor, statistics: Tensor) -> Tensor:
        """The inverse of ``normalized``. It changes ``normal``."""
        cells, over = self._cells(normal)
        shape = [1 if dim in over else size for dim, size in enumerate(cells.shape)]
        mean, scale = statistics.view(2, *shape)
        cells.mul_(scale).add_(mean)
        return normal

    def scales(self, statistics: Tensor, like: Tensor) -> Tensor:
        """The deviation by which each element of a tensor was divided: ``Float[like.shape]``, in the tensor's
        strides."""
        return self.restored(torch.ones_like(like), torch.stack([torch.zeros_like(statistics[0]), statistics[1]]))

    def compress(
        self, tensor: Tensor, plain: Codec, seed: Any, stream: Any, given: Normalized | None = None
    ) -> Compressed | None:
        """What ``plain`` stores of the normalised elements, with the statistics as the last part. ``None`` for a tensor
        that does not fit, or is too small to gain. ``given``: as ``normalized`` returns them."""
        if not self.takes(tensor):
            return None
        normal, statistics = self.normalized(tensor) if given is None else given
        stored = plain.compress(normal, seed=seed, stream=stream)
        if isinstance(stored.codec, Raw):
            return None
        return Compressed(stored.codec, (*stored.payload, statistics), Layout.of(tensor), tensor.dtype)

    def decompress(self, compressed: Compressed, plain: Codec) -> Tensor:
        """The tensor that ``compress`` stored."""
        layout = compressed.layout
        values = self.restored(*self.normalized_in(compressed, plain))
        return values if is_dense(layout) else layout.restore(values.view(-1))

    def normalized_in(self, compressed: Compressed, plain: Codec) -> Normalized:
        """The normalized elements that ``compress`` stored, dense in memory, and the statistics."""
        *parts, statistics = compressed.payload
        layout = compressed.layout
        dense = layout if is_dense(layout) else Layout.of(torch.empty(layout.shape, device="meta"))
        return plain.decompress(Compressed(plain, tuple(parts), dense, compressed.dtype)), statistics

    def _cells(self, tensor: Tensor) -> tuple[Tensor, list[int]]:
        """A view of the tensor, and the view's dimensions over which a statistic is taken."""
        if self.groups == CHANNELS:
            return tensor, [dim for dim in range(tensor.dim()) if dim != 1]
        view = tensor.unflatten(1, (self.groups, -1))
        return view, list(range(2, view.dim()))


@dataclass(frozen=True)
class Standardized(GroupAffine):
    """``GroupAffine`` on elements that a ``Normalizer`` has normalised. Two numbers for each statistic are stored
    besides.

    Attributes:
        groups, count: the normalizer's.
    """

    groups: int = CHANNELS
    count: int = 0

    def __str__(self) -> str:
        return f"{self._plain!r}, standardised"

    @property
    def normalizer(self) -> Normalizer:
        return Normalizer(self.groups, self.count)

    def stored_bytes(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes of the payload for ``numel`` stored elements of ``dtype``."""
        return super().stored_bytes(numel, dtype) + 2 * self.count * _wide(dtype).itemsize

    def compress(self, tensor: Tensor, *, seed: Any = 0, stream: Any = 0, operator: Any = COMPRESS) -> Compressed:
        """``Float[Tensor, "samples channels ..."] -> (codes, bounds, Float[2, count])``. A tensor that does not fit,
        such as an expanded one, is stored plainly. ``operator`` is called as ``COMPRESS`` is."""
        if self.normalizer.takes(tensor):
            stored = compressed(self, self.groups, self.count, tensor, seed, stream, operator)
            if stored is not None:
                return stored
        stored = self.normalizer.compress(tensor, self._plain, seed, stream)
        return self._plain.compress(tensor, seed=seed, stream=stream) if stored is None else replace(stored, codec=self)

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor, with the rounding error of its normalised elements."""
        found = decompressed(self, self.groups, compressed) if trusted(self, compressed) else None
        return self.normalizer.decompress(compressed, self._plain) if found is None else found

    @property
    def _plain(self) -> GroupAffine:
        return GroupAffine(self.bits, self.group_size, self.rounding)


@dataclass(frozen=True)
class RowByRow(GroupAffine):
    """``GroupAffine`` on elements in the order of their indices, whatever their order in memory: for the rows that a
    normalisation takes, where each lies across others, as those of a transposed tensor do."""

    def __str__(self) -> str:
        return f"{self._plain!r}, row by row"

    def compress(self, tensor: Tensor, *, seed: Any = 0, stream: Any = 0) -> Compressed:
        """``Float[Tensor, "..."] -> (codes, bounds)``, as ``GroupAffine`` has them of the tensor made contiguous."""
        stored = self._plain.compress(tensor.contiguous(), seed=seed, stream=stream)
        codec = stored.codec if isinstance(stored.codec, Raw) else self
        layout = stored.layout if codec is not self else Layout.of(tensor)
        return Compressed(codec, stored.payload, layout, tensor.dtype)

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor, with the codec's rounding error, as it lay in memory."""
        shape, strides = compressed.layout
        rows = Layout.of(torch.empty(shape, device="meta"))
        values = self._plain.decompress(Compressed(self._plain, compressed.payload, rows, compressed.dtype))
        return torch.empty_strided(shape, strides, dtype=values.dtype, device=values.device).copy_(values)

    @property
    def _plain(self) -> GroupAffine:
        return GroupAffine(self.bits, self.group_size, self.rounding)


@dataclass(frozen=True)
class OfChannels:
    """Stores a batch norm's input through another codec, with each channel normalised.

    Args:
        inner: stores the normalised elements.
        given: the normalized elements of the tensor to be stored; ``None``: they are computed from it.
    """

    inner: Codec
    given: Normalized | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.inner}, standardised"

    def compress(self, tensor: Tensor, *, seed: Any = 0, stream: Any = 0) -> Compressed:
        """The inner payload and ``Float[2, channels]``; for a tensor too small to gain, the inner stored form."""
        channels = tensor.shape[1] if tensor.dim() > 1 else 0
        stored = Normalizer(CHANNELS, channels).compress(tensor, self.inner, seed, stream, self.given)
        if stored is None:
            return self.inner.compress(tensor, seed=seed, stream=stream)
        return replace(stored, codec=OfChannels(stored.codec))

    def decompress(self, compressed: Compressed) -> Tensor:
        """The tensor, with the inner codec's error in its normalised elements."""
        return Normalizer(CHANNELS, compressed.layout.shape[1]).decompress(compressed, self.inner)

    def normalized_in(self, compressed: Compressed) -> Normalized:
        """The normalized elements, with the inner codec's error, and the statistics."""
        return Normalizer(CHANNELS, compressed.layout.shape[1]).normalized_in(compressed, self.inner)


def _norm(cells: Tensor, over: list[int], dtype: torch.dtype) -> Tensor:
    """``torch.linalg.vector_norm(cells, 2, over, keepdim=True, dtype=dtype)``. On the CPU torch's kernel takes ten
    times as long as squaring and summing, which this does, an eighth at a time: all at once would take as much memory
    again."""
    if cells.device.type != "cpu" or torch.compiler.is_compiling():  # compiled code would fix the number of parts
        norm: Tensor = torch.linalg.vector_norm(cells, 2, over, keepdim=True, dtype=dtype)
        return norm
    longest = max(over, key=lambda dim: cells.shape[dim])
    parts = cells.split(max(1, cells.shape[longest] // 8), longest)
    squares = [part.to(dtype).square().sum(over, keepdim=True) for part in parts]
    return torch.stack(squares).sum(0).sqrt_()


def _contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    return bool(strides) and Layout(tuple(shape), tuple(strides)).contiguous


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which statistics are taken."""
    return torch.promote_types(dtype, torch.float32)
