"""One forward under compression: the hooks that pack what autograd saves, and the records of what they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from actcore import Codec, GroupAffine, Kept, SavedTensor, replayable, stream_of
from actcore.replay import Pack
from actcore.stored import Listening
from integrations._calls.call import Call
from integrations._calls.hook_stack import OnStack
from integrations._calls.tensors import storage_of, storages_of
from integrations._common.modules import ModulePaths
from integrations._runtime.announced import Announced, Due, noted, settle
from integrations._runtime.compiled.hooks import hooks_of, session_here
from integrations._runtime.fates import Fates
from integrations._runtime.formulas.operators import KNOWN
from integrations._runtime.formulas.table import Formulas, notes_all
from integrations._runtime.replay import Sites
from integrations._runtime.site import Site
from integrations._runtime.specs import Place, SavedTensorSpec, Specs
from integrations._storing.extent import Extent
from integrations._storing.forms import Packed
from integrations._storing.records import RECOMPUTED, Record, kept_by
from integrations._storing.regions import Stream, inner
from integrations._storing.storage import Storages
from integrations._storing.store import StoredLater, Storing
from integrations._storing.watch import Observer
from integrations._storing.ways import Way
from integrations._torch import DisableTorchFunction, top_saved_tensors_default_hooks
from integrations._watching.checkpoints import Boundary, Checkpoints
from integrations._watching.deciding import DECIDES
from integrations._watching.owners import Owners
from integrations._watching.tracker import CallTracker
from integrations.rules.levels import Level
from integrations.rules.rules import CHECKPOINT


class Session:
    """A context in which every tensor that autograd saves is stored as the level says.

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
        paths, specs, level, step, rank: as given.
        way: how a tensor is stored that no plan has.
        fates: what a plan says of the tensors that are saved; ``None`` where all are stored as the level says.
        aside: a block in which the session's own operators on a tensor are not taken for the forward's; ``None`` where
            nothing would take them so.
        occurrences: how many tensors this forward has saved so far, by place.
        checkpoints: the checkpoints that the forward enters; ``None`` unless the session is entered.
        packing: the pack hook, in C, while the session is entered.
        outer: the session around this one in its thread, once it is entered.
        left: whether it was entered and left.
    """

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
        self._what = f"the compressed forward or block of {type(model).__name__}"
        self.paths = paths
        self.owners = Owners(model)
        self.records: list[Record] = []
        self.specs, self.level = specs, level
        self._observer, self._redraw, self._look = observer, redraw, look
        self._hook: Callable[[Tensor], Packed] | None = None  # set while the session is entered
        self.step, self.rank = step, rank
        self.storages = Storages()
        self.way = Way(specs.policy, level)
        self.announced = Announced(self)
        anew = level.recompute and notes_all(step)
        self._sites = Sites(self, anew or observer is not None or redraw is not None or look is not None)
        self.fates: Fates | None = None
        self.aside: Callable[[Tensor], AbstractContextManager[Any]] | None = None
        self.occurrences: dict[Place, int] = {}
        self._contexts = ExitStack()
        self.outer: Session | None = None
        self.left = False
        self._formulas: Formulas | None = None
        self.checkpoints: Checkpoints | None = None

    def begin_as(self, specs: Specs, step: int, observer: Observer | None) -> None:
        """Continues as another forward of the same level, before anything was saved."""
        self.specs, self.step, self._observer = specs, step, observer
        self.way = Way(specs.policy, self.level)
        watched = self._sites.watched or observer is not None
        self._sites.end()
        self._sites = Sites(self, watched)
        self.tracker.watcher = None if observer is None else self._watch

    def __enter__(self) -> Self:
        self.packing, self.left = Pack(self.pack, self._pack_other), False
        with ExitStack() as contexts:
            contexts.callback(self._let_go)
            self._hook, unpack = contexts.enter_context(hooks_of(self, self.level))
            contexts.enter_context(self.tracker)
            listening = Listening(self.announced)
            contexts.push(listening)  # first, and twice: an interrupt may come while it is entered or left
            contexts.push(listening)
            listening.__enter__()
            on_stack = OnStack(self._hook, unpack, self._what)
            contexts.callback(on_stack.take_off)
            try:
                contexts.enter_context(on_stack)
            except RuntimeError as error:
                _explain(error)
                raise
            self._begin(self._hook, contexts)
            self._contexts = contexts.pop_all()  # last: an interrupt before it finds everything undone
        return self

    def _begin(self, hook: Callable[[Tensor], Packed], contexts: ExitStack) -> None:
        """Has the tracker tell what it sees, now that the hooks are set."""
        if self.level.bits is not None:
            self.tracker.pack = hook
        if self.level.recompute:
            self._formulas = Formulas(self.storages, self.owners, self.tracker, self.step, self.specs.noted)
            self.tracker.note, self.tracker.noted = self._formulas.note, KNOWN
        self.checkpoints = self.tracker.checkpoints = Checkpoints(self, hook, self.tracker.born)
        if self.level.rounds_checkpoints:
            self.tracker.over = self.checkpoints.over
        if self._observer is not None:
            self.tracker.watcher = self._watch

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        complete = False
        try:
            try:
                if error is None and self.checkpoints is not None:
                    self.checkpoints.settle()
            finally:
                self._hook = self.checkpoints = None
                self._sites.end()
                self.tracker.pack = self.tracker.watcher = self.tracker.checkpoints = self.tracker.over = None
                if self._formulas is not None and error is None:
                    self.specs.noted = self._formulas.noted
                self.tracker.note = self._formulas = None
                self.owners.release()
                self._contexts.__exit__(kind, error, trace)
            complete = error is None
        finally:
            if self._observer is not None and not complete:
                self._observer.cancel()
        if isinstance(error, RuntimeError):
            _explain(error)
        if self._observer is not None and complete:
            self._observer.forward_is_over()

    def _let_go(self) -> None:
        """Frees the hook, which leads back to the session."""
        self.left = True
        self.packing.replay = None
        del self.packing

    def _watch(self, tensors: Iterable[Tensor]) -> None:
        assert self._observer is not None
        here = session_here() is self  # another session at the same level has the same hooks
        self._observer.called(tensors, here and self.is_innermost())

    @property
    def hook(self) -> Callable[[Tensor], Packed] | None:
        """The pack hook that autograd calls while this session is entered; ``None`` otherwise."""
        return self._hook

    @property
    def replays(self) -> bool:
        """Whether it repeats what the forward before has decided."""
        return not self._sites.watched

    def is_innermost(self) -> bool:
        """Whether autograd calls the hooks of this session's level for what it saves now."""
        innermost = top_saved_tensors_default_hooks(False)
        return innermost is not None and innermost[0] is self._hook

    # ---- packing ----

    def pack(self, tensor: Tensor) -> Packed:
        """The pack hook for what ``packing`` cannot do in C."""
        # Code that the tracker does not see may save tensors, too. Calls made here belong to no forward.
        with DisableTorchFunction():
            if self.aside is None:
                return self._sites.pack(tensor) or self._pack_fully(tensor)
            with self.aside(tensor):
                return self._sites.pack(tensor) or self._pack_fully(tensor)

    def _pack_other(self, tensor: Tensor) -> Packed:
        """The pack hook for a tensor that ``packing`` has compared and found to differ from the forward before."""
        with DisableTorchFunction():
            return self._pack_fully(tensor)

    def _pack_fully(self, tensor: Tensor) -> Packed:
        """Stores a tensor that differs from the forward before."""
        call = self.tracker.call
        if call is not None and call.module is not None:
            return self._pack_anew(tensor, call.module)
        session, module = self.owner_of_forward()
        if call is not None and session is self:
            call.module = module
        return session._pack_anew(tensor, module)

    def owner(self, tensor: Tensor, storage: torch.UntypedStorage, call: Call | None) -> str:
        """What keeps the tensor alive besides autograd, in words; empty for nothing."""
        return self.owners.owner(tensor, storage, self.tracker.foreign, call)

    def module_of_call(self) -> str | None:
        """The path of the module that makes the call; ``None`` where the module may be another session's."""
        module = self.paths.running()
        return "" if module is None and self.outer is None else module

    def owner_of_forward(self) -> tuple[Session, str]:
        """The session whose model is running, and the path of its module: this session, or the one of a block around
        this block."""
        session: Session | None = self
        while session is not None:
            module = session.paths.running()
            if module is not None:
                return session, module
            session = session.outer
        return self, ""

    def occurrence(self, place: Place) -> int:
        """How many tensors this forward has saved in that place before."""
        occurrence = self.occurrences.get(place, 0)
        self.occurrences[place] = occurrence + 1
        return occurrence

    def pack_held(self, tensor: Tensor, obstacle: str = "") -> Packed:
        """Stores a tensor that a checkpoint holds without autograd's knowledge; keeps it where there is an obstacle."""
        outer, self.tracker.call = self.tracker.call, Boundary()
        try:
            with nullcontext() if self.aside is None else self.aside(tensor):
                return self._pack_anew(tensor, self.paths.running() or "", obstacle)
        finally:
            self.tracker.call = outer

    def _pack_anew(self, tensor: Tensor, module: str, obstacle: str = "") -> Packed:
        """Stores a tensor of which nothing is known from the forward before."""
        call = self.tracker.call
        storage = storage_of(tensor)
        if call is None:
            role = "" if self.checkpoints is None else self.checkpoints.role(tensor)
            operator = CHECKPOINT if role else ""
            if self.checkpoints is not None and role == "input":
                obstacle = self.checkpoints.obstacle()
        else:
            operator, role = call.operator, call.role(tensor, storage)
        place = (module, operator, role)
        occurrence = self.occurrence(place)
        if storage is None:
            self.records.append(self.record_of_compound(tensor, place, occurrence))
            return Kept.of(tensor)
        spec = self.specs.of(tensor, place, occurrence)
        if self._look is not None:
            self._look(spec.saved, tensor)
        owner = self.owner(tensor, storage, call)
        beside = bool(obstacle) or isinstance(call, Boundary)
        due = None if beside else self.announced.due(storage)
        site: Site | None = None
        if not beside and due is None:
            site = self._sites.site_of(spec, place, occurrence, call, owner, storage)
        if owner:
            noted(self.records, spec.kept_by(owner), due)
            packed: Packed = Kept.of(tensor)
        else:
            packed = self.store(tensor, storage, spec, call, site, due, obstacle)
        if site is not None:
            self._sites.note(site, tensor, storage, call, packed)
        return packed

    def store(
        self,
        tensor: Tensor,
        storage: torch.UntypedStorage,
        spec: SavedTensorSpec,
        call: Call | None,
        site: Site | None = None,
        due: Due | None = None,
        obstacle: str = "",
    ) -> Packed:
        """Stores a tensor that autograd alone keeps alive.

        Args:
            tensor, storage: the tensor and its memory.
            spec: its description.
            call: the call that saves it.
            site: its site, if it has one.
            due: its announcement, if it has one.
            obstacle: why it has to be kept as it is; empty where nothing speaks against storing it.
        """
        fate = None if self.fates is None else self.fates.of(tensor, site)
        way = self.way if fate is None else fate.way
        decision, extent = spec.decision(way.policy), spec.extent
        original_bytes = 0 if due is not None and due.row is not None else self.storages.original_bytes(storage)
        why = way.planned if way.planned and isinstance(decision.codec, GroupAffine) else decision.why
        record = Record(spec.saved, "kept", obstacle or why, "", original_bytes)
        if due is None:
            self.records.append(record)
        else:
            record = noted(self.records, record, due)
        if obstacle:
            return self.storages.keep(tensor, extent, record, overlapping=True)
        stream = self._stream(spec, tensor)
        if fate is not None and fate.placeholder is not None and not isinstance(call, Boundary):
            handle = None
            if not (fate.aside and decision.from_forward):
                later = StoredLater(way.level, decision, extent, spec.saved, stream, call) if fate.waits else None
                handle = fate.placeholder(tensor, later)
            if handle is not None:
                record.codec, record.why = RECOMPUTED, "recomputed for backward"
                settle(due)
                return self._input(tensor, handle, extent, record)
        if self._formulas is not None and fate is None and due is None and call is not None:
            found = self._formulas.recomputed(tensor, storage, call, spec.saved.role, decision)
            if found is not None:
                record.codec, (held, record.why) = RECOMPUTED, found
                if spec.site is not None:
                    spec.site.form = None  # by which a forward before has stored it
                return held
        exposed = self.tracker.exposed
        if exposed.by_address and storage in exposed:
            self.storages.forget(storage)
        packed, codec = Storing(way.level, self.storages).store(tensor, decision, extent, record, call, stream)
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

    def _stream(self, spec: SavedTensorSpec, tensor: Tensor) -> Stream:
        """The stream for a tensor's noise in this forward."""
        return replayable(self.stream(spec.identity, spec.saved), tensor)

    def stream(self, identity: str, saved: SavedTensor) -> int:
        """The number of the stream for a tensor's noise in this forward, where no CUDA graph is captured."""
        stream: int = stream_of(identity, self.step, self.rank, self._redraw(saved) if self._redraw else 0)
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

    def record_of_compound(self, tensor: Tensor, place: Place, occurrence: int) -> Record:
        """The record of a tensor that keeps its elements in other tensors: sparse, nested, a wrapper subclass."""
        saved = _described(tensor, place, occurrence)
        storages = storages_of(tensor)
        holders = [self.owners.holder(storage, self.tracker.foreign) for storage in storages]
        if holders and all(holders):
            return kept_by(holders[0], saved)
        free = [storage for storage, holder in zip(storages, holders, strict=True) if not holder]
        nbytes = sum(self.storages.original_bytes(storage) for storage in free)
        why = f"{type(tensor).__name__} of layout {tensor.layout} has no storage of its own: kept exactly"
        return Record(saved, "kept", why, "", nbytes, nbytes)


def _described(tensor: Tensor, place: Place, occurrence: int) -> SavedTensor:
    module, operator, role = place
    if tensor.is_nested and tensor.layout is torch.strided:  # such a tensor has neither shape nor strides to ask for
        shape = torch.Size((tensor.size(0),))
        return SavedTensor(shape, tensor.dtype, (), tensor.device, operator, role, module, occurrence)
    return SavedTensor.of(tensor, operator=operator, role=role, module=module, occurrence=occurrence)


def _explain(error: RuntimeError) -> None:
    """Adds the ways out to torch's refusal."""
    if "saved tensor hooks" in str(error):
        error.add_note(
            "torch.func transforms refuse saved-tensor hooks, and integrations compresses through them: call "
            "torch.func outside of the compressed forward, or restore the model first (integrations.restore_model)."
        )
