"""Compressing a model in place, finding its handle, undoing it; and compression for the length of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from torch import nn

from integrations.compression import CompressedForward, Compression
from integrations.levels import resolve_level

Model = TypeVar("Model", bound=nn.Module)

# Blocks that a model has been through. Each has a handle of its own, and its noise goes on from the last one's.
_block_steps: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()


def compress_model(model: Model, level: str = "L1", **options: Any) -> Model:
    """Stores what autograd saves in the model's forward in fewer bits, from now on and in place.

    The training loop stays as it is. Weights, buffers, hooks, dtype, device, ``state_dict`` keys and the class survive;
    ``restore_model`` undoes it. ``eval()``, ``no_grad`` and ``inference_mode`` are not affected.

    Args:
        model: any module.
        level: one of ``integrations.LEVELS``: ``"L0"`` off, ``"L1"`` 4 bits, ``"L1.1"`` 8 bits, ``"L1.2"`` 2 bits.
        **options: replace fields of the level: ``bits``, ``product_bits``, ``norm_bits``, ``group_size``,
            ``min_bytes``, ``seed``.

    Returns:
        The same object.

    Raises:
        TypeError: ``model`` is not a module, or an option has the wrong type.
        ValueError: the level or an option is unknown, a value is out of range, or the model is compressed already.
    """
    _require_free(model)
    handle = Compression(model, level, resolve_level(level, options))
    handle.track_modules()
    # The instance's own dictionary: nn.Module would not take a callable that is no module for one anyway.
    model.__dict__["forward"] = CompressedForward(handle, model.forward, "forward" in model.__dict__)
    return model


def compression(model: nn.Module) -> Compression:
    """The handle of a compressed model.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not compressed.
    """
    _require_module(model)
    forward = model.__dict__.get("forward")
    if not isinstance(forward, CompressedForward):
        raise ValueError(f"{type(model).__name__} is not compressed; call compress_model(model, level='L1') first")
    return forward.handle


def restore_model(model: Model) -> Model:
    """Undoes ``compress_model`` completely and returns the same object.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not compressed.
    """
    handle = compression(model)
    handle.untrack_modules()
    forward = model.__dict__.pop("forward")
    if forward.replaced:
        model.__dict__["forward"] = forward.forward
    return model


@contextmanager
def compress(model: nn.Module, level: str = "L1", **options: Any) -> Iterator[Compression]:
    """Compression for a block, for instance a whole step with its loss.

    ::

        with integrations.compress(model, level="L1") as handle:
            loss = criterion(model(x), y)
            loss.backward()
        print(handle.report())

    Arguments and errors are those of ``compress_model``; the handle lives on for its report. In ``eval()`` and without
    gradients the block runs as it is.
    """
    _require_free(model)
    handle = Compression(model, level, resolve_level(level, options))
    if not handle.active:
        yield handle
        return
    handle.step = _block_steps.get(model, 0)
    handle.track_modules()
    try:
        with handle.session():
            yield handle
    finally:
        handle.untrack_modules()
        _block_steps[model] = handle.step


def _require_module(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")


def _require_free(model: nn.Module) -> None:
    _require_module(model)
    if isinstance(model.__dict__.get("forward"), CompressedForward):
        raise ValueError(f"{type(model).__name__} is compressed already; call integrations.restore_model(model) first")
