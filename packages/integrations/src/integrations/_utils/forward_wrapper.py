"""``ForwardWrapper``: an object that replaces a model's ``forward``."""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from types import FrameType, MethodType
from typing import Any, ClassVar, Self

import torch
from torch import nn

from integrations._utils.in_model import ModelRef
from integrations._utils.running_module import called_module


class ForwardWrapper(ABC):
    """Replaces a model's ``forward``, and calls the original.

    It is an attribute of the instance, so that a ``with`` block can end what it began however the forward ends; forward
    hooks are not called for a ``KeyboardInterrupt``. Signature, copies and pickles are those of the original. It lies
    in the model, and so holds neither the model nor a method bound to it.

    Args:
        model: whose forward it is.
        forward: the original.
        replaced: whether the instance had a forward of its own before.
    """

    what: ClassVar[str]
    """What the wrapper makes of the model, such as ``"compressed"``."""
    undo: ClassVar[str]
    """The call that removes the wrapper from the model."""
    keeps: ClassVar[bool] = False
    """Whether it determines what the forward keeps for backward. Only one such wrapper can be on a forward."""

    def __init__(self, model: nn.Module, forward: Callable[..., Any], replaced: bool) -> None:
        self._model = ModelRef(model)
        self._stands_for(forward, replaced)

    def _stands_for(self, forward: Callable[..., Any], replaced: bool) -> None:
        """Stands for ``forward`` from now on. A method of the model's class is bound to the model when it is called; a
        forward that was set on the instance is put back as it is."""
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
        """The model whose forward it is."""
        return self._model()

    @property
    def forward(self) -> Callable[..., Any]:
        """The original forward."""
        if self._method is not None and torch.compiler.is_compiling():  # dynamo does not trace the creation of a method
            return functools.partial(self._method, self.model)
        return self.bind()

    def bind(self) -> Callable[..., Any]:
        """Return the original forward where dynamo is not tracing."""
        return self._callable if self._method is None else MethodType(self._method, self.model)

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.forward

    @staticmethod
    def all_of(model: nn.Module) -> Iterator[ForwardWrapper]:
        """The model's wrappers, the outermost first; none if something else has wrapped them."""
        found: Any = model.__dict__.get("forward")
        while isinstance(found, ForwardWrapper):
            yield found
            found = found.forward

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """The model's wrapper of this kind, possibly behind others; ``None`` if there is none, or something else has
        wrapped it."""
        return next((found for found in ForwardWrapper.all_of(model) if isinstance(found, cls)), None)

    @staticmethod
    def require_none(model: nn.Module, way_out: str) -> None:
        """Checks that no part of a model has a wrapper that determines what is kept.

        Args:
            model: the model.
            way_out: what to do instead, in words.

        Raises:
            ValueError: a part has one.
        """
        for module in model.modules():
            for found in ForwardWrapper.all_of(module):
                if found.keeps:
                    name = next(name for name, one in model.named_modules() if one is module)
                    which = f"its module {name!r}" if name else "it"
                    raise ValueError(
                        f"{type(model).__name__} must not be compressed or follow a plan already, but {which} is "
                        f"{found.what}: call {found.undo} first; {way_out}"
                    )

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's output."""

    def put(self) -> None:
        """Puts the wrapper in the place of the forward."""
        self.model.__dict__["forward"] = self

    def take_out(self) -> None:
        """Puts the original back, into the model or into the wrapper around this one. If something else has wrapped
        this one, it stays there, and from then on only calls the original."""
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
        """The shallow copy of the model, such as one of ``nn.DataParallel``'s replicas, that was called in ``frame``:
        it has this object in its dictionary, too, but parameters of its own. ``None`` if the model itself was called,
        or a module that wraps the model and calls its forward."""
        module = called_module(frame)
        if module is None or module is self._model.alive or self._replaces_users():
            return None
        return module if module.__dict__.get("forward") is self else None

    def _replaces_users(self) -> bool:
        """Whether the user had set a forward on the model, which copies have, too, and not only another wrapper."""
        inner: ForwardWrapper = self
        while isinstance(inner._callable, ForwardWrapper):  # not ``forward``: the model may be gone, and its copy not
            inner = inner._callable
        return inner.replaced

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.forward)

    @property
    def __code__(self) -> Any:
        """The original's code, which ``torch.export`` asks for to tell where it comes from."""
        return self.forward.__code__

    @property
    def __globals__(self) -> Any:
        """Not available: only a function that Python calls has globals.

        Raises:
            AttributeError: always. ``torch.jit.script``, which compiles a function's source, asks for them first.
        """
        raise AttributeError(
            f"torch.jit.script cannot compile the forward of a {self.what} {type(self.model).__name__}: script it "
            f"after {self.undo}, or use torch.jit.trace or torch.export"
        )
