"""Which module's forward is running, read off the Python stack.

Forward hooks would tell, too, but a module with hooks is slower in ``eval()``, loses torch's fused inference paths, and
guards a compiled region. The stack is there anyway, and an exception cannot leave it wrong.
"""

from __future__ import annotations

import sys
from types import FrameType
from weakref import WeakKeyDictionary

from torch import nn

from integrations._utils.in_model import ModelRef
from integrations._utils.torch_internals import MODULE_CALL


class ModulePaths:
    """The paths of a model's modules, from its root."""

    def __init__(self, model: nn.Module) -> None:
        self._model = ModelRef(model)
        self._paths: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()

    def running(self) -> str | None:
        """Path of the innermost module of the model whose forward the caller is inside of; empty for the root, ``None``
        outside of all of them."""
        frame: FrameType | None = sys._getframe(1)
        missing = False
        while frame is not None:
            if frame.f_code is MODULE_CALL:
                module = frame.f_locals["self"]
                path = self._paths.get(module)
                if path is None and not missing:
                    missing = True  # the module is new, or not the model's: look once
                    model = self._model.alive
                    # The model may be gone when backward recomputes a segment.
                    if model is not None and _has(model, module):
                        self._paths.update((found, name) for name, found in model.named_modules())
                    path = self._paths.get(module)
                if path is not None:
                    return path
            frame = frame.f_back
        return None

    def path_of(self, module: nn.Module) -> str | None:
        """A module's path; ``None`` for one that is not known as the model's."""
        return self._paths.get(module)


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return a model and all modules in it, each once. ``model.modules()`` builds names, which takes too long for what
    runs in each forward."""
    found = [model]
    seen = {model}
    for module in found:
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def _has(model: nn.Module, module: nn.Module) -> bool:
    """Whether a module is part of a model. This does not build the names of all modules, which would take longer than a
    forward may have, for a loss module that is made anew in each."""
    waiting, seen = [model], {model}
    while waiting:
        for child in waiting.pop()._modules.values():
            if child is module:
                return True
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)
    return model is module


def innermost() -> nn.Module | None:
    """The innermost module whose forward the caller is inside of."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not MODULE_CALL:
        frame = frame.f_back
    return None if frame is None else module_called_in(frame)


def called_module(forward: FrameType) -> nn.Module | None:
    """The module whose ``forward`` runs in the frame; ``None`` for a direct call."""
    caller = forward.f_back
    return None if caller is None else module_called_in(caller)


def module_called_in(frame: FrameType) -> nn.Module | None:
    """The module that the frame calls, with its hooks; ``None`` for a frame that does something else."""
    return frame.f_locals["self"] if frame.f_code is MODULE_CALL else None


def public_name(kind: type) -> str:
    """Return a class's name with the shortest package that exports it, such as ``torch_geometric.nn.Linear``, not the
    module that defines it."""
    parts = kind.__module__.split(".")
    for length in range(1, len(parts) + 1):
        package = sys.modules.get(".".join(parts[:length]))
        # Look into __dict__: getattr would make packages with lazy imports import more.
        if package is not None and vars(package).get(kind.__name__) is kind:
            return f"{package.__name__}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def trains(model: nn.Module) -> bool:
    """Return whether some parameter requires a gradient."""
    return any(parameter.requires_grad for parameter in model.parameters())


NOTHING_TRAINS = (
    "no parameter of the model requires a gradient: call requires_grad_(True) on the parameters that are to train"
)
"""Why there is nothing to compress in a model whose parameters are all frozen, and what to do, in words."""


def where_raised(error: BaseException, model: nn.Module) -> str:
    """Return the path of the innermost submodule whose forward raised an error; empty for the model itself, and if no
    submodule raised it."""
    names = {id(module): name for name, module in model.named_modules()}
    found, at = "", error.__traceback__
    while at is not None:
        module = module_called_in(at.tb_frame)
        found, at = names.get(id(module), found), at.tb_next
    return found
