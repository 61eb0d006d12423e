"""Compressing a model in place, finding its handle, undoing it; and compression for the length of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from integrations import blocks, fewbit, outcome, qmodules
from integrations.adaptive.surroundings import undo_after_trial
from integrations.blocks import BlockCompression, entered, in_block
from integrations.checkpoint.applied import CheckpointedForward
from integrations.compiling import compiled_module
from integrations.compression import Compression
from integrations.ecosystem import require_one_checkpointing
from integrations.exchanges import Exchanges
from integrations.forward import CompressedForward
from integrations.keeping import require_paths
from integrations.levels import resolve_level
from integrations.qmodules import QLevel
from integrations.recomputing import Asked, recomputing_for
from integrations.stand_in import ForwardStandIn
from integrations.unused import await_forward, await_no_longer

Model = TypeVar("Model", bound=nn.Module)
Handle = TypeVar("Handle", bound=Compression)

_HANDLE = Compression.PLACE

# How many forwards a model has been through: what one block leaves to the next, until restore_model.
_steps: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_lock = threading.Lock()


def compress_model(
    model: Model,
    level: str = "L1",
    *,
    activations: str | int | Mapping[str, Any] | None = None,
    linear: str | float | Mapping[str, Any] | None = None,
    layers: str | QLevel | Mapping[str, Any] | None = None,
    checkpoint: Asked | None = None,
    strict: bool = False,
    **options: Any,
) -> Model:
    """Stores what autograd saves in the model's forward in fewer bits, from now on and in place.

    The training loop stays as it is. Weights, buffers, hooks, dtype, device, ``state_dict`` keys and the class survive;
    ``restore_model`` undoes it. ``eval()``, ``no_grad`` and ``inference_mode`` are not affected.

    Args:
        model: any module.
        level: one of ``integrations.LEVELS``: ``"L0"`` off, ``"L1"`` 4 bits, ``"L1.1"`` 8 bits, ``"L1.2"`` 2 bits;
            ``"L2"``, ``"L2.1"``, ``"L2.2"`` 4, 3 and 2 bits on average, each tensor its own; ``"L3"`` those of L2 in
            host memory, ``"L4bit-swap"`` 4 bits there, ``"swap"`` tensors as they are there.
        activations: exchanges activations for few-bit ones, before what is left is stored as the level says:
            ``"fewbit"`` for 3 bits, a number of bits from 1 to 8, or ``fewbit.convert``'s arguments.
        linear: exchanges linear layers for ones that keep a random sketch of their input: ``"randomized"`` for a fifth
            of it, a ratio in (0, 1], or ``fewbit.RandomizedLinear``'s arguments.
        layers: exchanges the layers that are left for Q-layers, which store their inputs themselves: ``"q"`` for 2 bits
            on average, another of ``qmodules.LEVELS``, or ``QModule``'s arguments.
        checkpoint: lets backward make again some of what it needs, besides storing it: ``"optimal"`` as much as gives
            the least peak; a budget of activation peak (bytes, ``"4GiB"``, or a fraction of the plain step's) as little
            as that takes; a ``Plan`` of ``integrations.checkpoint.plan`` what it says, which may have a ``loss`` of its
            own. The first training forward is planned for, on tensors without elements. What is kept for that is stored
            in ``checkpoint_bits``, and what is made again as the level says, until backward reads it.
        strict: whether a forward that is stored in no fewer bytes raises ``RuntimeError``, which names the reasons; and
            so an optimizer's step, while no forward was compressed. By default a warning does, once.
        **options: replace fields of the level: ``bits``, ``product_bits``, ``norm_bits``, ``pointwise_bits``,
            ``attention_bits``, ``checkpoint_bits``, ``group_size``, ``min_bytes``, ``seed``, ``adaptive``,
            ``adapt_interval``, ``offload``, ``keep``; see ``Level``.

    Returns:
        The same object.

    Raises:
        TypeError: ``model`` is not a module, or an argument has the wrong type.
        ValueError: the level or an option is unknown, a value is out of range, or the model is compressed or converted
            already, or follows a plan; an option applies to no layer of it; with ``checkpoint``, if the level is off or
            adaptive, or a part of the model is compressed. The model is as it was then.
    """
    inner = compiled_module(model)
    exchanges = Exchanges.asked(activations, linear, layers)
    handle = _new_handle(Compression, inner, level, strict, options)
    require_paths(inner, handle.level.keep)
    if checkpoint is not None:
        exchanges.require_repeatable()
        require_one_checkpointing(inner)
        ForwardStandIn.require_none(inner, "give checkpoint to the whole model's compress_model")
        handle.recomputing = recomputing_for(inner, handle.level, checkpoint)
    if exchanges:
        exchanges.apply(inner, handle.level)
    # The instance's own dictionary: copied with the model, unseen by state_dict and by nn.Module's attributes.
    inner.__dict__[_HANDLE] = handle
    await_forward(handle)
    CompressedForward(handle, inner.forward, "forward" in inner.__dict__).put()
    return model


def compression(model: nn.Module) -> Compression:
    """The handle of a compressed model.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not compressed.
    """
    return _handle_in(model).for_user()


def _handle_in(model: nn.Module) -> Compression:
    """The handle itself, which does not keep the model. See ``compression``."""
    _require_module(model)
    model = compiled_module(model)
    handle = model.__dict__.get(_HANDLE)
    if not isinstance(handle, Compression):
        raise ValueError(f"{type(model).__name__} is not compressed; call compress_model(model, level='L1') first")
    if handle._model.alive is not model:
        raise ValueError(f"{type(model).__name__} is a shallow copy of a compressed model; use copy.deepcopy instead")
    return handle


def restore_model(model: Model) -> Model:
    """Undoes ``compress_model`` completely, the layers that it exchanged included, and returns the same object.

    What compresses the model after that, blocks among them, begins anew: at step 0, so with the same noise again, and
    without a plan. The handle's ``state_dict``, loaded into the next one, goes on instead.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not compressed; or a layer that was exchanged was parametrized since. Nothing has
            changed then.
    """
    _require_module(model)
    if _HANDLE not in compiled_module(model).__dict__ and (others := _ways_back(compiled_module(model))):
        raise ValueError(f"{type(model).__name__} is not compressed; {others} undoes what was done to it")
    handle = _handle_in(model)
    inner = handle.model
    Exchanges.undo(inner)  # which may refuse: everything is as it was then
    handle.closed = True
    await_no_longer(handle)
    with _lock:
        _steps.pop(inner, None)
    blocks.forget(inner)
    outcome.forget(inner)
    del inner.__dict__[_HANDLE]
    forward = CompressedForward.of(inner)
    if forward is not None:  # otherwise somebody has wrapped it
        forward.take_out()
    return model


@contextmanager
def compress(model: nn.Module, level: str = "L1", *, strict: bool = False, **options: Any) -> Iterator[Compression]:
    """Compression for a block, for instance a whole step with its loss.

    ::

        with integrations.compress(model, level="L1") as handle:
            loss = criterion(model(x), y)
            loss.backward()
        print(handle.report())

    Arguments and errors are those of ``compress_model``; the handle lives on for its report. In ``eval()`` and without
    gradients the block runs as it is. A block is one step, its backward in it or after it: open one for each step of a
    loop. Blocks of one model at one level, with the same options, adapt as the forwards of ``compress_model`` do: the
    second is measured, and every ``adapt_interval``-th from there on; of several backwards in a block, the first.
    To resume a run, ``handle.load_state_dict(state)`` in its first block, before the forward.
    ``handle.adapt(closure)``, outside of the block, measures at once, and makes a block of each call of the closure.
    """
    model = compiled_module(model)
    if "checkpoint" in options:
        raise ValueError(
            "checkpoint must be left out of a block, whose forward follows no plan of what backward makes again; "
            "integrations.compress_model(model, level, checkpoint=...) has the model follow one"
        )
    handle = _new_handle(BlockCompression, model, level, strict, options)
    require_paths(model, handle.level.keep)
    handle.leave_step = partial(_steps.__setitem__, model)
    if not handle.active:
        yield handle
        return
    with entered(model):
        with _lock:
            handle.step = _steps.get(model, 0)
            undo_after_trial(partial(_steps.__setitem__, model, handle.step))
            _steps[model] = handle.step + 1
        try:
            with handle.session(measured=True):
                yield handle
        finally:
            with _lock:
                _steps[model] = max(_steps.get(model, 0), handle.step)  # more, if a state was loaded


def _new_handle(kind: type[Handle], model: nn.Module, level: str, strict: bool, options: Mapping[str, Any]) -> Handle:
    _require_module(model)
    if not isinstance(strict, bool):
        raise TypeError(f"strict must be True or False, got {strict!r}")
    name = type(model).__name__
    if _HANDLE in model.__dict__:
        raise ValueError(f"{name} is compressed already; call integrations.restore_model(model) first")
    if in_block(model):
        raise ValueError(f"{name} is in a block of integrations.compress already; leave it first")
    ForwardStandIn.require_none(model, "compress_model(model, checkpoint=plan) does both", CheckpointedForward.what)
    handle = kind(model, level, resolve_level(level, options), strict)
    handle.step = _steps.get(model, 0)
    return handle


def _ways_back(model: nn.Module) -> str:
    """The calls that undo what others than ``compress_model`` did to a model; empty where nobody did."""
    found = [
        call
        for call, done in (
            ("integrations.fewbit.restore_model(model)", fewbit.is_converted(model)),
            ("integrations.qmodules.revert(model)", qmodules.is_converted(model)),
            ("integrations.checkpoint.restore_model(model)", CheckpointedForward.of(model) is not None),
        )
        if done
    ]
    return " and ".join(found)


def _require_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
