"""What a forward decided of each saved tensor, for the next forward to do the same without deciding anew.

In most models a forward saves the same tensors in the same order as the one before. So the ``Site`` of each tensor
leads to the site of the tensor that was saved after it, and the next forward only has to check that its tensor is the
same: the function that is called and the tensor's role in it, the calling module and how many tensors came from there
before, shape, strides, dtype and device, who keeps the memory alive, and, where a tape follows a plan, the value. All
that the decision follows from is compared; the place in the order only says which site to compare with. Where something
differs, this tensor goes the full way, which finds or makes its site, and the next tensor is compared with the site
after that.

``actcore.replay.Replay`` compares, and does what takes at most one call of a codec; the rest is left to the session.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from actcore import BitMask, Compressed, GroupAffine, Kept, Narrow, Positive, in_cuda_graph
from actcore.noise import step_key
from actcore.replay import FollowedCalls, Replay, bind_replay
from integrations._utils.running_module import innermost
from integrations._utils.torch_internals import (
    MODULE_CALL,
    PROXY,
    AutoDispatchBelowAutograd,
    DisableTorchFunction,
    OpOverload,
    get_dispatch_mode,
    get_eval_frame_callback,
    len_torch_dispatch_stack,
    len_torch_function_stack,
    profiler_enabled,
    set_grad_enabled,
)
from integrations.policies.arguments import index_codec
from integrations.policies.norms import Standardized
from integrations.policies.standardizing import DECOMPRESS, get_order
from integrations.runtime.double_backward import differentiated
from integrations.runtime.formulas.formula import (
    Bound,
    Formula,
    Inner,
    LastComputed,
    Made,
    Noted,
    Read,
    Recomputed,
    Slot,
    Stored,
    Template,
    There,
    enter_autocast,
    explain_change,
    get_bits,
    hold_whole,
    lay_out,
)
from integrations.runtime.formulas.normalized_inputs import compute_after, hold_statistics
from integrations.runtime.formulas.operators import get_autocast
from integrations.runtime.replay_cache import Site, with_kernel
from integrations.runtime.specs import MADE, Place, SavedTensorSpec
from integrations.tracing.call import Call
from integrations.tracing.owners import BEFORE
from integrations.tracing.storage.forms import Clamped, Packed, Placeholder
from integrations.tracing.storage.records import RECOMPUTED, Record
from integrations.tracing.storage.regions import (
    AS_IN_MEMORY,
    Beside,
    Exact,
    LastRestored,
    Region,
    View,
    find_lazy_changes,
    used_on,
)
from integrations.tracing.storage.storage import StorageEntry
from integrations.tracing.tensors import find_local

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward

FORCED_OFF = os.environ.get("INTEGRATIONS_REPLAY") == "0"
"""Whether every tensor goes the full way. The results are the same, so that a test of one way tests the other."""


class Sites:
    """The sites of one session: those of the forward before, which it follows, and those that it finds.

    Args:
        session: the session whose tensors have the sites.
        watched: whether each tensor has to go the full way, because an observer looks on.

    Attributes:
        watched: as given.
        pack: stores a tensor as the forward before did; ``None`` where it has to go the full way.
    """

    def __init__(self, session: PackedForward, watched: bool) -> None:
        self._session: PackedForward = weakref.proxy(session)
        self.watched = watched or FORCED_OFF
        self._replay: Any = None  # before the first tensor is saved
        self.pack: Callable[[Tensor], Packed | None] = _nothing if self.watched else self._begin

    def end(self) -> None:
        """Ends with the session, to which the part in C leads back."""
        self.watched, self._replay, self.pack = True, None, _nothing

    def site_of(
        self,
        spec: SavedTensorSpec,
        place: Place,
        occurrence: int,
        call: Call | None,
        owner: str,
        storage: torch.UntypedStorage,
        tensor: Tensor,
    ) -> Site | None:
        """The site of a tensor that goes the full way: the one that it had, or a new one; ``None`` if the tensor needs
        none."""
        if self._replay is None:
            return None
        session, site = self._session, spec.site
        plan_decisions, value = session.plan_decisions, None
        if plan_decisions is not None and plan_decisions.values is not None:
            value = plan_decisions.values.get(storage._cdata)
            known = None if value is not None or site is None or place[2] not in MADE else site.value
            if known is not None and plan_decisions.meet is not None and plan_decisions.meet(storage, known, tensor):
                value = known
        elif plan_decisions is not None:  # only sites know the values
            if site is None or not site.is_of(call, owner, site.value):
                return None
            value = site.value
        if site is None or site.form is None or not site.is_of(call, owner, value):
            site = Site(spec, place, occurrence, call, owner)
            site.value = value
            caller = innermost()
            site.caller = None if caller is None or session.paths.path_of(caller) != place[0] else weakref.ref(caller)
        return site

    def note(
        self, site: Site, tensor: Tensor, storage: torch.UntypedStorage, call: Call | None, packed: Packed
    ) -> None:
        """Notes a tensor that went the full way: the next tensor is compared with the site after this one."""
        session = self._session
        entry = None if site.owner or site.form is not None else session.storages.entries.get(storage)
        if entry is not None and call is not None:
            record, planned = (
                session.records[-1],
                None if session.plan_decisions is None else session.plan_decisions.of(tensor, site),
            )
            if planned is not None and planned.placeholder is not None:
                if record.codec == RECOMPUTED and not planned.waits:
                    site.learn_recomputed(record)
            elif type(packed) is Recomputed:
                taken = site.spec.taken
                if taken is not None and isinstance(taken.codec, GroupAffine):
                    site.learn_formula(tensor, record, packed, taken.codec.bits)
            elif self._is_repeatable(tensor, site, call, packed):
                site.learn(tensor, call, record, packed, entry, session.level.seed)
        site.spec.site = site
        if self._replay.note(site):
            session.specs.first = site

    def hold(self, site: Site, tensor: Tensor) -> Packed | None:
        """Stores a tensor that is held for a repetition as its site says; ``None`` where it has to go the full way."""
        if self._replay is None:
            return None
        held: Packed | None = self._replay.hold(site, tensor)
        return held

    def site_of_held(self, site: Site, tensor: Tensor, call: Call | None, packed: Packed) -> Site | None:
        """A new site of a tensor that is held for a repetition; ``None`` if it has to go the full way each time."""
        session = self._session
        entry = None if site.owner else session.storages.entries.get(tensor.untyped_storage())
        if entry is not None and call is not None and self._is_repeatable(tensor, site, call, packed):
            site.learn(tensor, call, session.records[-1], packed, entry, session.level.seed)
        return site if site.owner or site.form is not None else None

    def _is_repeatable(self, tensor: Tensor, site: Site, call: Call, packed: Packed) -> bool:
        """Whether what was done with a tensor follows only from what its site compares, and not from other arguments of
        its call or from the values of its elements."""
        taken = site.spec.taken
        if taken is None or any(find_lazy_changes(tensor)) or (taken.codec is None and type(packed) is not View):
            return False  # the mask is kept because of one of its elements, which another mask need not have
        if taken.indices and taken.slope_bits is None and taken.form is None and site.still is None:
            codec = index_codec(call.name, call.given)
            if codec is not None and type(packed) is not View:
                return False
            site.still = partial(_has_indices, codec)
        elif taken.asks_call:
            # The function alone decides on these two forms; for other forms the site looks at its arguments.
            by_function = type(packed) in (Placeholder, Clamped) and taken.slope_bits is None
            if not by_function and not (taken.normalised and site.given is not None):
                return False
        return True

    def _begin(self, tensor: Tensor) -> Packed | None:
        """Packs the first tensor."""
        self._replay = self._begun()
        self.pack = self._replay.pack
        if self._session.aside is None:
            self._session.packing.replay = self._replay
        if isinstance(follower := self._session.tracker.follower, FollowedCalls):
            follower.replay = self._replay
        return self.pack(tensor)

    def _begun(self) -> Any:
        session, plan_decisions = self._session, self._session.plan_decisions
        tracker, owners, entries = session.tracker, session.owners, session.storages.entries
        return Replay(
            tracker=tracker,
            occurrences=session.occurrences,
            holders=owners.holders,
            foreign=tracker.foreign.by_address,
            exposed=tracker.exposed.by_address,
            due=session.announced.due_by_address,
            records=session.records,
            entries=entries.by_address,
            lent=session.storages.last,
            dtype=owners.dtype,
            values=None if plan_decisions is None else plan_decisions.values,
            store=session.store,
            module=session.module_of_call,
            owner=session.owner,
            capturing=in_cuda_graph,
            put=entries.put,
            again=None if plan_decisions is None else plan_decisions.placeholder,
            meet=None if plan_decisions is None else plan_decisions.meet,
            formulas=session.formulas,
            first=session.specs.first,
            step=step_key(session.step, session.rank),
        )


def _has_indices(codec: Narrow | None, call: Call) -> bool:
    """Whether the arguments of a call tell the range of the indices that it saves."""
    return index_codec(call.name, call.given) == codec


def _nothing(tensor: Tensor) -> None:
    """Packs nothing."""


def _decoder(operator: OpOverload) -> tuple[Any, Any]:
    """An operator, and a function that does the same without torch's dispatcher."""
    return (operator, None) if FORCED_OFF else with_kernel(operator)


