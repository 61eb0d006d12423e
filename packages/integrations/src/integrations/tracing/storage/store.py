"""How one tensor is stored, once its policy has decided: at once, or when backward has recomputed it. The codec may
depend on the call's arguments or the tensor itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from actcore import BitMask, Codec, GroupAffine, Layout, Offload, Raw, SavedTensor, compress, missing_on
from integrations._utils.plain_tensor_types import has_elements
from integrations._utils.torch_internals import tree_map_only
from integrations.policies.arguments import departures, index_codec
from integrations.policies.levels import Level
from integrations.policies.norms import compute_statistics
from integrations.policies.policy import SaveDecision, no_rule
from integrations.policies.rules import CHECKPOINT
from integrations.policies.slopes import find_activation, find_codebook
from integrations.policies.stores import BESIDE, HostCopies
from integrations.tracing.call import Call
from integrations.tracing.masks import is_masked
from integrations.tracing.storage.forms import SLOPE, Form, Held, Packed, SlopeForm, make_form, window_indices
from integrations.tracing.storage.projection import projection
from integrations.tracing.storage.records import RECOMPUTED, Record
from integrations.tracing.storage.regions import Stream, is_ours
from integrations.tracing.storage.storage import Storages
from integrations.tracing.storage.storage_policy import StoragePolicy
from integrations.tracing.tensors import Extent

_STORAGES = "storages"


@dataclass(frozen=True)
class Storing:
    """Stores tensors.

    Attributes:
        level: the level of all of them.
        storages: what is stored of each storage so far.
        copies: those to the host and back, if the level asks for them.
    """

    level: Level
    storages: Storages
    copies: HostCopies = BESIDE

    def store(
        self, tensor: Tensor, decision: SaveDecision, extent: Extent, record: Record, call: Call | None, stream: Stream
    ) -> tuple[Packed, Codec | None]:
        """Stores a tensor as it was decided, and writes into its record how.

        Returns:
            what is held in its place, and the codec; ``None`` for a tensor that is kept, or whose derivative is stored.
        """
        try:
            slope = self._slope(tensor, decision, call)
            if slope is not None:
                record.codec, record.why, record.stored_bytes, record.host = slope.name, SLOPE, slope.nbytes, slope.host
                return replace(slope, double=self.storages.last.double), None
            form = self._form(tensor, decision, call, stream)
            if form is not None:
                record.codec, record.stored_bytes, record.host = form.name, form.nbytes, form.host
                record.why = INDICES if decision.indices else record.why
                if isinstance(form, Held):
                    form = replace(form, double=self.storages.last.double)
                return form, decision.codec
            codec = self._placed(_codec_for(tensor, decision, record, call), tensor)
            if isinstance(codec, Raw):
                return self.storages.keep(tensor, extent, record), None
            seed, whole = self.level.seed, None
            if call is not None and call.recomputes and not extent.dense and type(codec) is GroupAffine:
                whole, codec = projection(tensor, call, codec)
            return self.storages.store(tensor, extent, codec, record, seed=seed, stream=stream, whole=whole), codec
        # An unsupported dtype, a mask with a third value, an index out of range.
        except (TypeError, ValueError) as refusal:
            fixed = decision.codec is not None and not decision.indices and is_ours(decision.codec)
            if isinstance(refusal, ValueError) and fixed:
                raise
            record.why = f"kept exactly: {refusal}"
            return self.storages.keep(tensor, extent, record), None

    def _slope(self, tensor: Tensor, decision: SaveDecision, call: Call | None) -> SlopeForm | None:
        """The bits of an activation's derivative, if they are asked for and the call's arguments allow them."""
        if decision.slope_bits is None or call is None or not packable(tensor):
            return None
        activation = find_activation(call.name, call.given, call.in_place)
        codebook = find_codebook(activation, decision.slope_bits, tensor.dtype)
        if codebook is None:
            return None
        return SlopeForm(compress(tensor.detach(), self._placed(codebook, tensor)))

    def _form(self, tensor: Tensor, decision: SaveDecision, call: Call | None, stream: Stream) -> Form | None:
        """A form that serves this call alone, if its arguments allow one."""
        if call is None or not (decision.indices or decision.form) or not packable(tensor):
            return None
        if decision.indices:
            return window_indices(call.name, call.given, tensor, self._placed(Raw(), tensor))
        if decision.form is None or decision.codec is None:
            return None
        return make_form(
            decision.form,
            call.name,
            call.given,
            tensor.detach(),
            decision.codec,
            lambda codec: self._placed(codec, tensor),
            seed=self.level.seed,
            stream=stream,
        )

    def _placed(self, codec: Codec, tensor: Tensor) -> Codec:
        """The codec, with its stored form on the host if the level says so, the tensor is on a device, and it is large
        enough to be worth two copies."""
        if not self.level.offload or not _can_leave(tensor):
            return codec
        small = Layout.of(tensor).stored_numel * tensor.itemsize < self.level.min_bytes
        return codec if small or lazy(tensor) else Offload(codec, None, *self.copies)


class StoredLater:
    """How a recomputed tensor is stored from then on until backward reads it: as it would be in the forward, with the
    same noise.
    """

    __slots__ = ("_call", "_decision", "_extent", "_saved", "_stream", "_way")

    def __init__(
        self,
        way: StoragePolicy,
        decision: SaveDecision,
        extent: Extent,
        saved: SavedTensor,
        stream: Stream,
        call: Call | None,
    ) -> None:
        self._way, self._decision, self._extent = way, decision, extent
        self._saved, self._stream = saved, stream
        # Only plain values and shapes of the call are read; its tensors are not to be kept alive.
        self._call = _without_tensors(call) if decision.asks_call and call is not None else None

    def store(self, tensor: Tensor, stored: dict[str, Any]) -> Packed:
        """Stores the tensor."""
        storing = Storing(self._way.level, stored.setdefault(_STORAGES, Storages()), self._way.copies)
        record = Record(self._saved, RECOMPUTED, self._decision.why)
        return storing.store(tensor, self._decision, self._extent, record, self._call, self._stream)[0]


def _without_tensors(call: Call) -> Call:
    args, kwargs = tree_map_only(Tensor, _outline, (call.given.args, dict(call.given.kwargs)))
    return Call(call.function, args, kwargs)


def _outline(tensor: Tensor) -> Tensor:
    """A tensor of that shape and dtype, without elements."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _can_leave(tensor: Tensor) -> bool:
    """Whether ``Offload`` can copy the tensor to the host. A fake tensor may be on a GPU that is not there."""
    return tensor.device.type == "cuda" and has_elements(tensor)


