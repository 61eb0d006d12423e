"""The policy of fixed bits: from a saved tensor's description to its codec, and the reason in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch

from actcore import FLOATS, INTEGERS, BitMask, Codec, GroupAffine, Layout, Positive, Raw, SavedTensor
from integrations.policies.complex_numbers import LINEAR_NEEDS, ComplexGroupAffine, is_complex
from integrations.policies.levels import GROUP_SIZE, Level
from integrations.policies.norms import RowByRow
from integrations.policies.operators import OPERATORS
from integrations.policies.rules import CHECKPOINT, RULES, Need, Rule
from integrations.policies.slopes import has_slope
from integrations.policies.stores import Store

_ROW_NORMS = frozenset(name for entry in OPERATORS if entry.by_row for name in entry.names)
# By need: the option of a level that says how many bits it takes.
_BITS = {
    Need.LINEAR: "bits",
    Need.PRODUCT: "product_bits",
    Need.NORM: "norm_bits",
    Need.MOMENT: "norm_bits",
    Need.SATURATING: "pointwise_bits",
    Need.BOUNDED: "pointwise_bits",
    Need.ATTENTION: "attention_bits",
    Need.RECOMPUTED: "checkpoint_bits",
}
_COARSE = 4  # up to this many bits, smaller groups are worth their bytes
_NARROW = 32  # features up to which what a linear layer reads is a small part of what is stored
_SMALLEST_GROUP = 32  # elements; groups of rows have a multiple of it, and other rows share groups
# On which side of the bounds an element is stays exact.
_JUMPING = frozenset(name for entry in OPERATORS if entry.slope_jumps for name in entry.names)
UNKNOWN = "the operator that saves it is unknown"
NEEDS_EXACT = "backward needs its exact elements"
# Torch's operators without a rule that are linear, or whose slope changes without a jump. A gradient through what they
# recompute is as unbiased as if a level had rounded what they save (measured with GRUs, sines and Fourier transforms).
_SMOOTH = frozenset(name for entry in OPERATORS if entry.smooth for name in entry.names) | {"pow with another exponent"}


@dataclass(frozen=True)
class SaveDecision:
    """A codec and why it was chosen.

    Attributes:
        codec: ``None`` for a mask whose two values are only known from its data.
        why: the reason.
        form: a need for which the arguments of the call may allow a form of its own. ``codec`` is then for the values
            in that form, or for the tensor if the arguments do not allow it.
        indices: whether the tensor holds indices whose range the arguments of the call may tell.
        from_forward: whether the forward's own tensor is stored even if a plan recomputes it from rounded ones. It is
            if backward decides by the tensor, above all by its signs, or needs only its shape, or if it is not known
            what backward needs.
        normalised: whether the arguments of the call tell which elements are normalised together, to which the codec is
            fitted.
        slope_bits: bits in which the derivative is stored in the place of an activation's tensor if the arguments of
            the call allow it (``rules/slopes.py``). The other fields hold if they do not.
        need: what backward needs of a tensor that is rounded; ``None`` for any other.
    """

    codec: Codec | None
    why: str
    form: Need | None = None
    indices: bool = False
    from_forward: bool = False
    normalised: bool = False
    slope_bits: int | None = None
    need: Need | None = None

    @property
    def asks_call(self) -> bool:
        """Whether the arguments of the call are to be looked at."""
        return self.indices or self.normalised or self.form is not None or self.slope_bits is not None


class Policy(Protocol):
    """A function that chooses codecs for a session."""

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""


@dataclass(frozen=True)
class FixedBits:
    """A level's policy: a pure function of ``SavedTensor``, the same on every rank and at every step."""

    level: Level

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""
        decision = self._decide(saved)
        return replace(decision, from_forward=True) if _decides(saved) else decision

    def _decide(self, saved: SavedTensor) -> SaveDecision:
        if saved.shape.numel() * saved.dtype.itemsize < self.level.min_bytes:
            return SaveDecision(Raw(), f"smaller than min_bytes={self.level.min_bytes}")
        if self.level.bits is None:
            return SaveDecision(Raw(), "the level quantizes nothing")
        if saved.module in self.level.keep:
            return SaveDecision(Raw(), "its module is kept exactly (keep=)")
        if saved.dtype is torch.bool:
            return SaveDecision(BitMask(), Need.MASK.value)
        indices = saved.dtype in INTEGERS
        rule = RULES.get(saved.operator)
        if saved.operator and rule is None:  # includes workspaces of bytes, such as an LSTM's own
            return SaveDecision(Raw(), no_rule(saved.operator), indices=indices)
        if saved.dtype not in FLOATS and not is_complex(saved.dtype):
            return SaveDecision(Raw(), f"{_name(saved.dtype)} is kept exactly", indices=indices)
        if rule is None:
            return SaveDecision(Raw(), UNKNOWN)
        decision = self._apply(rule, saved)
        return decision if saved.dtype in FLOATS else _of_complex(decision, saved)

    def _apply(self, rule: Rule, saved: SavedTensor) -> SaveDecision:
        need = rule.need(saved.role)
        if saved.operator == "rms_norm" and saved.role == "result" and saved.shape[-1] == 1:
            return SaveDecision(Raw(), rule.why)  # a number for each row
        if need in _BITS:
            bits, group_size = self._bits(need), self.level.group_size
            if bits is None:
                return SaveDecision(Raw(), f"{_BITS[need]} is None: kept exactly")
            if need is Need.LINEAR:
                group_size = self._linear_group(bits, saved)
            if need is Need.NORM and saved.operator in _ROW_NORMS:
                group_size = _row_group(saved, group_size)
                if not group_size and (across := _group_across(saved, self.level.group_size)):
                    return SaveDecision(RowByRow(bits, across), need.value, need=need)
                if not group_size:
                    return SaveDecision(
                        Raw(), "rows are normalized one by one, but share quantization groups: kept exactly"
                    )
            # Rows beyond its last group are not read, and may hold anything, even NaN.
            if saved.operator == "grouped_mm":
                group_size = _row_group(saved, group_size)
                if not group_size:
                    return SaveDecision(Raw(), "rows may be undefined, but share quantization groups: kept exactly")
            if need is Need.RECOMPUTED:  # a segment may begin with a normalisation of rows
                group_size = _row_group(saved, group_size) or group_size
            form = need if need is Need.SATURATING else None
            normalised = need is Need.NORM and saved.operator not in _ROW_NORMS
            return SaveDecision(GroupAffine(bits, group_size), need.value, form, normalised=normalised, need=need)
        if need is Need.SIGN:
            return SaveDecision(Positive(), need.value)
        if need is Need.MASK:
            return SaveDecision(None, need.value)
        if need in (Need.INSIDE, Need.SHAPE):
            return SaveDecision(Raw(), need.value, need)
        return SaveDecision(Raw(), rule.why or need.value)

    def _linear_group(self, bits: int, saved: SavedTensor) -> int:
        """Return the group size for the inputs of linear operators.

        With four bits, the error of 256 normal numbers is 0.152 of their norm, and that of 128 is 0.139. The former is
        above the error that levels promise for the whole gradient, and linear layers make most of a wide network's
        gradient. Smaller groups cost a quarter of a bit per element in float32: for such a network, 1 % of L1's bytes.

        A norm that reads the same tensor may have groups of 160, 192 or 224 elements of one row each. Groups of 128 are
        finer and would replace these, so that two rows shared a group.
        """
        if bits > _COARSE or self.level.group_size != GROUP_SIZE:
            return self.level.group_size
        fine = GROUP_SIZE // 2
        rows = _row_group(saved, GROUP_SIZE) if saved.shape else 0
        return rows if rows > fine and rows % fine else fine

    def _bits(self, need: Need) -> int | None:
        """Bits an element for a need; no need gets fewer than linear operators do."""
        bits, own = self.level.bits, getattr(self.level, _BITS[need])
        return None if bits is None or own is None else max(bits, own)