BOUND = {
    "Tensor": Tensor,
    "Parameter": nn.Parameter,
    "Call": Call,
    "Site": Site,
    "View": View,
    "Beside": Beside,
    "Kept": Kept,
    "GroupAffine": GroupAffine,
    "Standardized": Standardized,
    "BitMask": BitMask,
    "Narrow": Narrow,
    "Positive": Positive,
    "Clamped": Clamped,
    "Record": Record,
    "Region": Region,
    "Exact": Exact,
    "Entry": StorageEntry,
    "LastRestored": LastRestored,
    "Compressed": Compressed,
    "Noted": Noted,
    "Template": Template,
    "Read": Read,
    "Slot": Slot,
    "Formula": Formula,
    "Stored": Stored,
    "There": There,
    "Made": Made,
    "Inner": Inner,
    "Bound": Bound,
    "Recomputed": Recomputed,
    "AS_IN_MEMORY": AS_IN_MEMORY,
    "get_bits": get_bits,
    "hold_whole": hold_whole,
    "get_autocast": get_autocast,
    "enter_autocast": enter_autocast,
    "explain_change": explain_change,
    "hold_statistics": hold_statistics,
    "compute_after": compute_after,
    "lay_out": lay_out,
    "find_local": find_local,
    "DisableTorchFunction": DisableTorchFunction,
    "set_grad_enabled": set_grad_enabled,
    "used_on": used_on,
    "LastComputed": LastComputed,
    "BEFORE": BEFORE,
    "calling": MODULE_CALL,
    "compiles": get_eval_frame_callback or (lambda: True),
    "dispatch_mode": get_dispatch_mode,
    "PROXY": PROXY,
    "torch_functions": len_torch_function_stack,
    "is_grad_enabled": torch.is_grad_enabled,
    "differentiated": differentiated,
    "below_autograd": AutoDispatchBelowAutograd,
    "modes": len_torch_dispatch_stack,
    "profiled": profiler_enabled,
    "decompress": _decoder(torch.ops.actcore.group_affine_decompress.default),
    "destandardize": _decoder(DECOMPRESS),
    "order": get_order,
    "widen": _decoder(torch.ops.actcore.narrow_decompress.default),
    "spread": _decoder(torch.ops.actcore.bit_mask_decompress.default),
}
"""What the part in C needs of Python, by the names that it has there."""

bind_replay(BOUND)
