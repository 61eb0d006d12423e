"""What blocks of ``integrations.compress`` leave to each other: each is one step of one model's training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from torch import nn

from integrations.adaptive.adapt import Adapter
from integrations.adaptive.gradient_error import GradientError
from integrations.adaptive.plan import Plan
from integrations.compression import Compression
from integrations.levels import Level

_open: WeakKeyDictionary[nn.Module, set[int]] = WeakKeyDictionary()  # the threads in a block of a model
_adapters: WeakKeyDictionary[nn.Module, dict[Level, Adapter]] = WeakKeyDictionary()


class BlockCompression(Compression):
    """The handle of one block. What was measured in blocks of the same model at the same level is its own as well."""

    def __init__(self, model: nn.Module, level_name: str, level: Level, strict: bool = False) -> None:
        super().__init__(model, level_name, level, strict)
        self._adapter = _adapters.setdefault(model, {}).setdefault(level, Adapter(blocks=True))

    def adapt(self, closure: Callable[[], Any], passes: int = 1) -> Plan:
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

    def monitor(self, *args: Any, **options: Any) -> NoReturn:
        """Not of one step.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "handle.monitor needs a handle that lives as long as the training: call compress_model(model) instead of a "
            "block for each step; handle.gradient_error(closure) measures a block's error once"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As ``Compression.load_state_dict``, for this block and those of that level which follow it."""
        own, self._adapter = self._adapter, Adapter(blocks=True)
        try:
            super().load_state_dict(state)
        except BaseException:
            self._adapter = own
            raise
        _adapters[self.model][self.level] = self._adapter

    def _as_block(self, closure: Callable[[], Any], name: str) -> Callable[[], Any]:
        if in_block(self.model):
            raise RuntimeError(f"handle.{name} opens blocks of its own: call it when this one is left")

        def run() -> None:
            if not self.active:
                closure()
                return
            with entered(self.model), self.session(measured=True):
                closure()

        return run


def in_block(model: nn.Module) -> bool:
    """Whether this thread is in a block of the model."""
    return threading.get_ident() in _open.get(model, ())


@contextmanager
def entered(model: nn.Module) -> Iterator[None]:
    """This thread is in a block of the model."""
    here, threads = threading.get_ident(), _open.setdefault(model, set())
    threads.add(here)
    try:
        yield
    finally:
        threads.discard(here)
