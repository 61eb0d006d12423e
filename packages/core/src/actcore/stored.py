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
    """A tensor that torch's own function creates and keeps, but the function that announces it does not create."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def like(cls, tensor: Tensor, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Absent:
        """Return an ``Absent`` with the shape, dtype and device of a tensor, or with another shape or dtype."""
        return cls(torch.Size(tensor.shape if shape is None else shape), dtype or tensor.dtype, tensor.device)

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.shape.numel() * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Stored:
    """One tensor that torch's own function would keep for backward, and the tensors stored in its place.

    Attributes:
        source: the tensor that torch would keep.
        operator, role: the function that keeps it, and the tensor's role in it, as in ``SavedTensor``.
        codec: the codec that stores it, or a description in words.
        parts: the tensors that autograd saves in its place; empty if the parts of another source also serve this one. A
            source that is its own only part is kept exactly.
        more: whether these are more parts of the tensor that was announced last.
        copied: whether torch's own function, if it works in place, keeps a copy of the source.
    """

    source: Tensor | Absent
    operator: str
    role: str
    codec: Codec | str = ""
    parts: tuple[Tensor, ...] = ()
    more: bool = False
    copied: bool = False


class Listener(Protocol):
    """The object that receives the announcements."""

    def stored(self, announced: Sequence[Stored]) -> None:
        """Called before autograd saves the parts of these tensors."""

    def placed(self, output: Tensor, into: Tensor) -> None:
        """Called if the output of the last announcement goes into the memory of the input."""

    def held(self, tensor: Tensor, operator: str, codec: Codec | None, nbytes: int) -> None:
        """Called if saved-tensor hooks of ``actcore`` keep so many bytes of a tensor; without a codec they keep the
        tensor itself. The operator is empty if it is unknown."""


class _Here(threading.local):
    listening: Listening | None = None
    listener: Listener | None = None
    subject: tuple[weakref.ref[Tensor], weakref.ref[Tensor], str] | None = None
    operator: str = ""


_here = _Here()


class Listening:
    """Announce the tensors that functions of this thread store to ``listener`` only, for the length of the block.

    The block may be left without having been entered, or twice, because an interrupt may occur meanwhile; and before a
    block inside of it.
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
    """Announce the tensors that saved-tensor hooks of ``actcore`` keep as those of this operator, for the length of the
    block."""
    outer, _here.operator = _here.operator, operator
    try:
        yield
    finally:
        _here.operator = outer


def announce_held(tensor: Tensor, codec: Codec | None, nbytes: int) -> None:
    """Announce the tensor that a saved-tensor hook of ``actcore`` keeps."""
    if is_heard() and _here.listener is not None:
        with torch._C.DisableTorchFunction():
            _here.listener.held(tensor, _here.operator, codec, nbytes)


def is_heard(ctx: Any = None) -> bool:
    """Return whether there is a listener, and whether the Function of ``ctx``, if one is given, saves anything at all.

    ``False`` under ``torch.compile`` and inside of ``torch.func``: the tensors saved there are not those seen here.
    """
    if torch.compiler.is_compiling() or _here.listener is None:
        return False
    # Without next functions, no gradient is asked for, and autograd saves nothing.
    return getattr(ctx, "next_functions", None) != () and torch._C._functorch.peek_interpreter_stack() is None


def announce(*stored: Stored) -> None:
    """Announce tensors that are about to be saved, if there is a listener."""
    if _here.listener is not None:
        with torch._C.DisableTorchFunction():  # no mode has any business with a listener
            _here.listener.stored(stored)


def announce_placed(output: Tensor, into: Tensor) -> None:
    """Announce that the output of the last announcement is copied into the memory of its input."""
    if _here.listener is not None:
        with torch._C.DisableTorchFunction():
            _here.listener.placed(output, into)


def stands_for(given: Tensor, x: Tensor, operator: str) -> None:
    """Note that a Function gets ``given`` in place of ``x``, and the name of the Function; see ``subject_of``."""
    if is_heard():
        _here.subject = weakref.ref(given), weakref.ref(x), operator


def subject_of(given: Tensor, operator: str) -> tuple[Tensor, str]:
    """Return the tensor and name that ``stands_for`` noted for a tensor; by default the tensor itself and
    ``operator``."""
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
    """Return the name of a function whose derivative is kept in few bits."""
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
    """Announce a pointwise function.

    Args:
        ctx: the context of the Function.
        given: its input, in memory order.
        output: its output.
        name: the name of the function, as in ``stepwise``.
        codec: a description in words.
        parts: the saved tensors.
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
