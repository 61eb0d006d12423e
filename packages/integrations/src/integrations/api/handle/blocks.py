"""What blocks of ``integrations.compress`` pass on to each other. Each is one step of one model's training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch import nn

from integrations.api.handle.adapt import Adapter
from integrations.api.handle.closures import require_closure
from integrations.api.handle.compression import Compression
from integrations.api.handle.gradient_error import GradientError
from integrations.api.handle.running_session import specs_under, within
from integrations.planner.sensitivity.bit_plan import BitPlan
from integrations.policies.levels import Level
from integrations.report import Report
from integrations.runtime.session import Session

_open: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()  # by model: the threads that are in a block of it
_adapters: WeakKeyDictionary[nn.Module, dict[Level, Adapter]] = WeakKeyDictionary()
_told: WeakKeyDictionary[nn.Module, dict[Level, set[str]]] = WeakKeyDictionary()  # by model: the warnings given


class BlockCompression(Compression):
    """The handle of one block. Blocks of the same model at the same level share measurements, and warn once."""

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        super().__init__(model, level_name, level, strict)
        self._kept = model  # the plans do not hold the model
        self._adapter = _adapters.setdefault(model, {}).setdefault(level, Adapter(blocks=True))
        self._told = _told.setdefault(model, {}).setdefault(level, set())
        self.leave_step: Callable[[int], None] = _to_nobody  # is told the number of the model's next block

    def adapt(self, closure: Callable[[], Any], passes: int = 1) -> BitPlan:
        """As ``Compression.adapt``; each call of the closure is a block, so it opens none itself.

        Raises:
            RuntimeError: it is called inside of a block of this model.
        """
        return super().adapt(self._as_block(closure, "adapt"), passes)

    def gradient_error(self, closure: Callable[[], Any] | None = None) -> GradientError:
        """As ``Compression.gradient_error``; each call of the closure is a block, so it opens none itself.

        Raises:
            RuntimeError: it is called inside of a block of this model.
        """
        return super().gradient_error(None if closure is None else self._as_block(closure, "gradient_error"))

    def report(self, closure: Callable[[], Any] | None = None) -> Report:
        """As ``Compression.report``; each call of the closure is a block, so it opens none itself.

        Raises:
            RuntimeError: there is a closure, inside of a block of this model.
        """
        return super().report(None if closure is None else self._as_block(closure, "report"))

    def monitor(self, *args: Any, **options: Any) -> NoReturn:
        """Not available for one step.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "handle.monitor needs a handle that is used for the whole training, not one block for each step: call "
            "compress_model(model). To measure a block's error once, call handle.gradient_error(closure)"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As ``Compression.load_state_dict``, for this block and those of that level which follow it.

        A run is resumed bit for bit by loading in its first block, before the forward: the block is then the step that
        the state is to go on with. Or by loading when a block is left: the next one is that step.

        ::

            for index, (x, y) in enumerate(loader):
                with integrations.compress(model, level="L2") as handle:
                    if index == 0:
                        handle.load_state_dict(state)
                    criterion(model(x), y).backward()

        Raises:
            ValueError: the state is of another level or other options than the block that is open.
            RuntimeError: something was saved in the block already, or the block that is open is another handle's.
        """
        session = self._sessions.get(threading.get_ident())
        if session is None and in_block(self.model):
            raise RuntimeError(
                f"another handle's block of {type(self.model).__name__} is open: load the state with that handle "
                "before the block's forward, or load it after the block"
            )
        if session is not None and session.records:
            raise RuntimeError(
                "a state must be loaded before the block's forward, but tensors of this forward are stored already: "
                "call load_state_dict first in the block, or after the block"
            )
        before = dict(self.__dict__)
        self._adapter = Adapter(blocks=True)
        try:
            super().load_state_dict(state)
            if session is not None and self.level != before["level"]:
                opened = before["level"].title(before["level_name"])
                raise ValueError(
                    f"a state that is loaded in a block must be of the block's level, {opened}, got a state of "
                    f"{self.level.title(self.level_name)}: open the block with that level and its options"
                )
        except BaseException:
            self.__dict__.update(before)
            raise
        before["_adapter"].forget()
        _adapters[self.model][self.level] = self._adapter
        if session is not None:
            self._begin_anew(session)
        self.leave_step(self.step)

    def _begin_anew(self, session: Session) -> None:
        """Makes the block that is open the step of a state that was loaded."""
        step, self.step = self.step, self.step + 1
        plan, probe = self._adapter.start_forward(self.level, step)
        session.begin_as(specs_under(self, plan), step, probe)

    def _as_block(self, closure: Callable[[], Any], name: str) -> Callable[[], Any]:
        require_closure(closure)
        if in_block(self.model):
            raise RuntimeError(
                f"handle.{name} must be called outside of its model's blocks, but a block of "
                f"{type(self.model).__name__} is open. Call it after the with statement: it runs each call of the "
                "closure in its own block, and later blocks use its result"
            )

        def run() -> None:
            if not self.active:
                closure()
                return
            with entered(self.model), within(self.session(measured=True)):
                closure()

        return run


def _to_nobody(step: int) -> None:
    """For a handle that no block was opened with."""


def in_block(model: nn.Module) -> bool:
    """Whether this thread is in a block of the model."""
    return threading.get_ident() in _open.get(model, ())


def forget(model: nn.Module) -> None:
    """Drop the plans that blocks of the model have passed on, and the record of their warnings."""
    _adapters.pop(model, None)
    _told.pop(model, None)


@contextmanager
def entered(model: nn.Module) -> Iterator[None]:
    """A block in which this thread counts as being in a block of the model."""
    here, threads = threading.get_ident(), _open.setdefault(model, set())
    threads.add(here)
    try:
        yield
    finally:
        threads.discard(here)