@dataclass(frozen=True)
class ExactForms:
    """The policy that rounds nothing: a tensor of which backward needs less than the elements, such as signs, masks,
    shapes and indices, is stored in as few bits as that takes. All others are kept as they are.

    Attributes:
        level: says which tensors are small, and which are kept; its bits do not count.
    """

    level: Level

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""
        decision = FixedBits(replace(self.level, bits=8, adaptive=False)).decide(saved)
        if isinstance(decision.codec, GroupAffine):
            return SaveDecision(Raw(), NEEDS_EXACT, from_forward=decision.from_forward)
        return decision


@dataclass(frozen=True)
class Shared(FixedBits):
    """A level's policy in which all savers of a value share one stored form. None has clamped values of its own, except
    operators whose slope jumps where they are clamped. None has smaller groups than another, so that nothing is stored
    a second time for better groups: all have groups that suit rows which a normalisation may read."""

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""
        decision = super().decide(saved)
        codec = decision.codec
        if not isinstance(codec, GroupAffine):
            return decision
        if codec.group_size == self.level.group_size or saved.operator == CHECKPOINT:
            decision = replace(decision, codec=replace(codec, group_size=_shared_group(saved, self.level.group_size)))
        if decision.form is Need.SATURATING and saved.operator not in _JUMPING:
            return replace(decision, form=None)
        return decision

    def _linear_group(self, bits: int, saved: SavedTensor) -> int:
        return self.level.group_size


