"""``RegionSession``: a forward in which compiled regions alone save tensors, as in the forward before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from actcore import SavedTensor
from integrations.policies.levels import Level
from integrations.runtime.compiled.hooks import Innermost
from integrations.runtime.compiled.runs import RegionRuns
from integrations.runtime.session import Session
from integrations.runtime.specs import Specs
from integrations.tracing.hook_stack import OnStack
from integrations.tracing.storage.forms import Packed
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.watch import Observer
from integrations.tracing.tensors import tensors_in


class RegionSession(Session):
    """A session that does nothing for each operator, since the compiled regions do it all.

    It sets the level's hooks, which dynamo's guards compare, and has the regions noted. A full session sets a mode
    besides, under which dynamo compiles other code. Where eager code saves a tensor after all, this one enters a full
    one for the rest of the forward; and where a region is compiled, it asks one for what the region has to know.

    Args:
        specs, level, step, rank, observer, redraw: as for ``Session``.
        make: makes the full session.
    """

    packing = None  # type: ignore[assignment]
    outer = None

    def __init__(
        self,
        specs: Specs,
        level: Level,
        step: int,
        rank: int,
        make: Callable[[], Session],
        observer: Observer | None,
        redraw: Callable[[SavedTensor], int] | None,
    ) -> None:
        self.specs, self.level, self.step, self.rank, self.redraw = specs, level, step, rank, redraw
        self.records: list[Record] = []
        self.regions = RegionRuns(self)
        self._make, self._observer, self._inputs = make, observer, list[Any]()
        self._on_stack: OnStack | None = None
        self._entered = self._is_checked = False

    def __getattr__(self, name: str) -> Any:
        """What only a full session has."""
        if name.startswith("_") or "_make" not in self.__dict__:  # half made, or asked by what copies objects
            raise AttributeError(name)
        if name == "full":
            self.full = self._make()
            self.full.owners.add_inputs(tensors_in(self._inputs))
            self.full.regions.take_over(self.regions)
            return self.full
        return getattr(self.full, name)

    def add_inputs(self, given: Any) -> None:
        """Declare what the caller gave to the model. Its tensors are looked for once a full session is needed."""
        self._inputs.append(given)

    def pack(self, tensor: Tensor) -> Packed:
        """The pack hook for what eager code saves."""
        if not self._entered:
            self._full = ExitStack()
            self._entered = True  # first: an interrupt may come
            self._full.enter_context(self.full)
        return self.full.pack(tensor)

    def __enter__(self) -> Self:
        self._innermost = innermost = Innermost(self)
        try:
            self.hook, unpack = innermost.__enter__()
            self._on_stack = OnStack(self.hook, unpack, "the compressed forward")
            self._on_stack.__enter__()
        except BaseException:
            self._leave()
            raise
        return self

    def _leave(self) -> None:
        """Removes the hooks, and makes the session around this one the innermost. It may have been done before."""
        if self._on_stack is not None:
            self._on_stack.take_off()
        self._innermost.leave()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            try:
                if self._entered:
                    self._full.__exit__(kind, error, trace)
            finally:
                if self._on_stack is not None and not self._is_checked:
                    self._is_checked = True  # first: an interrupt may come
                    self._on_stack.__exit__(kind, error, trace)
        finally:
            self._leave()
            self.left, self.hook = True, None
            self._inputs.clear()
        if error is None:
            if self._entered:
                self.records.extend(self.full.records)
            elif self._observer is not None:
                self._observer.forward_is_over()
            self.regions.settle()
        elif self._observer is not None and not self._entered:
            self._observer.cancel()
