"""``Paths``: in which module's forward something runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class Paths:
    """The paths of a model's modules, and of the one whose forward runs.

    The model's own hooks are left alone: these are torch's for all modules, while a capture runs.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {module: name for name, module in model.named_modules()}
        self._running: list[str] = []

    @property
    def current(self) -> str:
        """The innermost module's path; empty for the model itself."""
        return self._running[-1] if self._running else ""

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A block in which ``current`` is known."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._running.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module in self._names:
            self._running.append(self._names[module])

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if module in self._names and self._running:
            self._running.pop()
