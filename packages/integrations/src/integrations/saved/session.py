"""One forward under compression: the hooks that pack what autograd saves, and the records of what they did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from actcore import Codec, GroupAffine, Kept, Layout, Offload, Raw, SavedTensor, stream_of
from integrations.levels import Level
from integrations.saved import checkpoints
from integrations.saved.calls import CallTracker
from integrations.saved.checkpoints import Boundary, Checkpoints
from integrations.saved.choice import INDICES, codec_for, lazy, packable
from integrations.saved.compiled import hooks_of
from integrations.saved.compiled_regions import Entry
from integrations.saved.forms import Form, Packed, form_of, window_indices
from integrations.saved.modules import ModulePaths
from integrations.saved.owners import Owners
from integrations.saved.policy import Decision
from integrations.saved.recipes import Extent, Place, Recipes
from integrations.saved.records import Record, kept_by
from integrations.saved.storage import Storages, inner
from integrations.saved.tensors import storage_of, storages_of
from integrations.saved.watch import Observer

_innermost = threading.local()  # .session: the one entered last in this thread


class Session:
    """A context in which every tensor that autograd saves is stored as the level says.

    Args:
        model: whose parameters, buffers and inputs belong to their owners.
        paths: of the model's modules.
        recipes: decide the codecs.
        level: what else there is to know.
        step: number of this forward, so that its noise is its own.
        rank: of this process.
        observer: is told what happens.
        redraw: another number for a tensor, other noise; for measurements.
        look: is shown each tensor that has a storage, whoever keeps it, before it is stored.
    """

    def __init__(
        self,
        model: nn.Module,
        paths: ModulePaths,
        recipes: Recipes,
        level: Level,
        step: int,
        rank: int,
        observer: Observer | None = None,
        redraw: Callable[[SavedTensor], int] | None = None,
        look: Callable[[SavedTensor, Tensor], None] | None = None,
    ) -> None:
        self.tracker = CallTracker()
        self._paths = paths
        self.owners = Owners(model)
        self.records: list[Record] = []
        self._recipes, self._level = recipes, level
        self._observer, self._redraw, self._look = observer, redraw, look
        self._hook: Callable[[Tensor], Packed] | None = None  # while the session is entered
        self._seed, self._step, self._rank = level.seed, step, rank
        self._storages = Storages()
        self._occurrences: dict[Place, int] = {}
        self._contexts = ExitStack()
        self._outer: Session | None = None
        self._checkpoints: Checkpoints | None = None  # while the session is entered

    def __enter__(self) -> Self:
        with ExitStack() as contexts:
            self._hook, unpack = contexts.enter_context(hooks_of(self, self._level))
            contexts.enter_context(self.tracker)
            try:
                contexts.enter_context(saved_tensors_hooks(self._hook, unpack))
            except RuntimeError as error:
                _explain(error)
                raise
            self._contexts = contexts.pop_all()
        if self._level.bits is not None:
            self.tracker.pack = self._hook
        self._checkpoints = Checkpoints(self, self._hook, self.tracker.born)
        self.tracker.look = self._checkpoints.look
        self._outer, _innermost.session = getattr(_innermost, "session", None), self
        if self._observer is not None:
            self.tracker.watcher = self._watch
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None and self._checkpoints is not None:
                self._checkpoints.settle()
        finally:
            _innermost.session, self._hook, self._checkpoints = self._outer, None, None
            self.tracker.pack = self.tracker.watcher = self.tracker.look = None
            self.owners.release()
            self._contexts.__exit__(kind, error, trace)
        if isinstance(error, RuntimeError):
            _explain(error)
        if self._observer is not None:
            if error is None:
                self._observer.forward_is_over()
            else:
                self._observer.cancel()

    def _watch(self, tensors: Iterable[Tensor]) -> None:
        assert self._observer is not None
        innermost = torch._C._autograd._top_saved_tensors_default_hooks(False)
        here = getattr(_innermost, "session", None) is self  # another session at the same level has the same hooks
        self._observer.called(tensors, here and innermost is not None and innermost[0] is self._hook)

    # ---- packing ----

    def pack(self, tensor: Tensor) -> Packed:
        """The pack hook."""
        # Packing may be asked for by code that the tracker does not see; its own calls are nobody's forward.
        with torch._C.DisableTorchFunction():
            call = self.tracker.call
            if call is not None and call.module is not None:
                return self._pack_one(tensor, call.module)
            session, module = self._owner_of_forward()
            if call is not None and session is self:
                call.module = module
            return session._pack_one(tensor, module)

    def _owner_of_forward(self) -> tuple[Session, str]:
        """The session whose model is running, and the path of its module: this one, or that of a block around this
        block."""
        session: Session | None = self
        while session is not None:
            module = session._paths.running()
            if module is not None:
                return session, module
            session = session._outer
        return self, ""

    def pack_held(self, tensor: Tensor, obstacle: str = "") -> Packed:
        """Stores a tensor that a checkpoint holds without autograd's knowledge; keeps it where there is an obstacle."""
        outer, self.tracker.call = self.tracker.call, Boundary()
        try:
            return self._pack_one(tensor, self._paths.running() or "", obstacle)
        finally:
            self.tracker.call = outer

    def _pack_one(self, tensor: Tensor, module: str, obstacle: str = "") -> Packed:
        call = self.tracker.call
        storage = storage_of(tensor)
        if call is None:
            role = "" if self._checkpoints is None else self._checkpoints.role(tensor)
            operator = checkpoints.OPERATOR if role else ""
        else:
            operator, role = call.operator, call.role(tensor, storage)
        place = (module, operator, role)
        occurrence = self._occurrences.get(place, 0)
        self._occurrences[place] = occurrence + 1
        if storage is None:
            self.records.append(self._record_of_compound(tensor, place, occurrence))
            return Kept.of(tensor)
        recipe = self._recipes.of(tensor, place, occurrence)
        saved = recipe.saved
        if self._look is not None:
            self._look(saved, tensor)
        owner = self.owners.owner(tensor, storage, self.tracker.foreign, call)
        if owner:
            self.records.append(recipe.kept_by(owner))
            return Kept.of(tensor)
        decision, extent = recipe.decision, recipe.extent
        record = Record(saved, "kept", obstacle or decision.why, "", self._storages.original_bytes(storage))
        self.records.append(record)
        if obstacle:
            return self._storages.keep(tensor, extent, record, overlapping=True)
        stream = stream_of(recipe.identity, self._step, self._rank, self._redraw(saved) if self._redraw else 0)
        try:
            form = self._form(tensor, decision, stream)
            if form is not None:
                record.codec, record.stored_bytes, record.host = form.name, form.nbytes, form.host
                record.why = INDICES if decision.indices else record.why
                self._tell(saved, tensor, decision.codec, form)
                return form
            codec = self._placed(codec_for(tensor, decision, record, call), tensor)
            if len(self.tracker.exposed) and storage in self.tracker.exposed:
                self._storages.forget(storage)
            if isinstance(codec, Raw):
                return self._storages.keep(tensor, extent, record)
            packed = self._storages.store(tensor, extent, codec, record, seed=self._seed, stream=stream)
            self._tell(saved, tensor, codec, packed)
            return packed
        except ValueError as refusal:  # a mask that has a third value, an index out of range
            if decision.codec is not None and not decision.indices:
                raise
            record.why = f"kept exactly: {refusal}"
            return self._storages.keep(tensor, extent, record)

    def _tell(self, saved: SavedTensor, tensor: Tensor, codec: Codec | None, packed: Packed) -> None:
        """Tells the observer what was quantised; not of checkpoints, inside of which nobody can measure."""
        if self._observer is None or saved.operator == checkpoints.OPERATOR:
            return
        codec = None if codec is None else inner(codec)
        if isinstance(codec, GroupAffine):
            self._observer.stored(saved, tensor, codec, packed)

    def _placed(self, codec: Codec, tensor: Tensor) -> Codec:
        """The codec, its stored form on the host where the level says so: of tensors that are on a device, and large
        enough to be worth two copies."""
        if not self._level.offload or not _can_leave(tensor):
            return codec
        small = Layout.of(tensor).stored_numel * tensor.itemsize < self._level.min_bytes
        return codec if small or lazy(tensor) else Offload(codec)

    def _form(self, tensor: Tensor, decision: Decision, stream: int) -> Form | None:
        """A form that serves this call alone, if its arguments allow one."""
        call = self.tracker.call
        if call is None or not (decision.indices or decision.form) or not packable(tensor):
            return None
        if decision.indices:
            return window_indices(call.name, call.given, tensor, self._placed(Raw(), tensor))
        if decision.form is None or decision.codec is None:
            return None
        return form_of(
            decision.form,
            call.name,
            call.given,
            tensor.detach(),
            decision.codec,
            lambda codec: self._placed(codec, tensor),
            seed=self._seed,
            stream=stream,
        )

    def met_in_region(self, entry: Entry, like: Tensor) -> int:
        """Records a tensor that a compiled region saves now, and with a region's first the silent ones; the stream for
        its noise. Asked in every run, so that the noise is this forward's own."""
        with torch._C.DisableTorchFunction():
            session, root = self._owner_of_forward()
            for other in entry.silent:
                session._record_in_region(other, root, other.saved.shape, other.saved.strides, other.storage_bytes)
            storage = like.untyped_storage()
            if entry.outside:
                nbytes = session._storages.original_bytes(storage)
            else:  # its memory may have been another tensor's before
                nbytes = storage.nbytes() if entry.storage_bytes else 0
            record = session._record_in_region(entry, root, like.shape, tuple(like.stride()), nbytes)
            if entry.given:
                owner = session.owners.holder(storage, session.tracker.foreign)
                if owner:
                    record.owner, record.why = owner, f"{owner}: alive anyway"
                    record.original_bytes = record.stored_bytes = 0
                else:
                    session._storages.keep(like, Extent.of(like), record, overlapping=True)
            saved = record.saved
            identity = f"{saved.module}\0{saved.operator}\0{saved.role}\0{saved.occurrence}"
            redraw = session._redraw(saved) if session._redraw else 0
            stream: int = stream_of(identity, session._step, session._rank, redraw)
            return stream

    def _record_in_region(
        self, entry: Entry, root: str, shape: torch.Size, strides: tuple[int, ...], nbytes: int
    ) -> Record:
        template = entry.saved
        module = ".".join(part for part in (root, template.module) if part)
        place = (module, template.operator, template.role)
        occurrence = self._occurrences.get(place, 0)
        self._occurrences[place] = occurrence + 1
        saved = replace(template, shape=shape, strides=strides, module=module, occurrence=occurrence)
        numel = Layout(tuple(shape), strides).stored_numel
        stored = nbytes if entry.form.exact else entry.form.nbytes(numel, saved.dtype)
        record = Record(saved, entry.form.name, entry.form.why, "", nbytes, stored)
        self.records.append(record)
        return record

    def _record_of_compound(self, tensor: Tensor, place: Place, occurrence: int) -> Record:
        """For a tensor that keeps its elements in other tensors: sparse, nested, a wrapper subclass."""
        saved = _described(tensor, place, occurrence)
        storages = storages_of(tensor)
        holders = [self.owners.holder(storage, self.tracker.foreign) for storage in storages]
        if holders and all(holders):
            return kept_by(holders[0], saved)
        free = [storage for storage, holder in zip(storages, holders, strict=True) if not holder]
        nbytes = sum(self._storages.original_bytes(storage) for storage in free)
        why = f"{type(tensor).__name__} of layout {tensor.layout} has no storage of its own: kept exactly"
        return Record(saved, "kept", why, "", nbytes, nbytes)


def _described(tensor: Tensor, place: Place, occurrence: int) -> SavedTensor:
    module, operator, role = place
    if tensor.is_nested and tensor.layout is torch.strided:  # has neither shape nor strides to ask for
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


def _can_leave(tensor: Tensor) -> bool:
    """Whether ``Offload`` has a way to the host for it."""
    return tensor.device.type == "cuda"
