"""How a compiled region stores one tensor. Its backward gets one tensor back, so one form serves all that reads it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from actcore import BitMask, Codec, GroupAffine, Layout, Positive, Raw, SavedTensor, missing_on
from integrations.policies.aten_rules import NORM_BACKWARDS, Use
from integrations.policies.complex_numbers import ComplexGroupAffine, layout_of_parts
from integrations.policies.norms import RowByRow, Standardized, Statistics
from integrations.policies.operators import OPERATORS, Kernel
from integrations.policies.policy import NEEDS_EXACT, UNKNOWN, is_narrow, keeps_norm_input
from integrations.policies.rules import Need
from integrations.tracing.storage.forms import SATURATED, Placeholder
from integrations.tracing.storage.storage_policy import StoragePolicy

_ARITHMETIC = (Kernel.PRODUCT, Kernel.CONVOLUTION)
_COSTLY = frozenset(one.name for entry in OPERATORS for one in entry.aten if one.kernel in _ARITHMETIC)
"""Operators whose results no level recomputes."""

_LINEAR = ("mm", "addmm")
"""Products of matrices by which backward computes the gradient of a linear layer's weight."""


@dataclass(frozen=True)
class CompiledForm:
    """The form in which a compiled region stores a tensor.

    Attributes:
        codec: of the elements: ``GroupAffine``, ``BitMask``, ``Raw`` for the tensor itself, ``None`` if no elements are
            stored.
        why: the reason, for the report.
        sign: whether a mask of the positive elements is stored exactly, too.
        bounds: what the elements are clamped to before they are encoded.
    """

    codec: Codec | None
    why: str
    sign: bool = False
    bounds: tuple[float, float] | None = None

    @property
    def exact(self) -> bool:
        return isinstance(self.codec, Raw)

    @property
    def rounds(self) -> bool:
        """Whether the form rounds at random, and so takes a stream of noise."""
        return isinstance(self.codec, GroupAffine)

    @property
    def name(self) -> str:
        """The name that a report has for the form."""
        if self.exact:
            return "kept"
        parts = ([] if self.codec is None else [str(self.codec)]) + (["Positive()"] if self.sign else [])
        return " and ".join(parts) or "shape"

    def nbytes(self, numel: int, dtype: torch.dtype) -> int:
        """Bytes that ``numel`` elements take."""
        if isinstance(self.codec, Raw):
            return numel * dtype.itemsize
        sides = (numel + 7) // 8
        values = 0
        if isinstance(self.codec, GroupAffine):
            values = min(self.codec.stored_bytes(numel, dtype), numel * dtype.itemsize)
        elif self.codec is not None:
            values = sides
        return values + (sides if self.sign else 0)

    # ---- traced into the two graphs ----

    def pack(self, tensor: Tensor, seed: int, stream: Tensor | None) -> tuple[Any, ...]:
        """The stored form: tensors first, then shape and strides."""
        if self.exact:
            return (tensor,)
        if isinstance(self.codec, ComplexGroupAffine):
            tensor = tensor.resolve_conj()
        parts: list[Tensor] = []
        # A bool tensor fits: there is nothing to check, and a graph could not wait for a check.
        if isinstance(self.codec, BitMask):
            parts.append(torch.ops.actcore.bit_mask_compress.graph(_flat(tensor), 0, 1))
        elif self.codec is not None:
            source = tensor if self.bounds is None else tensor.clamp(*self.bounds)
            assert isinstance(self.codec, GroupAffine)
            assert stream is not None
            parts += _encoded(self.codec, source, seed, stream)
        if self.sign:
            parts.append(torch.ops.actcore.positive_mask.graph(_flat(tensor)))
        return (len(parts), *parts, *tensor.shape, *tensor.stride())

    def unpack(self, packed: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
        """The restored tensor."""
        if self.exact:
            return packed[0]  # type: ignore[no-any-return]
        count, *rest = packed
        parts, numbers = rest[:count], rest[count:]
        half = len(numbers) // 2
        layout = Layout(tuple(numbers[:half]), tuple(numbers[half:]))
        if not parts:
            return Placeholder(layout, dtype, device).unpack()
        numel = layout.stored_numel
        positive = layout.restore(_elements(parts[-1], numel, dtype, 0, 0)) if self.sign else None
        values: Tensor
        if isinstance(self.codec, GroupAffine):
            if parts[0].dtype is dtype:  # ``pack`` left the tensor as it was, since codes would take no fewer bytes
                values = parts[0]
            elif isinstance(self.codec, ComplexGroupAffine):
                layout = layout_of_parts(layout)
                size, real = layout.stored_numel, dtype.to_real()
                flat = _elements(parts[0], size, real, self.codec.bits, self.codec.group_size)
                values = torch.view_as_complex(layout.restore(flat))
            else:
                values = layout.restore(_elements(parts[0], numel, dtype, self.codec.bits, self.codec.group_size))
                if isinstance(self.codec, Standardized) and count == 2 + self.sign:
                    values = self.codec.normalizer.restored(values, parts[1])
            if positive is None:
                return values
            # An element that rounding took to the other side of zero is put back on its own side.
            return torch.where(positive > 0, values.clamp(min=torch.finfo(dtype).tiny), values.clamp(max=0))
        return layout.restore(_elements(parts[0], numel, dtype, 0, 0)) if positive is None else positive


def _flat(tensor: Tensor) -> Tensor:
    """The stored elements: contiguous, of any shape, in the order of memory."""
    return tensor if tensor.is_contiguous() else Layout.of(tensor).flatten(tensor)


def _encoded(codec: GroupAffine, tensor: Tensor, seed: int, stream: Tensor) -> tuple[Tensor, ...]:
    """Codes and bounds in one tensor, and the statistics of a standardized one; a copy of the tensor if codes take no
    fewer bytes."""
    values: Tensor = tensor
    statistics: list[Tensor] = []
    if isinstance(codec, Standardized) and codec.normalizer.takes(tensor):
        values, *statistics = codec.normalizer.normalized(tensor)
    if isinstance(codec, ComplexGroupAffine):
        values = torch.view_as_real(tensor)
    elements, dtype, layout = _flat(values), values.dtype, Layout.of(tensor)
    plain = GroupAffine(codec.bits, codec.group_size, codec.rounding)
    if plain.stored_bytes(elements.numel(), dtype) >= elements.numel() * dtype.itemsize:
        return (layout.restore(layout.flatten(tensor).clone()),)
    stochastic = codec.rounding == "stochastic"
    payload = torch.ops.actcore.group_affine_compress.graph(
        elements, codec.bits, codec.group_size, stochastic, seed, stream
    )
    return (payload, *statistics)


def _elements(stored: Tensor, numel: int, dtype: torch.dtype, bits: int, group_size: int) -> Tensor:
    """Flat elements, decoded from a codec's codes or, with 0 bits, from a mask."""
    flat: Tensor
    if bits == 0:
        flat = torch.ops.actcore.bit_mask_decompress.graph(stored, numel, dtype, 0, 1)
    else:
        flat = torch.ops.actcore.group_affine_decompress.graph(stored, numel, dtype, bits, group_size)
    return flat


def make_form(
    way: StoragePolicy, saved: SavedTensor, uses: Iterable[Use], made_by: str, norm_features: int = 0
) -> CompiledForm:
    """The form that suits all uses of a tensor.

    Args:
        way: how the level or the plan stores it.
        saved: the tensor's description; its operator and role are ignored.
        uses: what backward does with the tensor.
        made_by: the operator that computed it.
        norm_features: the features of a row if it is the result of a normalization of rows, otherwise 0.
    """
    if missing := missing_on(saved.device):
        return CompiledForm(Raw(), f"kept exactly: {missing}")
    policy, level = way.policy, way.level
    values: list[GroupAffine] = []
    operators, reasons, sign = set(), set(), False
    for use in sorted(uses):
        used = SavedTensor(saved.shape, saved.dtype, saved.strides, saved.device, use.operator, use.role, "", 0)
        decision = policy.decide(used)
        if decision.form is Need.SHAPE:
            reasons.add(decision.why)
            continue
        if isinstance(decision.codec, BitMask):
            return CompiledForm(decision.codec, decision.why)
        operators.add(use.operator)
        if isinstance(decision.codec, RowByRow):
            return CompiledForm(Raw(), "rows are interleaved in memory: kept exactly in compiled code")
        if isinstance(decision.codec, GroupAffine):
            codec = decision.codec
            if len(use.statistics) > 2:
                statistics = Statistics(use.statistics[:-1], use.statistics[-1])
                fitted = statistics.codec(codec, saved.shape, saved.strides)
                if fitted is None:
                    return CompiledForm(Raw(), statistics.why)
                codec = fitted
            if level.recompute and use.name in _LINEAR and is_narrow(used):
                codec = replace(codec, bits=8)
            if not way.planned and decision.need is Need.PRODUCT and use.name in NORM_BACKWARDS:
                codec = replace(codec, bits=max(codec.bits, level.norm_bits))  # what a norm has normalized
            values.append(codec)
        elif isinstance(decision.codec, Positive):
            sign = True
        else:
            why = decision.why
            if why == UNKNOWN:  # a rule would round it, if anything is rounded
                why = NEEDS_EXACT if level.bits is None else f"no rule for {use.name} in compiled code"
                why += ": kept exactly"
            return CompiledForm(Raw(), why)
        reasons.add(decision.why)
    if not reasons:
        return CompiledForm(Raw(), "no use of it is known: kept exactly")
    why = "; ".join(sorted(reasons - {Need.SHAPE.value}) or [Need.SHAPE.value])
    if not values:
        return CompiledForm(None, why, sign)
    why = way.planned or why
    if level.adaptive:
        why += "; the level's fixed bits, as in all compiled code"
    bits = max(codec.bits for codec in values)
    if level.recompute and made_by not in _COSTLY:
        # Eager code recomputes it from tensors that are stored in these bits.
        bits = max(bits, level.pointwise_bits)
        if not way.planned and norm_features and keeps_norm_input(norm_features):
            bits = max(bits, 8)  # eager code keeps the norm's input exactly
    if sign and made_by != "relu":
        # Elements that rounding takes across zero are put back to it, a bias of less than a step. A ReLU's result has
        # no such bias: its zeros are a bound of their group, and so exact.
        bits = max(bits, level.pointwise_bits)
    bounds = SATURATED.get(next(iter(operators))) if len(operators) == 1 else None
    size = min(codec.group_size for codec in values)
    normalised = next((codec for codec in values if isinstance(codec, Standardized)), values[0])
    return CompiledForm(replace(normalised, bits=bits, group_size=size), why, sign, bounds)
