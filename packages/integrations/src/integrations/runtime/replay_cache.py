"""``Site``: a saved tensor of a forward and how it was stored, so that the next forward can do the same."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from actcore import BitMask, Compressed, GroupAffine, Layout, Narrow, Positive
from actcore.codec import as_int64
from actcore.noise import identity_of
from actcore.replay import KERNELS
from integrations._utils.torch_internals import OpOverload
from integrations.policies.arguments import ASSUMED, departures
from integrations.policies.norms import Standardized, given_to
from integrations.policies.standardizing import has_operators, order_for
from integrations.runtime.formulas.formula import Noted, Recomputed
from integrations.runtime.specs import Place, SavedTensorSpec
from integrations.tracing.call import Call
from integrations.tracing.norm_inputs import compress_for_norm
from integrations.tracing.storage.forms import Clamped, Packed, Placeholder
from integrations.tracing.storage.projection import beginnings
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.regions import Exact, Region, View
from integrations.tracing.storage.storage import StorageEntry

COMPRESS = torch.ops.actcore.group_affine_compress.default
COMPRESS_CLAMPED = torch.ops.actcore.group_affine_clamped_compress.default
MASK = torch.ops.actcore.bit_mask_compress.default
NARROW = torch.ops.actcore.narrow_compress.default
SIGNS = torch.ops.actcore.positive_mask.default
"""The operators that encode what is stored."""


def with_kernel(encoder: OpOverload) -> tuple[OpOverload, Callable[..., Any] | None]:
    """An operator, and a function that does the same for a CPU tensor without torch's dispatcher; ``None`` if there is
    none."""
    schema = getattr(encoder, "_schema", None)
    return encoder, None if schema is None else KERNELS.get(schema.name.removeprefix("actcore::"))


KEPT, VALUE, SIGN, HELD, SHAPE, RECOMPUTED_LATER, BY_FORMULA = range(7)
"""The form in which a tensor is stored: as it is; encoded, in a region that others may share; its signs, likewise;
encoded for one operator alone; its shape alone; not yet, because a plan recomputes it; not at all, because a formula
does. The order is that of ``Form`` in ``csrc/bindings/replay_stores.cpp``."""

ALONE, OF_KEPT, OF_VALUE, BESIDE_SIGN, BESIDE_KEPT = range(5)
"""What was saved before of a tensor's memory: nothing; all of it, kept; all of it, encoded with the same codec; its
signs; a kept part. The order is that of ``Sharing`` in ``csrc/bindings/replay_stores.cpp``."""


class Site:
    """A saved tensor of a forward, how it was stored, and what a tensor of the next forward must match to be stored
    likewise.

    Threads may share a site: once it is noted, only two attributes change. ``next`` does, and ``function`` is set to
    what no call has, where the stored form turned out not to follow from the site.

    Attributes:
        spec: the tensor's description. Shape, strides, dtype, device and requires_grad are parts of it.
        function: the function that saves it; ``None`` where no call was seen.
        given: the argument that its stored form follows from, as ``norms.given_to`` has it; ``None`` for none.
        still: whether the arguments of another call lead to the same decisions as those of the call that was seen;
            ``None`` where no decision followed from them.
        place, module, role, occurrence: where it is saved, and how many tensors were saved there before.
        following: the occurrence of the next tensor there.
        caller: the module, weakly, if it is the innermost whose forward runs; else ``None``.
        owner: what keeps it alive anyway; empty if only autograd does.
        value: the plan's number of its memory; ``None``, or ``UNPLANNED`` with a tape, for memory that the plan does
            not know.
        next: the site of the tensor that was saved after it; ``None`` for the last.
        form: its form, one of ``KEPT`` and so on, if that takes at most one call; ``None`` for what the session has to
            do.
        sharing: what was saved of its memory before, one of ``ALONE`` and so on.
        record, region, held: templates to be copied; for an owned tensor, the record itself.
        encoder: the codec's operator.
        kernel: a function that does the same for a CPU tensor without torch's dispatcher; ``None`` for none.
        arguments: what the encoder is given after the tensor. With noise they begin with bits, elements of a group,
            whether to round at random, seed and stream.
        parts: which of the encoder's results are the payload.
        checked: whether the last result says that an element does not fit the form.
        fields: the fields of the stored form except the payload.
        noise: the part of the stream that is the same in each forward; ``None`` for none.
        flat: if the tensor is not contiguous, the shape, strides and offset under which it is encoded.
        whole: where query, key and value of attention begin, if all three are stored as one; else ``None``.
        formula: the noted result by whose formula it is recomputed, and the bits that this takes; ``None`` for none.
    """

    __slots__ = (
        "arguments",
        "caller",
        "checked",
        "device",
        "dtype",
        "encoder",
        "fields",
        "flat",
        "following",
        "form",
        "formula",
        "function",
        "given",
        "held",
        "kernel",
        "module",
        "next",
        "noise",
        "occurrence",
        "owner",
        "parts",
        "place",
        "record",
        "region",
        "requires_grad",
        "role",
        "shape",
        "sharing",
        "spec",
        "still",
        "strides",
        "value",
        "whole",
    )  # fmt: skip

    def __init__(self, spec: SavedTensorSpec, place: Place, occurrence: int, call: Call | None, owner: str) -> None:
        saved = spec.saved
        self.spec, self.place, self.occurrence, self.following = spec, place, occurrence, occurrence + 1
        self.module, _, self.role = place
        self.function, self.owner, self.given = _get_function(call), owner, _given(call)
        self.shape, self.strides, self.dtype = saved.shape, saved.strides, saved.dtype
        self.device, self.requires_grad = saved.device, saved.requires_grad
        self.caller: weakref.ref[nn.Module] | None = None
        self.value: int | None = None
        self.next: Site | None = None
        self.form: int | None = None
        self.sharing = ALONE
        self.record: Record | None = spec.kept_by(owner) if owner else None
        self.region: Region | None = None
        self.held: Packed | None = None
        self.encoder: Any = None
        self.kernel: Any = None
        self.arguments: tuple[Any, ...] = ()
        self.parts = 0
        self.checked = False
        self.fields: dict[str, object] | None = None
        self.flat: tuple[Any, ...] | None = None
        self.still: Callable[[Call], bool] | None = None
        if call is not None and call.name in ASSUMED:
            self.still = partial(_departs, departures(call.name, call.given))
        self.whole: tuple[int, int, int] | None = None
        self.formula: tuple[Noted, int] | None = None
        self.noise: int | None = None

    def is_of(self, call: Call | None, owner: str, value: int | None) -> bool:
        """Whether a tensor with the same spec matches this site."""
        called = self.function is _get_function(call) and self.given == _given(call)
        if not (called and self.owner == owner and self.value == value):
            return False
        return self.still is None or (call is not None and self.still(call))

    def learn(self, tensor: Tensor, call: Call, record: Record, packed: Packed, entry: StorageEntry, seed: int) -> None:
        """Notes how the tensor was stored, if that took at most one call of a codec.

        Args:
            tensor, call: the tensor, and the call that saves it.
            record: its record.
            packed: what autograd holds in its place.
            entry: what is known of its memory now.
            seed: seed of the noise.
        """
        if type(packed) is Exact and packed.region is not None and record.codec == "kept":
            region = packed.region
            if all(other.kept is not None for other in entry.alive()) and record.stored_bytes == record.original_bytes:
                self.sharing = ALONE if record.original_bytes else BESIDE_KEPT
                self.held = Exact(None, None)  # type: ignore[arg-type]
                self.record, self.region = copy.copy(record), _template(region)
                self.form = KEPT
        elif type(packed) is View and len(entry.alive()) == 1 and not record.host:
            self._learn_view(tensor, call, record, packed, seed)
        elif type(packed) is Placeholder:
            self.record, self.held, self.form = copy.copy(record), packed, SHAPE
        elif type(packed) is Clamped and self._encodes(packed.compressed, seed, (packed.low, packed.high)):
            self.record, self.held, self.form = copy.copy(record), replace(packed, compressed=None), HELD  # type: ignore[arg-type]

    def learn_recomputed(self, record: Record) -> None:
        """Notes that a plan recomputes the tensor when backward reads it."""
        self.record, self.form = copy.copy(record), RECOMPUTED_LATER

    def learn_formula(self, tensor: Tensor, record: Record, packed: Recomputed, bits: int) -> None:
        """Notes that a formula recomputes the tensor, which is a part of its result or all of it."""
        formula = packed.bound.formula
        if formula.noted is not None and formula.noted.template is not None and formula.version == tensor._version:
            self.record, self.held, self.form = copy.copy(record), packed.template(), BY_FORMULA
            self.formula = (formula.noted, bits)

    def _learn_view(self, tensor: Tensor, call: Call, record: Record, packed: View, seed: int) -> None:
        region, layout = packed.region, self.spec.extent.layout
        if not region.dense:
            return
        if region.numel != self.spec.extent.numel or packed.offset != region.start:
            whole = beginnings(tensor, call) if call.recomputes and not self.spec.extent.dense else None
            if whole is None or region.start != 0 or region.layout != Layout((region.numel,), (1,)):
                return
            self.whole = whole
        form, value = VALUE, region.value
        if region.kept is not None:
            self.sharing = OF_KEPT
        elif packed.sign:
            if value is not None or region.sign_record is not record or not self._encodes(region.sign, seed):
                return
            form = SIGN
        elif not self._encodes(value, seed):
            return
        elif region.record is not record:
            self.sharing = OF_VALUE
        elif region.sign is not None:
            self.sharing = BESIDE_SIGN
        self.record, self.region = copy.copy(record), _template(region)
        self.held = held = copy.copy(packed)
        held.region = None  # type: ignore[assignment]
        if self.whole is not None:
            self.flat = (*region.layout, 0)
            if self.fields is not None:  # a region that is kept has no stored form
                self.fields["layout"] = region.layout
        else:
            self.flat = None if layout.contiguous else (region.layout.shape, region.layout.strides)
        self.form = form

    def _encodes(self, stored: Compressed | None, seed: int, bounds: tuple[float, ...] = ()) -> bool:
        """Notes the call that made a stored form, if it is a known one. Returns whether it is.

        Args:
            stored: the form.
            seed: seed of the noise.
            bounds: what its elements were clamped to.
        """
        codec, extent = None if stored is None else stored.codec, self.spec.extent
        on_cpu = self.device.type == "cpu"
        if type(codec) is GroupAffine:
            if bounds and not (extent.layout.contiguous and has_operators(self.device)):
                return False
            self.encoder, self.parts = COMPRESS_CLAMPED if bounds else COMPRESS, 2
            self.arguments = (codec.bits, codec.group_size, codec.rounding == "stochastic", as_int64("seed", seed), 0)
            self.arguments += bounds
            self.noise = identity_of(self.spec.identity)
        elif type(codec) is Standardized:
            stands = has_operators(self.device)
            order = order_for(codec, codec.groups, extent.layout, self.dtype) if stands else None
            if order is None:  # other operators made it
                return False
            self.encoder, self.parts, self.noise = compress_for_norm, 3, identity_of(self.spec.identity)
            self.arguments = (codec.bits, codec.group_size, codec.rounding == "stochastic", as_int64("seed", seed), 0)
            self.arguments += (codec.count, *order)
        elif type(codec) is BitMask and (codec.values == (0, 1) if self.dtype is torch.bool else on_cpu):
            self.encoder, self.arguments, self.parts = MASK, tuple(map(float, codec.values)), 1
            self.checked = self.dtype is not torch.bool  # a bool always fits
        elif type(codec) is Narrow and self.dtype is torch.int64 and on_cpu:
            self.encoder, self.arguments, self.parts, self.checked = NARROW, (codec.low, codec.high), 1, True
        elif type(codec) is Positive:
            self.encoder, self.arguments, self.parts = SIGNS, (), 1
        else:
            return False
        assert stored is not None
        self.encoder, self.kernel = with_kernel(self.encoder)
        self.fields = {
            "codec": codec, "payload": (), "layout": extent.layout, "dtype": stored.dtype, "sound": True,
        }  # fmt: skip
        return True


def _get_function(call: Call | None) -> Any:
    return None if call is None else call.function


def _departs(so: str, call: Call) -> bool:
    """Whether a call's arguments depart in this way from those that its operator's rule is for. The rule, and what a
    record says of it, follow from that."""
    return departures(call.name, call.given) == so


def _given(call: Call | None) -> tuple[int, str, Any] | None:
    """The argument that a call's stored form follows from."""
    return None if call is None else given_to(call.name, call.given)


def _template(region: Region) -> Region:
    """A region like this one that holds nothing."""
    template = copy.copy(region)
    template.value = template.sign = template.kept = template.lent = template.record = template.sign_record = None
    template.last = None  # type: ignore[assignment]
    template.waiting = 0
    return template