@dataclass(frozen=True)
class Slopes:
    """A policy that stores the derivative of an activation, and everything else as another policy says.

    Attributes:
        policy: the other policy.
        bits: bits of the derivative, 1 to 8.
        level: says which tensors are too small, and which modules are kept exactly.
    """

    policy: Policy
    bits: int
    level: Level

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The other policy's decision, with the bits of the derivative. It holds where the call's arguments allow no
        codebook."""
        decision = self.policy.decide(saved)
        too_small = saved.shape.numel() * saved.dtype.itemsize < self.level.min_bytes
        if too_small or saved.module in self.level.keep or not has_slope(saved):
            return decision
        return replace(decision, slope_bits=self.bits)


@dataclass(frozen=True, eq=False)
class Through:
    """A policy that stores through one codec what another policy rounds, and everything else as the other says.

    Attributes:
        policy: the other policy.
        codec: any codec of actcore's or the user's. A ``GroupAffine`` says how to round; its bits and groups are in the
            other policy's level, so that what is normalised together still shares no group with other elements.
    """

    policy: Policy
    codec: Codec

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The other policy's decision, with this codec if it rounds."""
        decision = self.policy.decide(saved)
        if not isinstance(decision.codec, GroupAffine):
            return decision
        if isinstance(self.codec, GroupAffine):
            return replace(decision, codec=replace(decision.codec, rounding=self.codec.rounding))
        if is_complex(saved.dtype):
            return SaveDecision(Raw(), f"{_name(saved.dtype)} is kept exactly by a codec of real numbers")
        return replace(decision, codec=self.codec, form=None, normalised=False)


@dataclass(frozen=True)
class Sources(FixedBits):
    """The same level's policy where others are recomputed from what is stored: no values are clamped, but for savers
    whose slope jumps where they are, and rows that may be normalised share no group.

    Two kinds of tensors are a small part of the bytes and much of a gradient's error, and get 8 bits: those of few
    features, as between the two matrices of an adapter, and factors that no gradient goes to, such as the angles by
    which all layers rotate queries and keys.
    """

    def decide(self, saved: SavedTensor) -> SaveDecision:
        """The codec for a tensor that autograd alone keeps alive, and the reason."""
        decision = super().decide(saved)
        if decision.form is Need.SATURATING and saved.operator not in _JUMPING:
            return replace(decision, form=None)
        codec = decision.codec
        if not isinstance(codec, GroupAffine):
            return decision
        if decision.need is Need.MOMENT:
            size = _row_group(saved, self.level.group_size) or self.level.group_size
            return replace(decision, codec=replace(codec, group_size=size))
        if is_narrow(saved) or (decision.need is Need.PRODUCT and not saved.requires_grad):
            return replace(decision, codec=replace(codec, bits=8))
        return decision


