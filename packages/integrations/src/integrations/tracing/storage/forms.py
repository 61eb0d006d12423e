"""Stored forms that serve only one operator, and so are not shared with others that save the same storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

from actcore import Codec, Compressed, GroupAffine, Kept, Layout, Offload, compress
from integrations._utils.plain_tensor_types import has_elements
from integrations.policies.arguments import Arguments, two_valued
from integrations.policies.operators import OPERATORS
from integrations.policies.rules import Need
from integrations.tracing.double_backward import DoubleBackward
from integrations.tracing.storage.regions import Exact, View, codec_name
from integrations.tracing.tensors import is_dtensor

SLOPE = "backward needs only the derivative, stored as the nearest of a few levels"
"""The reason in a report's row."""
_PART = "_local_tensor"  # of a DTensor
_NO_CURVATURE = (
    "an activation whose derivative is stored in a few bits has no second derivative, and create_graph=True would "
    "return a wrong one. From the next forward on, a plan of compress_model rounds nothing: repeat the step. To "
    "avoid this error, pass error=0 to compress_model or integrations.plan, or leave 'slopes' out of stores"
)


class Form(Protocol):
    """What autograd holds in place of a tensor."""

    @property
    def nbytes(self) -> int: ...

    @property
    def name(self) -> str:
        """The name that a report has for the form."""

    @property
    def host(self) -> bool:
        """Whether it was moved to host memory."""

    def unpack(self) -> Tensor: ...


class RecomputedTensor(Protocol):
    """What autograd holds in place of a tensor that backward recomputes."""

    def unpack(self) -> Tensor: ...


Packed: TypeAlias = Kept | Exact | View | Form | RecomputedTensor
"""What autograd holds in place of a saved tensor."""


@dataclass(frozen=True, eq=False)
class Held:
    """A compressed tensor, or a stand-in for one.

    Attributes:
        compressed: the tensor.
        double: is notified of a backward with ``create_graph=True``; ``None`` for none.
    """

    compressed: Compressed
    double: DoubleBackward | None = field(default=None, kw_only=True)

    @property
    def nbytes(self) -> int:
        return self.compressed.nbytes

    @property
    def name(self) -> str:
        return codec_name(self.compressed.codec)

    @property
    def host(self) -> bool:
        return isinstance(self.compressed.codec, Offload)

    def unpack(self) -> Tensor:
        return self.compressed.decompress()


@dataclass(frozen=True, eq=False)
class Clamped(Held):
    """Values between two bounds. Values beyond a bound are stored as that bound."""

    low: float
    high: float

    def source(self, tensor: Tensor) -> Tensor:
        """The tensor that is rounded and stored."""
        return tensor.detach().clamp(self.low, self.high)


@dataclass(frozen=True, eq=False)
class Sides(Held):
    """Values between two bounds, exclusively. Of values beyond, only the side is stored, exactly. See ``_sides``."""

    low: float
    high: float
    margin: float

    def unpack(self) -> Tensor:
        values = self.compressed.decompress()
        beyond = (values < self.low - self.margin / 2) | (values > self.high + self.margin / 2)
        eps = torch.finfo(values.dtype).eps
        inside = values.clamp(self.low + eps * abs(self.low), self.high - eps * abs(self.high))
        return values.where(beyond, inside)


@dataclass(frozen=True, eq=False)
class SlopeForm(Held):
    """The codes of a ``Codebook``, for the first derivative alone."""

    def unpack(self) -> Tensor:
        """Elements whose slopes are the levels.

        Raises:
            RuntimeError: autograd builds a graph of this backward, in which the elements would mean nothing.
        """
        if torch.is_grad_enabled():
            raise RuntimeError(_NO_CURVATURE)
        return super().unpack()


