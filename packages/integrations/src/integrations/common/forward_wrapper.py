"""``ForwardWrapper``: an object in the place of a model's ``forward``."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FrameType, MethodType
from typing import Any, ClassVar, Self

import torch
from torch import nn

from integrations.common.in_model import ModelRef
from integrations.common.modules import called_module


class ForwardWrapper(ABC):
    """Stands in a model's ``forward``, and calls the original.

    An attribute of the instance, so that a ``with`` block ends whatever it began, whatever ends the forward; forward
    hooks are not called for a ``KeyboardInterrupt``. Signature, copies and pickles are those of the original. It lies
    in the model, and so holds neither it nor a method that is bound to it.

    Args:
        model: whose forward it is.
        forward: the original.
        replaced: whether the instance had a forward of its own before.
    """

    what: ClassVar[str]
    """What is said of the model, such as ``"compressed"``."""
    undo: ClassVar[str]
    """The call that takes this out of the model again."""
    keeps: ClassVar[bool] = False
    """Whether it sees to what the forward keeps for backward, which two of them cannot do for one forward."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any], replaced: bool) -> None:
        self._model = ModelRef(model)
        self._stands_for(forward, replaced)

    def _stands_for(self, forward: Callable[..., Any], replaced: bool) -> None:
        """Stands for ``forward`` from now on. A method of the model's class is bound to the model when it is called;
        what somebody has put into the instance is put back as it is."""
        for name in functools.WRAPPER_ASSIGNMENTS:
            if hasattr(forward, name):
                setattr(self, name, getattr(forward, name))
        self.replaced = replaced
        self._method: Callable[..., Any] | None = None
        self._callable = forward
        if isinstance(forward, MethodType) and forward.__self__ is self._model.alive and not replaced:
            self._method = self._callable = forward.__func__

    @property
    def model(self) -> nn.Module:
        """Whose forward it is."""
        return self._model()

    @property
    def forward(self) -> Callable[..., Any]:
        """The original."""
        if self._method is None:
            return self._callable
        if torch.compiler.is_compiling():  # dynamo does not trace the making of a method
            return functools.partial(self._method, self.model)
        return MethodType(self._method, self.model)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.forward

    @staticmethod
    def all_of(model: nn.Module) -> Iterator[ForwardWrapper]:
        """The model's wrappers, the outermost first; none where somebody else has wrapped them."""
        found: Any = model.__dict__.get("forward")
        while isinstance(found, ForwardWrapper):
            yield found
            found = found.forward

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """The model's wrapper of this kind, which others may stand before; ``None`` where somebody else has wrapped
        it, or there is none."""
        return next((found for found in ForwardWrapper.all_of(model) if isinstance(found, cls)), None)

    @staticmethod
    def require_none(model: nn.Module, way_out: str) -> None:
        """Refuses a model of which a part has a wrapper that sees to what is kept.

        Args:
            model: the model.
            way_out: what to do instead, in words.

        Raises:
            ValueError: it has.
        """
        for module in model.modules():
            for found in ForwardWrapper.all_of(module):
                if found.keeps:
                    name = next(name for name, one in model.named_modules() if one is module)
                    which = f"its module {name!r}" if name else "it"
                    raise ValueError(
                        f"no part of {type(model).__name__} may be compressed or follow a plan yet, and "
                        f"{which} is {found.what}: undo that first, {found.undo}; {way_out}"
                    )

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output."""

    def put(self) -> None:
        """Puts this in its place."""
        self.model.__dict__["forward"] = self

    def take_out(self) -> None:
        """Puts the original back, into the model or into the wrapper that came after this one. Where somebody else has
        wrapped this, it stays, and is called from then on."""
        own = self.model.__dict__
        outer: Any = own.get("forward")
        if outer is self:
            del own["forward"]
            if self.replaced:
                own["forward"] = self.forward
            return
        while isinstance(outer, ForwardWrapper):
            if outer.forward is self:
                outer._stands_for(self.forward, self.replaced)
                return
            outer = outer.forward

    def shallow_copy(self, frame: FrameType) -> nn.Module | None:
        """The shallow copy of the model, such as ``nn.DataParallel``'s replicas, that was called in ``frame``: it has
        this object in its dictionary, too, but its own parameters. ``None`` where it was the model, or a module that
        wraps the model and calls its forward."""
        module = called_module(frame)
        if module is None or module is self._model.alive or self.replaced:
            return None
        return module if module.__dict__.get("forward") is self else None

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward)

    @property
    def __code__(self) -> Any:
        """That of the original, which ``torch.export`` asks for where it comes from."""
        return self.forward.__code__

    @property
    def __globals__(self) -> Any:
        """Only a function that Python calls has them.

        Raises:
            AttributeError: always; ``torch.jit.script``, which compiles a function's source, asks for them first.
        """
        raise AttributeError(
            f"torch.jit.script cannot compile the forward of a {self.what} {type(self.model).__name__}: script it "
            f"after {self.undo}, or use torch.jit.trace or torch.export"
        )
