"""What functions store in the place of what torch's own would keep: told, for reports, to whoever listens.

A saved-tensor hook is given packed bits, and is not told which tensor they stand for. A function that stores such bits
announces it, just before autograd packs them, in the thread that it runs in. Where nobody listens that costs one look
at a thread-local, and under ``torch.compile`` nothing.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from actcore.codec import Codec


@dataclass(frozen=True)
class Absent:
    """A tensor that torch's own function makes and keeps, and the function that announces it does not make."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def like(cls, tensor: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Absent:
        """One of the shape, dtype and device of a tensor, or of another shape or dtype."""
        return cls(torch.Size(tensor.shape if shape is None else shape), dtype or tensor.dtype, tensor.device)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.shape.numel() * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor that torch's own function would keep for backward, and what is stored in its place.

    Attributes:
        source: that tensor.
        operator, role: who keeps it, and what it is to that, as in ``SavedTensor``.
        codec: how it is stored, or that in words.
        parts: what autograd is given to save in its place; empty where what is stored of another source serves for
            this one, too. A source that is its own only part is kept as it is.
        more: whether these are more parts of what was announced last.
        copied: whether torch's own function, where it works in place, keeps a copy of the source.
    """

    source: Tensor | Absent
    operator: str
    role: str
    codec: Codec | str = ""
    parts: tuple[Tensor, ...] = ()
    more: bool = False
    copied: bool = False


class Listener(Protocol):
    """Who is told."""

    def stored(self, announced: Sequence[Stored]) -> None:
        """Autograd is about to be given the parts of these."""

    def placed(self, output: Tensor, into: Tensor) -> None:
        """What was announced last was of an output that goes into the memory of the input."""

    def held(self, tensor: Tensor, operator: str, codec: Codec | None, nbytes: int) -> None:
        """Saved-tensor hooks of ``actcore`` keep so many bytes of a tensor, or without a codec itself. The operator is
        empty where it is not known."""


class _Here(threading.local):
    listening: Listening | None = None
    listener: Listener | None = None
    subject: tuple[weakref.ref[Tensor], weakref.ref[Tensor], str] | None = None
    operator: str = ""


_here = _Here()


class Listening:
    """For the length of the block, what this thread's functions store is told to ``listener`` alone.

    It may be left without having been entered, or again, since an interrupt may come while it is; and before a block
    inside of it.
    """

    def __init__(self, listener: Listener) -> None:
        self._outer, self._listener, self._is_over = _here.listening, listener, False

    def __enter__(self) -> None:
        _here.listening, _here.listener = self, self._listener

    def __exit__(self, *error: object) -> None:
        self._is_over = True
        if _here.listening is self:
            outer = self._outer
            while outer is not None and outer._is_over:
                outer = outer._outer
            _here.listening, _here.listener = outer, None if outer is None else outer._listener
        _here.subject = None


@contextmanager
def called(operator: str) -> Iterator[None]:
    """For the length of the block, what saved-tensor hooks of ``actcore`` keep is announced as of this operator."""
    outer, _here.operator = _here.operator, operator
    try:
        yield
    finally:
        _here.operator = outer


def announce_held(tensor: Tensor, codec: Codec | None, nbytes: int) -> None:
    """Announces what a saved-tensor hook of ``actcore`` keeps of a tensor."""
    if is_heard() and _here.listener is not None:
        with torch._C.DisableTorchFunction():
            _here.listener.held(tensor, _here.operator, codec, nbytes)


def is_heard(ctx: Any = None) -> bool:
    """Whether somebody listens, and the Function of ``ctx``, if one is given, saves anything at all.

    Under ``torch.compile`` and inside of ``torch.func`` nobody does: what is saved there is not what is seen here.
    """
    if torch.compiler.is_compiling() or _here.listener is None:
        return False
    # Without next functions, no gradient is asked for, and autograd saves nothing.
    return getattr(ctx, "next_functions", None) != () and torch._C._functorch.peek_interpreter_stack() is None


def announce(*stored: Stored) -> None:
    """Tells what is about to be saved, if somebody listens."""
    if _here.listener is not None:
        with torch._C.DisableTorchFunction():  # no mode has any business with a listener
            _here.listener.stored(stored)


def announce_placed(output: Tensor, into: Tensor) -> None:
    """Tells that the output of which something was announced last is copied into its input's memory."""
    if _here.listener is not None:
        with torch._C.DisableTorchFunction():
            _here.listener.placed(output, into)


def stands_for(given: Tensor, x: Tensor, operator: str) -> None:
    """Notes that a Function is given ``given`` in the place of ``x``, and what it is called; see ``subject_of``."""
    if is_heard():
        _here.subject = weakref.ref(given), weakref.ref(x), operator


def subject_of(given: Tensor, operator: str) -> tuple[Tensor, str]:
    """What ``stands_for`` noted of a tensor; the tensor and ``operator`` where it noted nothing."""
    noted, _here.subject = _here.subject, None
    x = None if noted is None or noted[0]() is not given else noted[1]()
    return (given, operator) if noted is None or x is None else (x, noted[2])


# Looked at through saved-tensor hooks, torch 2.10 to 2.15. The others keep their input.
_RESULT = frozenset({"relu", "sigmoid", "tanh"})
# Where it works in place, a copy of the input: backward asks for what is overwritten.
_COPIED = frozenset({"threshold", "hardsigmoid", "hardtanh", "relu6", "hardswish", "mish", "silu"})
_BETWEEN = frozenset({"squared_relu", "tanhshrink"})  # something between input and result
_INPUT_AND_BETWEEN = frozenset({"logsigmoid", "quick_gelu", "softsign"})

_FEW_BIT = "few-bit "


def name_of(function: object) -> str:
    """What a function is called whose derivative is kept in few bits."""
    owner = getattr(function, "__self__", None)
    if isinstance(function, str):
        own = function
    elif isinstance(owner, torch.nn.Module):  # its forward
        own = type(owner).__name__
    else:
        own = getattr(function, "__name__", type(function).__name__.strip("_"))
    return f"{_FEW_BIT}{own}"


def announce_pointwise(
    ctx: Any, given: Tensor, output: Tensor, name: str, codec: str, parts: tuple[Tensor, ...]
) -> None:
    """Announces a pointwise function.

    Args:
        ctx: of the Function.
        given: its input, in memory order.
        output: its output.
        name: of the function, as in ``stepwise``.
        codec: in words.
        parts: what is saved.
    """
    if not is_heard(ctx):
        return
    x, operator = subject_of(given, name)
    function = operator.removeprefix(_FEW_BIT)
    if function in _RESULT:
        announce(Stored(output, operator, "result", codec, parts))
    elif function in _BETWEEN:
        announce(Stored(Absent.like(x), operator, "internal", codec, parts))
    elif function in _INPUT_AND_BETWEEN:
        between = Stored(Absent.like(x), operator, "internal", codec)
        # On other devices torch's logsigmoid recomputes what it keeps on the CPU.
        also = () if function == "logsigmoid" and x.device.type != "cpu" else (between,)
        announce(Stored(x, operator, "input", codec, parts), *also)
    else:
        announce(Stored(x, operator, "input", codec, parts, copied=function in _COPIED))
