"""``save_for_backward`` and ``saved_tensors_of``: compressed saving in one's own ``torch.autograd.Function``."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function

from actcore.codec import Codec, as_int64, require_codec
from actcore.codecs import Raw
from actcore.compressed import Compressed
from actcore.device_streams import new_key, replayable
from actcore.double_backward import EXACT, builds_graph, rounds, warn_of_rounding
from actcore.fused.functions import FusedFunction
from actcore.layout import Layout
from actcore.noise import current_rank, shared_streams, stream_of
from actcore.ops import Key
from actcore.stored import Stored, announce, is_heard


class _Later:
    """Refer to a tensor that had no history when it was saved. It may be a result of the Function: results get their
    history after forward.

    Attributes:
        is_result: whether the tensor is a result; ``None`` if unknown: before the Function has returned, and in
            ``vmap``.
        tensor: a weak reference to the tensor.
    """

    __slots__ = ("is_result", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.is_result: bool | None = None
        self.tensor = weakref.ref(tensor)


class _Waiting(tuple[()]):
    """Find out which tensors are results of a running Function. torch holds this object in ``saved_for_forward``, and
    drops it once the results have their history. Its destructor then checks the tensors.

    Attributes:
        ctx: a weak reference to the Function's context.
        tensors: the tensors without history, each with the ``_Later`` to update.
    """

    ctx: weakref.ref[Any]
    tensors: list[tuple[Tensor, _Later]]

    def __del__(self) -> None:
        ctx = self.ctx()
        if ctx is not None and len(ctx._input_metadata):  # otherwise it is too early to tell
            for tensor, later in self.tensors:
                later.is_result = tensor.requires_grad


@dataclass(frozen=True)
class _Stored:
    """Where a stored tensor is among ``ctx.saved_tensors``, and what is needed to undo it. It holds no tensor.

    ``anchor`` is the place of the tensor that carries its history; -1 if it had none when it was saved. ``later`` then
    knows whether it has one now.
    """

    codec: Codec
    layout: Layout
    dtype: torch.dtype
    start: int
    end: int
    anchor: int
    later: _Later | None


def save_for_backward(
    ctx: Any,
    *pairs: tuple[Tensor | None, Codec | None],
    seed: int = 0,
    stream: int | None = None,
    operator: str | None = "",
) -> None:
    """Save tensors for backward, each in the form that its codec stores.

    ::

        @staticmethod
        def forward(ctx, x, w):
            actcore.save_for_backward(ctx, (x, actcore.GroupAffine(bits=4)), (w, None))
            return x @ w

        @staticmethod
        def backward(ctx, grad):
            x, w = actcore.saved_tensors_of(ctx)
            return grad @ w.t(), x.t() @ grad

    It replaces ``ctx.save_for_backward``. Call it once, in ``forward`` or ``setup_context``, after ``ctx.mark_dirty``
    if you use that. It behaves like ``ctx.save_for_backward``: backward frees the saved tensors unless
    ``retain_graph=True``, nothing is stored if there will be no backward, and checkpointing and saved-tensor hooks see
    the stored forms.

    Double backward (``create_graph=True``) is that of plain PyTorch at the decompressed values. If a codec has rounded
    them, ``saved_tensors_of`` warns. One case is unsupported and raises: an output of the Function is stored in fewer
    bytes, freed by all other owners, and then differentiated twice.

    Args:
        ctx: the context of the Function.
        pairs: a tensor and its codec. The codec ``None`` or ``Raw()`` keeps the tensor exactly, with autograd's check
            for in-place changes. The tensor ``None`` is returned as ``None``.
        seed: seed of the random rounding.
        stream: the streams of the tensors derive from it and the rank. Pass a different one in every call: two layers
            with the same stream get the same noise. ``actcore.stream_of("layer 1", step, 0)`` makes such numbers. By
            default, the streams come from the counter of this process and seed, which advances by itself.
        operator: the name of the operator in reports; by default the name of the Function. With ``None`` nothing is
            announced: the caller does it (``announce``).

    Raises:
        TypeError: an argument is not a pair of a tensor and a codec, or the codec does not support the tensor.
        ValueError: a condition of the codec is not met.
        RuntimeError: a codec rounds at random under ``vmap`` without ``randomness="same"``.
    """
    seed = as_int64("seed", seed)
    for number, pair in enumerate(pairs):
        _require_pair(number, pair)
    if stream is not None and (isinstance(stream, bool) or not isinstance(stream, int)):
        raise TypeError(f"stream must be an int, got {stream!r}; pass None to take one from the process's counter")
    if (
        not torch.compiler.is_compiling() and getattr(ctx, "next_functions", None) == ()
    ):  # no_grad, or no input asks for gradients
        ctx._actcore_saved = ()
        return
    flat: list[Tensor] = []
    plan: list[int | _Stored | None] = []
    for number, (tensor, codec) in enumerate(pairs):
        if tensor is None:
            plan.append(None)
        elif codec is None or isinstance(codec, Raw):
            plan.append(len(flat))
            flat.append(tensor)
        else:
            if not torch.compiler.is_compiling():
                _require_randomness(codec)
            compressed = codec.compress(tensor.detach(), seed=seed, stream=_stream(number, tensor, seed, stream))
            plan.append(_place(ctx, tensor, compressed, flat))
    if operator is not None and is_heard(ctx):
        name = operator or type(ctx).__name__.removesuffix("Backward")
        announce(*_announced(name, [tensor for tensor, _ in pairs], plan, flat))
    ctx.save_for_backward(*flat)
    later = [entry.later for entry in plan if isinstance(entry, _Stored) and entry.later is not None]
    node: Any = ctx if isinstance(ctx, torch._C._FunctionBase) else None  # vmap's is none
    if later and node is not None and node.saved_for_forward is None:
        node.saved_for_forward = waiting = _Waiting()
        waiting.ctx = weakref.ref(ctx)
        waiting.tensors = [(tensor, one) for one in later if (tensor := one.tensor()) is not None]
    ctx._actcore_saved = tuple(plan)


def _announced(
    operator: str, tensors: list[Tensor | None], plan: list[int | _Stored | None], flat: list[Tensor]
) -> Iterator[Stored]:
    for number, (tensor, entry) in enumerate(zip(tensors, plan, strict=True)):
        if tensor is None or entry is None:
            continue
        role = "other" if number and tensor.requires_grad else "internal" if number else "input"
        if isinstance(entry, int):
            yield Stored(tensor, operator, role, parts=(tensor,))
        else:
            end = max(entry.end, entry.anchor + 1)
            yield Stored(tensor, operator, role, entry.codec, tuple(flat[entry.start : end]))


def saved_tensors_of(ctx: Any) -> tuple[Tensor | None, ...]:
    """Return the tensors that ``save_for_backward`` saved, in order. Call it in ``backward``.

    Warns if a codec has rounded one of them and gradients are differentiated (``create_graph=True``), because second
    derivatives may be far off.

    Raises:
        RuntimeError: nothing was saved; an earlier backward freed the graph; or a tensor that was kept exactly was
            changed in place (the last two are torch's own errors).
    """
    tensors = restore_saved(ctx)
    if reads_rounded(ctx):
        warn_of_rounding(type(ctx).__name__.removesuffix("Backward"))
    return tensors


def restore_saved(ctx: Any, forms: Collection[int] = ()) -> tuple[Any, ...]:
    """``saved_tensors_of`` for Functions that warn by themselves (see ``reads_rounded``).

    Args:
        ctx: the context of the Function.
        forms: the numbers of pairs of which the stored form is returned, a ``Compressed``, if there is one. It has no
            history: use it only if autograd builds no graph of this backward.
    """
    plan = getattr(ctx, "_actcore_saved", None)
    if plan is None:
        raise RuntimeError(
            "ctx has nothing saved by actcore; call actcore.save_for_backward(ctx, ...) in forward first"
        )
    saved = ctx.saved_tensors
    found: list[Tensor | Compressed | None] = []
    for number, entry in enumerate(plan):
        if isinstance(entry, _Stored):
            form = Compressed(entry.codec, saved[entry.start : entry.end], entry.layout, entry.dtype)
            found.append(form if number in forms else _restore(ctx, entry, form, saved))
        else:
            found.append(entry if entry is None else saved[entry])
    return tuple(found)


def reads_rounded(ctx: Any) -> bool:
    """Return whether autograd builds a graph of the Function's backward that runs now, and ``save_for_backward`` has
    rounded one of the tensors that it reads."""
    if not builds_graph() or not issubclass(getattr(type(ctx), "_forward_cls", Function), Function):
        return False  # torch.func made the other Functions, and builds a graph of every backward
    return any(isinstance(entry, _Stored) and rounds(entry.codec) for entry in ctx._actcore_saved)


def _stream(number: int, tensor: Tensor, seed: int, stream: int | None) -> Key:
    if stream is not None:
        return stream_of(str(number), stream, current_rank())
    if torch.compiler.is_compiling():  # a number would be a constant of the compiled code
        return torch.ops.actcore.next_stream(tensor.detach(), new_key(tensor.device))  # type: ignore[no-any-return]
    return replayable(shared_streams(seed).next(), tensor)


def _require_randomness(codec: Codec) -> None:
    """One stream for a whole batch of ``vmap`` would round all its samples alike, as torch's ``"same"`` does."""
    if isinstance(codec, EXACT) or getattr(codec, "rounding", "stochastic") == "nearest":
        return
    functorch = torch._C._functorch
    for interpreter in functorch.get_interpreter_stack() or ():
        if interpreter.key() != functorch.TransformType.Vmap:
            continue
        if functorch.CVmapInterpreterPtr(interpreter).randomness() != functorch.RandomnessType.Same:
            raise RuntimeError(
                f"vmap: {codec!r} rounds at random, but save_for_backward has one stream for the whole batch; pass "
                "randomness='same' to vmap to round all samples alike, use a codec with rounding='nearest', or apply "
                "the Function outside of vmap"
            )


def _require_pair(number: int, pair: Any) -> None:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError(
            f"argument {number} must be a pair (tensor, codec), got {type(pair).__name__}; try (tensor, None)"
        )
    tensor, codec = pair
    if tensor is not None and not isinstance(tensor, Tensor):
        raise TypeError(f"the tensor of pair {number} must be a torch.Tensor or None, got {type(tensor).__name__}")
    if codec is not None:
        require_codec(codec)


def _place(ctx: Any, tensor: Tensor, compressed: Compressed, flat: list[Tensor]) -> _Stored:
    """Appends what has to be saved of a stored tensor, through autograd: so that it is freed when autograd frees, and
    that checkpointing, which drops what autograd saves, can drop it."""
    start = len(flat)
    flat.extend(compressed.payload)
    end = len(flat)
    if torch.compiler.is_compiling():
        return _Stored(compressed.codec, compressed.layout, compressed.dtype, start, end, -1, None)
    changed = any(tensor is dirty for dirty in getattr(ctx, "dirty_tensors", None) or ())
    anchored = tensor.requires_grad and not changed
    later = not anchored and tensor.dtype.is_floating_point
    if anchored:
        with torch.enable_grad():
            flat.append(_Anchor.call(tensor))
    for part in flat[start:]:
        part._actcore_payload = True  # type: ignore[attr-defined]  # for actcore.hooks: not to be stored again
    return _Stored(
        compressed.codec,
        compressed.layout,
        compressed.dtype,
        start,
        end,
        end if anchored else -1,
        _Later(tensor) if later else None,
    )


def _restore(ctx: Any, entry: _Stored, form: Compressed, saved: tuple[Tensor, ...]) -> Tensor:
    value = form.decompress()
    if not torch.is_grad_enabled() or not value.dtype.is_floating_point or torch.compiler.is_compiling():
        return value  # there is no double backward through compiled code: torch raises
    if entry.anchor >= 0:
        return _attach(saved[entry.anchor], value)
    if entry.later is None or entry.later.is_result is False:
        return value
    # Double backward through a result of this Function, which had no history when it was saved.
    tensor = entry.later.tensor()
    if tensor is not None and tensor.grad_fn is ctx:
        return _attach(_Anchor.call(tensor), value)
    if entry.later.is_result is None:
        results = [(tuple(result.shape), result.dtype) for result in ctx._input_metadata]
        if (tensor is not None and tensor.grad_fn is None) or (entry.layout.shape, entry.dtype) not in results:
            return value
    raise RuntimeError(
        f"backward with create_graph=True cannot differentiate through a saved output of shape {entry.layout.shape}: "
        "the output was freed or changed after forward, so the second derivative would miss a term. Save the output "
        "exactly, (tensor, None), or save the inputs and recompute it in backward"
    )


def _attach(anchor: Tensor, value: Tensor) -> Tensor:
    return _Attach.call(anchor, value)  # type: ignore[no-any-return]


class _Anchor(FusedFunction):
    """A tensor of the shape and history of another, and without its memory."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tensor: Tensor) -> Tensor:
        return tensor.new_zeros(()).expand(tensor.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # the style that torch.func asks for
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> Tensor | None:
        return gradient


class _Attach(FusedFunction):
    """The second tensor, with the history of the first."""

    generate_vmap_rule = True

    @staticmethod
    def forward(anchor: Tensor, value: Tensor) -> Tensor:
        return value.detach()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.set_materialize_grads(False)  # an undefined gradient stays undefined

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        return gradient, None
