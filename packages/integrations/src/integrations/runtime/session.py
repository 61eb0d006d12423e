"""A forward under compression, from entering to leaving: the hooks that it sets, and all that it takes back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from actcore.replay import Pack
from actcore.stored import Listening
from integrations.runtime.compiled.hooks import Innermost, session_here
from integrations.runtime.formulas.operators import KNOWN
from integrations.runtime.formulas.table import Formulas, notes_all
from integrations.runtime.packing import PackedForward
from integrations.runtime.replay import Sites
from integrations.runtime.specs import Specs
from integrations.tracing.checkpoints import Checkpoints
from integrations.tracing.hook_stack import OnStack
from integrations.tracing.norm_inputs import forget_norm
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.storage_policy import StoragePolicy
from integrations.tracing.storage.watch import Observer
from integrations.tracing.tensors import tensors_in


class Session(PackedForward):
    """A context in which every tensor that autograd saves is stored as the level says.

    Attributes:
        left: whether it was entered and left.
    """

    left = False

    def add_inputs(self, given: Any) -> None:
        """Declare what the caller gave to the model.

        Args:
            given: the tensors, nested in tuples, lists and mappings.
        """
        self.owners.add_inputs(tensors_in(given))

    def begin_as(self, specs: Specs, step: int, observer: Observer | None) -> None:
        """Continues as another forward of the same level, before anything was saved."""
        self.specs, self.step, self._observer = specs, step, observer
        self.way = StoragePolicy(specs.policy, self.level)
        watched = self._sites.watched or observer is not None
        self._sites.end()
        self._sites = Sites(self, watched)
        self.tracker.watcher = None if observer is None else self._watch

    def __enter__(self) -> Self:
        self.packing, self.left = Pack(self.pack, self._pack_other), False
        with ExitStack() as contexts:
            contexts.callback(self._let_go)
            innermost = Innermost(self)
            contexts.callback(innermost.leave)  # a second time: an interrupt may come as it is left
            self.hook, unpack = contexts.enter_context(innermost)
            contexts.enter_context(self.tracker)
            listening = Listening(self.announced)
            contexts.push(listening)  # first, and twice: an interrupt may come while it is entered or left
            contexts.push(listening)
            listening.__enter__()
            on_stack = OnStack(self.hook, unpack, f"the compressed forward or block of {self.model_name}")
            contexts.callback(on_stack.take_off)
            try:
                contexts.enter_context(on_stack)
            except RuntimeError as error:
                _explain(error)
                raise
            self._begin(self.hook)
            self._contexts = contexts.pop_all()  # last: an interrupt before it finds everything undone
        return self

    def _begin(self, hook: Callable[[Tensor], Packed]) -> None:
        """Has the tracker tell what it sees, now that the hooks are set."""
        self.tracker.hidden = self.hidden
        if self.level.bits is not None:
            self.tracker.pack = hook
        if self.level.recompute:
            given = self.specs.noted, notes_all(self.step), self.replays
            self.formulas = Formulas(self.storages, self.owners, self.tracker, *given)
            self.tracker.note, self.tracker.noted = self.formulas, KNOWN
            if self.gathers_again:
                self.formulas.gather_again()
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
                self.hook = self.checkpoints = None
                self._sites.end()
                self.tracker.hidden = None
                forget_norm()
                self.tracker.pack = self.tracker.watcher = self.tracker.checkpoints = self.tracker.over = None
                if self.formulas is not None and error is None:
                    self.specs.noted = self.formulas.noted
                self.tracker.note = self.formulas = None
                self.owners.release()
                self._contexts.__exit__(kind, error, trace)
            self.regions.settle()
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


def _explain(error: RuntimeError) -> None:
    """Adds the ways out to torch's refusal."""
    if "saved tensor hooks" in str(error):
        error.add_note(
            "torch.func transforms refuse saved-tensor hooks, and integrations compresses through them: call "
            "torch.func outside of the compressed forward, or restore the model first (integrations.restore_model)."
        )