@dataclass(frozen=True)
class Placeholder:
    """A tensor of which backward only needs shape, dtype and memory format."""

    layout: Layout
    dtype: torch.dtype
    device: torch.device

    nbytes = 0
    name = "shape"
    host = False

    def unpack(self) -> Tensor:
        if self.layout.contiguous or not self.layout.dense:
            return torch.zeros((), dtype=self.dtype, device=self.device).expand(self.layout.shape)
        # The strides keep channels last: an operator reads off them which memory format its gradient gets.
        return torch.empty_strided(self.layout.shape, self.layout.strides, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class WindowIndices:
    """The indices of a max pooling, each as its place in its window."""

    packed: Held
    input_shape: Sequence[int]
    options: Sequence[Any]

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes

    @property
    def name(self) -> str:
        return "window indices, on the host" if self.host else "window indices"

    @property
    def host(self) -> bool:
        return self.packed.host

    def unpack(self) -> Tensor:
        indices: Tensor = torch.ops.actcore.window_index_unpack(self.packed.unpack(), self.input_shape, *self.options)
        return indices


@dataclass(frozen=True, eq=False)
class Wrapper:
    """A DTensor without its elements.

    Attributes:
        kind: the DTensor's class.
        others: the DTensor's other attributes than this rank's part, such as its mesh, by name.
        context, shape, strides: of the whole.
    """

    kind: Any
    others: Mapping[str, Any]
    context: Any
    shape: Sequence[int]
    strides: Sequence[int]

    @classmethod
    def take_from(cls, whole: Any) -> Wrapper:
        """Return the wrapper of a DTensor."""
        names, context = whole.__tensor_flatten__()
        others = {name: getattr(whole, name) for name in names if name != _PART}
        return cls(type(whole), others, context, whole.shape, whole.stride())

    def wrap(self, part: Tensor) -> Tensor:
        """The DTensor whose elements on this rank are those of ``part``."""
        parts = {_PART: part, **self.others}
        whole: Tensor = self.kind.__tensor_unflatten__(parts, self.context, self.shape, self.strides)
        return whole


@dataclass(frozen=True, eq=False)
class Part:
    """A DTensor of which this rank's part is held.

    Attributes:
        held: what is held in place of the part.
        wrapper: makes the DTensor of the part.
    """

    held: Packed
    wrapper: Wrapper

    def unpack(self) -> Tensor:
        return self.wrapper.wrap(self.held.unpack())


def _saturating(slope_jumps: bool) -> Mapping[str, tuple[float, float]]:
    return MappingProxyType(
        {
            name: entry.saturation
            for entry in OPERATORS
            if entry.saturation is not None and entry.slope_jumps is slope_jumps
            for name in entry.names
        }
    )


# Beyond this range the slope is, to 1e-4 or better, what it is at the range's ends. So elements beyond are stored as
# the ends, and no outlier makes the steps of its group coarse.
SATURATED = _saturating(slope_jumps=False)
# On which side of these bounds an element is stays exact.
_JUMPING = _saturating(slope_jumps=True)


def make_form(
    need: Need,
    operator: str,
    given: Arguments,
    tensor: Tensor,
    codec: Codec,
    place: Callable[[Codec], Codec],
    *,
    seed: int,
    stream: int | Tensor,
) -> Form | None:
    """The form that suits a need; ``None`` if the call's arguments do not allow it.

    Args:
        need, operator, given, tensor: what backward needs, the call and its arguments, and the saved tensor.
        codec: of the values, where values are stored.
        place: moves a codec to where the stored form is to be.
        seed, stream: of the noise.
    """
    if need is Need.SHAPE:
        return Placeholder(Layout.of(tensor), tensor.dtype, tensor.device)
    if need is Need.INSIDE:
        stand_in = two_valued(operator, given, tensor)
        return None if stand_in is None else Held(compress(stand_in[0], place(stand_in[1])))
    if need is Need.SATURATING and operator in SATURATED:
        low, high = SATURATED[operator]
        placed = place(codec)
        if type(placed) is GroupAffine:
            return Clamped(placed.compress_clamped(tensor, low, high, seed=seed, stream=stream), low, high)
        return Clamped(compress(tensor.clamp(low, high), placed, seed=seed, stream=stream), low, high)
    if need is Need.SATURATING and isinstance(codec, GroupAffine) and codec.bits > 1:
        moved, low, high, margin = _sides(tensor, *_JUMPING[operator], codec.bits)
        return Sides(compress(moved, place(codec), seed=seed, stream=stream), low, high, margin)
    return None


def _sides(tensor: Tensor, low: float, high: float, bits: int) -> tuple[Tensor, float, float, float]:
    """Puts what lies at or beyond ``low`` and ``high`` at ``low - margin`` and ``high + margin``.

    A group's step is at most (high - low + 2 margin) / levels, which is below the margin if that is larger than
    (high - low) / (levels - 2). So rounding moves nothing across a bound: an element inside is more than a step away
    from either end, and an element at an end is a bound of its group, which is exact.

    Returns:
        The tensor so changed, and ``low``, ``high`` and ``margin``, with which ``Sides`` reads it.
    """
    levels = (1 << bits) - 1
    # This adds what rounding the two ends to the dtype may take away.
    margin = 1.01 * (high - low) / (levels - 2) + 4 * torch.finfo(tensor.dtype).eps * max(abs(low), abs(high))
    moved = tensor.clamp(low, high)  # keeps NaN
    moved = moved.masked_fill_(tensor <= low, low - margin).masked_fill_(tensor >= high, high + margin)
    return moved, low, high, margin


def window_indices(operator: str, given: Arguments, indices: Tensor, codec: Codec) -> WindowIndices | None:
    """The packed form of a max pooling's indices, as ``codec`` stores it; ``None`` if the call is no such pooling, or a
    window has more than 256 places."""
    dims = {"max_pool2d": 2, "max_pool3d": 3}.get(operator.removesuffix("_with_indices"))
    source = given.get(0, "input")
    if dims is None or indices.dtype is not torch.int64 or not isinstance(source, Tensor) or is_dtensor(source):
        return None  # a DTensor's indices are those of a rank's part
    kernel = _sizes(given.get(1, "kernel_size"), dims)
    stride = given.get(2, "stride")
    strides = _sizes(stride, dims) if stride else kernel  # it is missing or no number
    padding, dilation = (_sizes(given.get(*place), dims) for place in ((3, "padding", 0), (4, "dilation", 1)))
    if math.prod(kernel) > 256:
        return None
    options = (kernel, strides, padding, dilation, bool(given.get(5, "ceil_mode", False)))
    packed, misfit = torch.ops.actcore.window_index_pack(indices.contiguous(), list(source.shape), *options)
    # torch made the indices, so they fit; this is checked on the CPU, where it costs nothing.
    if misfit.device.type == "cpu" and has_elements(misfit) and misfit.item():
        return None
    return WindowIndices(Held(compress(packed, codec)), list(source.shape), options)


def _sizes(value: Any, dims: int) -> list[int]:
    sizes = [value] * dims if isinstance(value, int) else list(value)
    return sizes * dims if len(sizes) == 1 else sizes
