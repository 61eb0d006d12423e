"""``FirstForward``: record the tensors that a converted model's layers store in its first training forward.

The layers announce these tensors. Only the first forward is recorded, and no hook is set, so that it computes and
stores the same as later forwards. Afterwards the model gets its own ``forward`` back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from actcore import Codec, SavedTensor
from actcore.stored import Absent, Listening, Stored, is_heard
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations._utils.running_module import ModulePaths
from integrations._utils.storages import StorageSet
from integrations._utils.torch_internals import (
    get_tracing_state,
    peek_interpreter_stack,
    top_saved_tensors_default_hooks,
)
from integrations.policies.levels import LEVELS
from integrations.policies.policy import fixed_bits
from integrations.runtime.packing import PackedForward
from integrations.runtime.specs import Specs
from integrations.tracing.storage.records import Record, kept_by
from integrations.tracing.tensors import get_storage, tensors_in

_RECORDS = "_integrations_first_forward"


class ListensOnce(ForwardWrapper):
    """Replace a converted model's ``forward``, and record what its layers store in the first training forward."""

    over = False
    """Whether recording is over or not wanted. The wrapper may stay in place."""

    def _told(self, model: nn.Module, run: Callable[[], Any], inputs: Any) -> Any:
        """Return the result of a forward, and record it if it is the first training forward."""
        free = peek_interpreter_stack() is None and get_tracing_state() is None and not is_heard()
        if self.over or not (free and model.training and torch.is_grad_enabled()):
            return run()
        with _listened(model) as session:
            session.owners.add_inputs(tensors_in(inputs))
            result = run()
        self.over = True
        model.__dict__[_RECORDS] = session.records
        return result


class FirstForward(ListensOnce):
    """Replace a converted model's ``forward`` until the first training forward is over."""

    what: ClassVar[str] = "converted"
    undo: ClassVar[str] = "qmodules.restore_model(model) or fewbit.restore_model(model)"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.forward(*args, **kwargs)
        copy = self.shallow_copy(sys._getframe())
        if copy is not None:
            return type(copy).forward(copy, *args, **kwargs)
        result = self._told(self.model, partial(self.forward, *args, **kwargs), (args, kwargs))
        if self.over:
            self.take_out()
        return result


def listen_once(model: nn.Module) -> None:
    """Start to record a converted model's first training forward."""
    found = ListensOnce.of(model)
    if found is None:
        FirstForward(model, model.forward, "forward" in model.__dict__).put()
    else:
        found.over = False


def listen_no_longer(model: nn.Module) -> None:
    """Undo ``listen_once``, and drop the records."""
    found = ListensOnce.of(model)
    if found is not None:
        found.over = True
    if isinstance(found, FirstForward):
        found.take_out()
    model.__dict__.pop(_RECORDS, None)


def first_records(model: nn.Module) -> list[Record]:
    """Return the records of a converted model's first training forward; an empty list before that forward."""
    return list(model.__dict__.get(_RECORDS, ()))


@contextmanager
def _listened(model: nn.Module) -> Iterator[_Told]:
    told = _Told(model)
    try:
        with Listening(told):
            yield told
    finally:
        told.owners.release()


class _Told(PackedForward):
    """Record a forward whose layers announce the tensors that they store. Nothing is packed: announced parts count."""

    def __init__(self, model: nn.Module) -> None:
        level = LEVELS["L0"]
        super().__init__(model, ModulePaths(model), Specs(fixed_bits(level)), level, 0, 0)
        self._counted = StorageSet()
        self._first: Record | None = None  # of the last announcement; further parts may belong to it

    def is_innermost(self) -> bool:
        """Return whether autograd keeps the announced tensors: under other saved-tensor hooks it may not."""
        return top_saved_tensors_default_hooks(False) is None

    def stored(self, announced: Sequence[Stored]) -> None:
        """As ``actcore.stored.Listener``."""
        if not self.is_innermost():
            return
        start = len(self.records)
        self.announced.stored(announced)
        rows = iter(self.records[start:])
        for one in announced:
            if len(one.parts) == 1 and one.parts[0] is one.source:
                self._keep(one)
                continue
            row = self._first if one.more and one.parts and self._first is not None else next(rows, None)
            if row is None:
                continue
            if not one.more:
                self._first = row
            row.stored_bytes += sum(map(self._count_bytes, one.parts))

    def placed(self, output: Tensor, into: Tensor) -> None:
        """As ``actcore.stored.Listener``."""
        self.announced.placed(output, into)

    def held(self, tensor: Tensor, operator: str, codec: Codec | None, nbytes: int) -> None:
        """Ignore tensors that the user's hooks keep: no layer stores them. See ``actcore.stored.Listener``."""

    def _keep(self, one: Stored) -> None:
        """Add the report row of a tensor that a layer saves exactly."""
        if isinstance(one.source, Absent) or (storage := get_storage(one.source)) is None:
            return
        saved = SavedTensor.of(
            one.source, operator=one.operator, role=one.role, module=self.paths.running() or "", occurrence=0
        )
        owner = self.owners.owner(one.source, storage, self.tracker.foreign, None)
        if owner:
            self.records.append(kept_by(owner, saved))
        else:
            before = self.storages.original_bytes(storage)
            self.records.append(Record(saved, "kept", "kept by its layer", "", before, self._count_bytes(one.source)))

    def _count_bytes(self, part: Tensor) -> int:
        storage = get_storage(part)
        if storage is None or storage in self._counted:
            return 0
        self._counted.add(storage)
        return storage.nbytes()