INDICES = "indices in a range known from the call: exact, in the fewest bits"
MASKED = "an input of a checkpoint with outliers like those of a mask: kept exactly"


def lazy(tensor: Tensor) -> bool:
    """Whether the elements in memory differ from those that are read, as in a conjugated or negated view."""
    return bool(tensor.is_neg() or tensor._is_zerotensor())


def _missing_for(tensor: Tensor) -> str:
    """Why there are no operators for a tensor; empty if there are. A fake tensor may be on a GPU of another machine,
    whose operators are taken to be there."""
    elsewhere = tensor.is_cuda and not has_elements(tensor) and not torch.cuda.is_available()
    return "" if elsewhere else missing_on(tensor.device)


def packable(tensor: Tensor) -> bool:
    """Whether operators can read the tensor where it is."""
    return not lazy(tensor) and not _missing_for(tensor)


def _codec_for(tensor: Tensor, decision: SaveDecision, record: Record, call: Call | None) -> Codec:
    """The decision's codec; for indices the codec that follows from the call's arguments, for a mask of unknown values
    the one that follows from its data."""
    if lazy(tensor):
        record.why = "lazily negated, or zeros without memory: kept exactly"
        return Raw()
    if decision.indices and call is not None and not _missing_for(tensor):
        narrow = index_codec(call.name, call.given)
        if narrow is not None:
            record.why = INDICES
            return narrow
    if decision.form is not None:
        record.why = f"{decision.why}, but for these arguments or bits there is no such form: kept exactly"
        return Raw()
    if isinstance(decision.codec, Raw):
        if call is not None and call.operator != call.name and decision.why == no_rule(call.operator):
            record.why = no_rule(f"{call.name} with {departures(call.name, call.given)}")
        return decision.codec
    if missing := _missing_for(tensor):
        record.why = f"kept exactly: {missing}"
        return Raw()
    if decision.codec is not None:
        looked_at = record.saved.operator == CHECKPOINT and tensor.device.type == "cpu" and has_elements(tensor)
        if looked_at and isinstance(decision.codec, GroupAffine) and is_masked(tensor, decision.codec.group_size):
            record.why = MASKED
            return Raw()
        if decision.normalised and isinstance(decision.codec, GroupAffine) and call is not None:
            return _of_norm(tensor, decision.codec, record, call)
        return decision.codec
    if tensor.device.type != "cpu":
        record.why = "a mask of unknown values on a device, where reading them would synchronize: kept exactly"
        return Raw()
    return BitMask((0.0, tensor.max().item() if has_elements(tensor) else 1.0))


def _of_norm(tensor: Tensor, codec: GroupAffine, record: Record, call: Call) -> Codec:
    """The codec for the input of a normalisation, made from ``codec``, which would store it if nothing were
    normalised."""
    statistics = compute_statistics(call.name, call.given, tensor.shape)
    if statistics is None:
        return codec
    found = statistics.codec(codec, tensor.shape, tensor.stride())
    if found is None:
        record.why = statistics.why
        return Raw()
    return found
