"""What becomes of each tensor that autograd saves in one forward: stored, kept or recomputed, and a record of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from actcore import Codec, GroupAffine, Kept, SavedTensor, replayable, stream_of
from actcore.replay import Pack
from integrations._utils.running_module import ModulePaths
from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import DisableTorchFunction, top_saved_tensors_default_hooks
from integrations.policies.levels import Level
from integrations.policies.rules import CHECKPOINT
from integrations.runtime.compiled.runs import RegionRuns
from integrations.runtime.custom_saves import Announced, PendingSave, add_record, settle
from integrations.runtime.formulas.gathers import Joined
from integrations.runtime.formulas.table import Formulas, explain, notes_all
from integrations.runtime.plan_decisions import PlanDecisions
from integrations.runtime.repeating.calls import KnownSite
from integrations.runtime.replay import Sites
from integrations.runtime.replay_cache import BY_FORMULA, Site
from integrations.runtime.specs import Place, SavedTensorSpec, Specs, record_of_compound
from integrations.tracing.call import Call
from integrations.tracing.checkpoints import Boundary, Checkpoints
from integrations.tracing.data_dependence import DECIDES
from integrations.tracing.engine_calls import find_engine_call
from integrations.tracing.owners import CAST, Owners
from integrations.tracing.storage.forms import Packed, Part, Wrapper
from integrations.tracing.storage.records import RECOMPUTED, Record
from integrations.tracing.storage.regions import Exact, inner
from integrations.tracing.storage.storage import Storages
from integrations.tracing.storage.storage_policy import StoragePolicy
from integrations.tracing.storage.store import StoredLater, Storing
from integrations.tracing.storage.watch import Observer
from integrations.tracing.tensors import (
    Extent,
    find_part,
    get_memory,
    get_storage,
    is_dtensor,
    wraps_part,
)
from integrations.tracing.tracker import CallTracker


class PackedForward:
    """One forward of a model, which packs every tensor that autograd saves as a level or a plan says.

    Args:
        model: the model. Its parameters, buffers and inputs belong to their owners and are left alone.
        paths: the paths of the model's modules.
        specs: what decides the codecs.
        level: the level.
        step: number of this forward, so that its noise is its own.
        rank: rank of this process.
        observer: is told what happens.
        redraw: returns another number for a tensor, for other noise; for measurements.
        look: is shown each tensor that has a storage, whoever keeps it, before it is stored.

    Attributes:
        paths, specs, level, step, rank, redraw: as given.
        regions: the compiled regions that run in this forward.
        model_name: the name of the model's class.
        way: how a tensor is stored that no plan has.
        plan_decisions: what a plan says of the tensors that are saved; ``None`` where all are stored as the level says.
        aside: a block in which the packing's own operators on a tensor are not taken for the forward's; ``None`` where
            nothing would take them so.
        occurrences: how many tensors this forward has saved so far, by place.
        checkpoints: the checkpoints that the forward enters; ``None`` unless it runs.
        outer: the forward around this one in its thread, once it runs.
        gathers_again: whether backward may repeat all-gathers of DTensors. It is the same on all ranks, which wait for
            one another.
        formulas: those by which backward recomputes tensors of this forward; ``None`` unless it runs, and at levels
            that store them.
        hook: the pack hook that autograd calls; ``None`` unless it runs.
        packing: the pack hook in C, which calls ``pack`` where it has to. It is there while the forward runs.
    """

    packing: Pack

    def __init__(
        self,
        model: nn.Module,
        paths: ModulePaths,
        specs: Specs,
        level: Level,
        step: int,
        rank: int,
        observer: Observer | None = None,
        redraw: Callable[[SavedTensor], int] | None = None,
        look: Callable[[SavedTensor, Tensor], None] | None = None,
    ) -> None:
        self.tracker = CallTracker()
        self.model_name = type(model).__name__
        self.paths = paths
        self.owners = Owners(model)
        self.records: list[Record] = []
        self.specs, self.level = specs, level
        self._observer, self.redraw, self._look = observer, redraw, look
        self.hook: Callable[[Tensor], Packed] | None = None
        self.step, self.rank = step, rank
        self.storages = Storages()
        self._casts = StorageSet()  # autocast's casts of weights that backward recomputes by the plan
        self.way = StoragePolicy(specs.policy, level)
        self.announced = Announced(self)
        self.regions = RegionRuns(self)
        anew = level.recompute and notes_all(step)
        self._sites = Sites(self, anew or observer is not None or redraw is not None or look is not None)
        self.plan_decisions: PlanDecisions | None = None
        self.aside: Callable[[Tensor], AbstractContextManager[Any]] | None = None
        self.occurrences: dict[Place, int] = {}
        self.outer: Self | None = None
        self.gathers_again = False
        self._contexts = ExitStack()  # what is taken back once it is over
        self.formulas: Formulas | None = None
        self.checkpoints: Checkpoints | None = None

    @property
    def replays(self) -> bool:
        """Whether it repeats what the forward before has decided."""
        return not self._sites.watched

    def is_innermost(self) -> bool:
        """Whether autograd calls the hooks of this forward's level for what it saves now."""
        innermost = top_saved_tensors_default_hooks(False)
        return innermost is not None and innermost[0] is self.hook

    def pack(self, tensor: Tensor) -> Packed:
        """The pack hook for what ``packing`` cannot do in C."""
        # Code that the tracker does not see may save tensors, too. Calls made here belong to no forward.
        with DisableTorchFunction(), self.hidden(tensor):
            return self._sites.pack(tensor) or self._pack_fully(tensor)

    def hidden(self, tensor: Tensor) -> AbstractContextManager[Any]:
        """Return a block in which the packing's own operators on a tensor are not taken for the forward's."""
        return nullcontext() if self.aside is None else self.aside(tensor)

    def _pack_other(self, tensor: Tensor) -> Packed:
        """The pack hook for a tensor that ``packing`` has compared and found to differ from the forward before."""
        with DisableTorchFunction():
            return self._pack_fully(tensor)

    def _pack_fully(self, tensor: Tensor) -> Packed:
        """Stores a tensor that differs from the forward before."""
        call = self.tracker.call
        if call is not None and call.module is not None:
            return self._pack_anew(tensor, call.module)
        forward, module = self.owner_of_forward()
        if call is not None and forward is self:
            call.module = module
        return forward._pack_anew(tensor, module)

    def owner(self, tensor: Tensor, storage: torch.UntypedStorage, call: Call | None) -> str:
        """Return what keeps the tensor alive besides autograd, in words; empty for nothing. Autocast frees its casts of
        weights after the forward, so a cast that the plan recomputes has no owner."""
        owner = self.owners.owner(tensor, storage, self.tracker.foreign, call)
        if owner is not CAST or self.plan_decisions is None or not self.plan_decisions.recomputes(tensor):
            return owner
        self._casts.add(storage)
        return ""

    def module_of_call(self) -> str | None:
        """The path of the module that makes the call; ``None`` where the module may be another forward's."""
        module = self.paths.running()
        return "" if module is None and self.outer is None else module

    def owner_of_forward(self) -> tuple[Self, str]:
        """The forward whose model is running, and the path of its module: this one, or that of a block around this
        block."""
        forward: Self | None = self
        while forward is not None:
            module = forward.paths.running()
            if module is not None:
                return forward, module
            forward = forward.outer
        return self, ""

    def occurrence(self, place: Place) -> int:
        """How many tensors this forward has saved in that place before."""
        occurrence = self.occurrences.get(place, 0)
        self.occurrences[place] = occurrence + 1
        return occurrence

    def pack_held(self, tensor: Tensor, obstacle: str = "", known: KnownSite | None = None) -> Packed:
        """Stores a tensor that a checkpoint or a repetition holds without autograd's knowledge; keeps it where there is
        an obstacle.

        Args:
            tensor, obstacle: the tensor and the obstacle, in words.
            known: how the same was stored in the forward before. What is found out now is noted there.
        """
        if known is not None and known.site is not None and (held := self._sites.hold(known.site, tensor)) is not None:
            return held
        outer, self.tracker.call = self.tracker.call, Boundary()
        try:
            with self.hidden(tensor):
                return self._pack_anew(tensor, self.paths.running() or "", obstacle, known)
        finally:
            self.tracker.call = outer

    def _pack_anew(self, tensor: Tensor, module: str, obstacle: str = "", known: KnownSite | None = None) -> Packed:
        """Stores a tensor of which nothing is known from the forward before."""
        call = self.tracker.call
        storage, part, whole = get_storage(tensor), None, ""
        if storage is None and not (whole := self._why_whole(tensor)):
            part = find_part(tensor)
            storage = None if part is None else get_storage(part)
        by_engine = find_engine_call() if call is None else None
        call = call or by_engine
        if call is None:
            role = "" if self.checkpoints is None else self.checkpoints.role(tensor)
            operator = CHECKPOINT if role else ""
            if self.checkpoints is not None and role == "input":
                obstacle = self.checkpoints.obstacle()
        else:
            operator, role = call.operator, call.role(tensor, get_memory(tensor) if storage is None else storage)
        place = (module, operator, role)
        occurrence = self.occurrence(place)
        if storage is None:
            self.records.append(self.record_of_compound(tensor, place, occurrence, whole))
            return Kept.of(tensor)
        spec = self.specs.of(tensor if part is None else part, place, occurrence)
        if self._look is not None and part is None:
            self._look(spec.saved, tensor)
        owner = self.owner(tensor, storage, call)
        beside = bool(obstacle) or isinstance(call, Boundary)
        due = None if beside else self.announced.due(storage)
        site: Site | None = None
        if not beside and due is None and part is None and by_engine is None:
            site = self._sites.site_of(spec, place, occurrence, call, owner, storage, tensor)
        if owner:
            add_record(self.records, spec.kept_by(owner), due)
            packed: Packed = Kept.of(tensor)
        elif part is not None:
            with self.hidden(part):
                stored = self.store(part, storage, spec, call, None, due, obstacle, tensor)
            # What is kept is told by its version if it is changed afterwards, and the part has none of its own.
            if isinstance(stored, (Exact, Kept)):
                packed = Exact(Kept.of(tensor), stored.region if isinstance(stored, Exact) else None)
            else:
                packed = Part(stored, Wrapper.take_from(tensor)) if is_dtensor(tensor) else stored
        else:
            packed = self.store(tensor, storage, spec, call, site, due, obstacle)
        if site is not None:
            self._sites.note(site, tensor, storage, call, packed)
        elif known is not None and part is None:
            known.is_first = self.records[-1].original_bytes > 0
            known.site = self._sites.site_of_held(Site(spec, place, occurrence, call, owner), tensor, call, packed)
        return packed

    def _why_whole(self, tensor: Tensor) -> str:
        """Why a DTensor or a collective's result is kept exactly and as a whole. Empty if this rank's part of it may be
        stored, and for all other tensors."""
        if not wraps_part(tensor):
            return ""
        dtensor = is_dtensor(tensor)
        kind = "a DTensor" if dtensor else "a collective's result"
        if self._observer is not None or self.level.adaptive:
            return f"{kind}, whose rounding is not measured: kept exactly"
        if self.plan_decisions is not None and not dtensor:
            return f"{kind}, which a plan keeps"
        # Its part does not count its versions.
        return f"{kind} that was changed in place: kept exactly" if tensor._version > 0 else ""

    def store(
        self,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        spec: SavedTensorSpec,
        call: Call | None,
        site: Site | None = None,
        due: PendingSave | None = None,
        obstacle: str = "",
        whole: Tensor | None = None,
    ) -> Packed:
        """Stores a tensor that autograd alone keeps alive.

        Args:
            tensor, storage: the tensor and its memory.
            spec: its description.
            call: the call that saves it.
            site: its site, if it has one.
            due: its announcement, if it has one.
            obstacle: why it has to be kept as it is; empty where nothing speaks against storing it.
            whole: the DTensor whose part on this rank the tensor is; ``None`` for one that is no part.
        """
        planned = None if self.plan_decisions is None else self.plan_decisions.of(tensor, site)
        way = self.way if planned is None else planned.way
        decision, extent = spec.decision(way.policy), spec.extent
        cast = storage in self._casts  # a cast of a weight is no activation
        counted = cast or (due is not None and due.row is not None)
        original_bytes = 0 if counted else self.storages.original_bytes(storage)
        why = way.planned if way.planned and isinstance(decision.codec, GroupAffine) else decision.why
        record = Record(spec.saved, "kept", obstacle or why, "", original_bytes)
        if due is None:
            self.records.append(record)
        else:
            record = add_record(self.records, record, due)
        if obstacle:
            return self.storages.keep(tensor, extent, record, overlapping=True)
        if planned is not None and planned.placeholder is not None and not isinstance(call, Boundary):
            handle = None
            if not (planned.aside and decision.from_forward):
                stream = self._get_stream(spec, tensor) if planned.waits else 0
                later = StoredLater(way, decision, extent, spec.saved, stream, call) if planned.waits else None
                handle = planned.placeholder(tensor, later)
            if handle is not None:
                record.codec, record.why = RECOMPUTED, "recomputed for backward"
                settle(due)
                return self._input(tensor, handle, extent, record)
        if cast:
            record.why = CAST
            return Kept.of(tensor)
        storing, gathered = Storing(way.level, self.storages, way.copies), None
        if self.formulas is not None and planned is None and due is None and call is not None:
            if whole is not None and self.formulas.gathers is not None:

                def store(shard: Tensor) -> Packed:
                    stream = self._get_stream(spec, tensor)
                    return storing.store(shard, decision, Extent.of(shard), record, call, stream)[0]

                gathered = self.formulas.gathers.hold(tensor, storage, whole, call, decision, store)
                if gathered is not None and not isinstance(gathered, Joined):
                    if not record.stored_bytes:  # beside what is stored anyway
                        record.codec, record.why = RECOMPUTED, explain(gathered.bound)
                    return gathered
            found = self.formulas.recomputed(tensor, storage, call, spec.saved.role, decision, whole)
            if found is not None:
                record.codec, (held, record.why) = RECOMPUTED, found
                if spec.site is not None and spec.site.form != BY_FORMULA:
                    spec.site.form = None  # by which a forward before has stored it
                return held
        exposed = self.tracker.exposed
        if exposed.by_address and storage in exposed:
            self.storages.forget(storage)
        shard_bytes = record.stored_bytes
        packed, codec = storing.store(tensor, decision, extent, record, call, self._get_stream(spec, tensor))
        if isinstance(gathered, Joined):
            gathered.stored, record.stored_bytes = packed, record.stored_bytes + shard_bytes
            return gathered
        if due is not None:
            settle(due)
        if codec is None:
            return packed
        self._tell(spec.saved, tensor, codec, packed)
        lossy = call is None and isinstance(inner(codec), GroupAffine)
        return self._input(tensor, packed, extent, record) if lossy else packed

    def _input(self, tensor: Tensor, packed: Packed, extent: Extent, record: Record) -> Packed:
        """What autograd holds in the place of a tensor. An input of a checkpoint may turn out to have to be kept after
        all."""
        checkpoint = self.checkpoints
        if checkpoint is None or self.tracker.call is not None or not self.level.rounds_checkpoints:
            return packed
        if record.saved.operator != CHECKPOINT:
            return packed
        kept, storages = Kept.of(tensor), self.storages

        def exactly() -> Packed | None:
            if kept.tensor._version != kept.version:
                return None
            found = storages.keep(kept.tensor, extent, record, overlapping=True)
            record.codec, record.why = "kept", DECIDES
            return found

        return checkpoint.stored(packed, exactly)

    def _get_stream(self, spec: SavedTensorSpec, tensor: Tensor) -> int | Tensor:
        """The stream for a tensor's noise in this forward, and in each replay of a captured CUDA graph."""
        return replayable(self.stream(spec.identity, spec.saved), tensor)

    def stream(self, identity: str, saved: SavedTensor) -> int:
        """The number of the stream for a tensor's noise in this forward, where no CUDA graph is captured."""
        stream: int = stream_of(identity, self.step, self.rank, self.redraw(saved) if self.redraw else 0)
        return stream

    def _tell(self, saved: SavedTensor, tensor: Tensor, codec: Codec | None, packed: Packed) -> None:
        """Tells the observer what was quantised."""
        codec = None if self._observer is None or codec is None else inner(codec)
        if self._observer is None or not isinstance(codec, GroupAffine):
            return
        if saved.operator == CHECKPOINT:  # nothing can be measured inside a checkpoint
            self._observer.stored_beside(packed)
        else:
            self._observer.stored(saved, tensor, codec, packed)

    def record_of_compound(self, tensor: Tensor, place: Place, occurrence: int, why: str = "") -> Record:
        """The record of a tensor that has no storage of its own, and is kept. See ``specs.record_of_compound``."""
        holder = partial(self.owners.holder, foreign=self.tracker.foreign)
        return record_of_compound(tensor, place, occurrence, holder, self.storages, why)
