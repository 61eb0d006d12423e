"""``hooks`` and ``saved_tensors``: every tensor that autograd saves goes through a codec."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from actcore.codec import Codec, as_int64, require_codec
from actcore.codecs.raw import Raw
from actcore.compiling import uncompiled
from actcore.compressed import Compressed
from actcore.device_streams import replayable
from actcore.double_backward import builds_graph, rounds, warn_of_rounding
from actcore.kept import Kept
from actcore.noise import Streams, shared_streams
from actcore.saved_tensor import Policy, SavedTensor
from actcore.stored import announce_held


@dataclass(frozen=True)
class _Shared:
    """A stored form that shares memory with the tensor it was made from, which must therefore not change."""

    compressed: Compressed
    kept: Kept

    def unpack(self) -> Tensor:
        self.kept.unpack()
        return self.compressed.decompress()


Packed: TypeAlias = Kept | Compressed | _Shared
Pack: TypeAlias = Callable[[Tensor], Packed]
Unpack: TypeAlias = Callable[[Packed], Tensor]

_WAYS_OUT = (
    "torch.func transforms refuse saved-tensor hooks, and actcore.hooks and actcore.saved_tensors are such: call the "
    "transform outside of their context, or save through actcore.save_for_backward in an autograd.Function, or use the "
    "operators of torch.ops.actcore directly; these work under transforms."
)


def hooks(codec: Codec, seed: int = 0, streams: Streams | None = None) -> tuple[Pack, Unpack]:
    """Return a ``(pack, unpack)`` pair that stores saved tensors with ``codec``.

    ::

        with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(actcore.GroupAffine(bits=4))):
            loss = criterion(model(x), y)
        loss.backward()

    Any library that accepts such a pair accepts this one. These tensors are kept exactly: parameters, other leaves that
    require gradients, and views of both, because their owner keeps them alive anyway; sparse, nested and quantized
    tensors and tensor subclasses; and tensors that the codec does not support, such as integers (with a warning for a
    floating-point tensor). A kept tensor that is changed in place raises autograd's own error in backward; a stored one
    is a snapshot. A backward with ``create_graph=True`` that reads rounded tensors warns.

    Hooks see tensors, not the operators that save them. One codec for all tensors also rounds those that must not be
    rounded: the error of few bits in attention, norms and softmax can outgrow the gradient. A tensor that two operators
    save is stored twice, and an input that the caller keeps costs its stored bytes in addition. For whole models use
    ``integrations.compress_model``, which knows the operators.

    Args:
        codec: for instance ``GroupAffine(bits=4)``.
        seed: seed of the random rounding.
        streams: the counter that gives each pack its own stream. By default it is the one of this process and seed, so
            that new pairs for every step do not repeat the noise.

    Raises:
        TypeError: ``codec`` has no ``compress`` and ``decompress``, or ``seed`` is not an int.
        ValueError: ``seed`` does not fit in 64 bits.
    """
    require_codec(codec)
    return policy_hooks(lambda saved: codec, seed, streams, chosen=False)


class saved_tensors:
    """A context in which a policy chooses the codec of every tensor that autograd saves.

    ::

        def policy(saved: actcore.SavedTensor) -> actcore.Codec:
            return actcore.GroupAffine(bits=4) if saved.shape.numel() >= 1024 else actcore.Raw()

        with actcore.saved_tensors(policy):
            loss = criterion(model(x), y)
        loss.backward()

    The tensors that ``hooks`` keeps exactly are kept here, too; the policy is not called for parameters, subclasses and
    tensors without strides. Hooks belong to a thread, and the innermost context wins.

    Args:
        policy: a function from a description of the tensor (operator, role and module are empty) to a codec.
        seed, streams: as for ``hooks``.

    Raises:
        TypeError: ``policy`` is not callable, or returned something that is not a codec.
        RuntimeError: entered inside a ``torch.func`` transform, which forbids hooks.
    """

    def __init__(self, policy: Policy, seed: int = 0, streams: Streams | None = None) -> None:
        if not callable(policy) or isinstance(policy, Codec):
            raise TypeError(
                f"policy must be a function from a SavedTensor to a codec, got {policy!r}; "
                "for one codec: lambda saved: actcore.GroupAffine(bits=4)"
            )
        self._pair = policy_hooks(policy, seed, streams)
        self._contexts: list[saved_tensors_hooks] = []  # entered and not left: one object may be entered again

    def __enter__(self) -> Self:
        context = saved_tensors_hooks(*self._pair)
        try:
            context.__enter__()
        except RuntimeError as refusal:
            _explain(refusal)
            raise
        self._contexts.append(context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._contexts.pop().__exit__(kind, error, trace)
        _explain(error)


def _warn_of_rounding(packed: Packed) -> None:
    warn_of_rounding("saved-tensor hooks of actcore")


def policy_hooks(
    policy: Policy,
    seed: int = 0,
    streams: Streams | None = None,
    chosen: bool = True,
    on_rounded: Callable[[Packed], object] = _warn_of_rounding,
) -> tuple[Pack, Unpack]:
    """Return the ``(pack, unpack)`` pair of ``saved_tensors``.

    Args:
        policy, seed, streams: as for ``saved_tensors``.
        chosen: whether somebody chose the codec for the tensor, and wants to hear that it refused.
        on_rounded: is called if a backward with ``create_graph=True`` unpacks a rounded tensor.
    """
    if not isinstance(seed, int):
        raise TypeError(f"seed must be an int, got {seed!r}")
    seed = as_int64("seed", seed)
    if streams is not None and not isinstance(streams, Streams):
        raise TypeError(f"streams must be an actcore.Streams, got {streams!r}")
    counter = shared_streams(seed) if streams is None else streams

    def pack(tensor: Tensor) -> Packed:
        # A torch function mode, such as one that watches a forward, has no business with what happens in here.
        with torch._C.DisableTorchFunction():
            if not _ours(tensor):
                packed: Packed = Kept.of(tensor)
            else:
                packed = _store(tensor, policy(SavedTensor.of(tensor)), seed, counter, chosen)
            stored = packed.compressed if isinstance(packed, _Shared) else packed
            if isinstance(stored, Compressed):
                announce_held(tensor, stored.codec, stored.nbytes)
            else:
                announce_held(tensor, None, 0)
            return packed

    def unpack(packed: Packed) -> Tensor:
        if builds_graph() and _is_rounded(packed):
            on_rounded(packed)
        return packed.decompress() if isinstance(packed, Compressed) else packed.unpack()

    return uncompiled(pack), uncompiled(unpack)


def _is_rounded(packed: Packed) -> bool:
    stored = packed.compressed if isinstance(packed, _Shared) else packed
    return isinstance(stored, Compressed) and rounds(stored.codec)


def _ours(tensor: Tensor) -> bool:
    """Whether a codec may be asked: the tensor's elements lie in memory of its own, and it is nobody's parameter."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized:
        return False
    if is_traceable_wrapper_subclass(tensor) or tensor.is_neg() or tensor._is_zerotensor():
        return False
    root = tensor if tensor._base is None else tensor._base  # nn.Linear saves weight.t()
    if isinstance(root, torch.nn.Parameter) or (root.requires_grad and root.is_leaf):  # frozen ones, too
        return False
    return not hasattr(tensor, "_actcore_payload")  # stored by actcore.save_for_backward already


def _store(tensor: Tensor, codec: Codec, seed: int, streams: Streams, chosen: bool) -> Packed:
    require_codec(codec)
    if isinstance(codec, Raw):
        return Kept.of(tensor)
    try:
        compressed = codec.compress(tensor.detach(), seed=seed, stream=replayable(streams.next(), tensor))
    except (TypeError, ValueError) as refusal:
        if chosen or tensor.is_floating_point():
            warnings.warn(f"a saved tensor is kept as it is: {refusal}", stacklevel=2)
        return Kept.of(tensor)
    storage = tensor.untyped_storage()._cdata
    if any(part.layout is torch.strided and part.untyped_storage()._cdata == storage for part in compressed.payload):
        return _Shared(compressed, Kept.of(tensor))
    return compressed


def _explain(error: BaseException | None) -> None:
    """Adds the ways out to torch's refusal of hooks under a transform."""
    if isinstance(error, RuntimeError) and "saved tensor hooks" in str(error):
        error.add_note(_WAYS_OUT)