def is_narrow(saved: SavedTensor) -> bool:
    """Whether a tensor is the input of a linear layer with few features."""
    return saved.operator in ("linear", "addmm") and saved.shape[-1] <= _NARROW


def keeps_norm_input(features: int) -> bool:
    """Whether levels keep the input of a normalization exactly, because rows of so many features share groups."""
    return features % _SMALLEST_GROUP != 0


def fixed_bits(level: Level) -> FixedBits:
    """A level's policy."""
    return Sources(level) if level.recompute else FixedBits(level)


def make_policy(store: Store, base: Level) -> Policy:
    """The policy by which all savers of a value put it in a store. ``base`` says the rest, as in ``Store.level``."""
    level = store.level(base)
    policy = ExactForms(level) if store.bits is None else Shared(level)
    return policy if store.slope_bits is None else Slopes(policy, store.slope_bits, level)


def _decides(saved: SavedTensor) -> bool:
    """Whether backward may need to know on which side of a jump a tensor's elements are. Without a rule it is not
    known, and counts as so. Integers and truth values are never recomputed from rounded values."""
    rule = RULES.get(saved.operator)
    if rule is None:
        return saved.operator not in _SMOOTH and saved.dtype is not torch.bool and saved.dtype not in INTEGERS
    return saved.role != "" and rule.decides(saved.role)


def no_rule(operator: str) -> str:
    """The reason for keeping what an operator without a rule saves."""
    return f"no rule for {operator}: kept exactly"


def _row_group(saved: SavedTensor, limit: int) -> int:
    """The largest group of at most ``limit`` elements that no two rows share; 0 where there is none.

    A row of small numbers that shared a group with one of large numbers would be rounded as coarsely, and its
    normalisation would make that error as large as the others' values.
    """
    contiguous = (
        saved.strides and saved.strides[-1] == 1 and all(step % saved.shape[-1] == 0 for step in saved.strides[:-1])
    )
    if not contiguous:
        return 0
    return _find_group(saved.shape[-1], limit)


def _find_group(features: int, limit: int) -> int:
    """The largest group up to a limit that divides a row; 0 where there is none."""
    sizes = range(_SMALLEST_GROUP, limit + 1, _SMALLEST_GROUP)
    return max((size for size in sizes if features % size == 0), default=0)


def _group_across(saved: SavedTensor, limit: int) -> int:
    """The same where rows lie across each other, and are to be stored one after the other; 0 where there is none."""
    if saved.strides and 0 not in saved.strides and Layout(saved.shape, saved.strides).dense:
        return _find_group(saved.shape[-1], limit)
    return 0


def _shared_group(saved: SavedTensor, limit: int) -> int:
    """A group size that suits all readers of a tensor: of one row if a normalisation may read the rows, as those of
    sequences. Images have rows, too, which are short and belong together."""
    rows = _row_group(saved, limit)
    if 0 < 4 * rows <= limit:
        # Groups of 32 elements, which rows of 1376 would have, take seven times as long, and half as many bytes more at
        # 4 bits.
        rows = next((size for size in range(limit, 8 * limit + 1, 32) if saved.shape[-1] % size == 0), rows)
    return rows if rows and (len(saved.shape) <= 3 or 2 * rows >= limit) else limit


def _of_complex(decision: SaveDecision, saved: SavedTensor) -> SaveDecision:
    """The decision for a complex tensor, from that for a real one. Rules of functions that are not linear speak of
    real numbers alone."""
    codec = decision.codec
    if decision.need not in LINEAR_NEEDS or type(codec) is not GroupAffine:
        return SaveDecision(Raw(), f"{_name(saved.dtype)} is kept exactly")
    return replace(decision, codec=ComplexGroupAffine(codec.bits, codec.group_size, codec.rounding))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
