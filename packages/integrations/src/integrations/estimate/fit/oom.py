"""``explain_oom``: says of an error that memory has run out where the bytes were, and what would have fitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from integrations._utils.autocast import autocast_on
from integrations._utils.compiling import compiled_module
from integrations._utils.out_of_memory import add_explainer, add_note
from integrations._utils.torch_internals import tree_map_only
from integrations.api.compress import compression
from integrations.estimate.fit.run import fit
from integrations.estimate.forecast.dtypes import Precision
from integrations.losses.head import why_unchunked
from integrations.planner.budget import Budget
from integrations.planner.errors import PlanningError
from integrations.planner.free_memory import measure_room, training_memory
from integrations.planner.optimizers import bytes_of_tensors, find_optimizers, find_states, kept_like
from integrations.report.words import format_bytes
from integrations.tracing.tensors import get_gradient

_WAYS = ("plain", "chunked", "lean", "checkpoint")
_MODULES = 3  # that are named
_ASK = "call integrations.fit(model, args, memory=...)"


@contextmanager
def explain_oom(model: nn.Module, memory: Budget | None = None) -> Iterator[None]:
    """Add a note to out-of-memory errors in a block: where the bytes were, and the cheapest change that fits.

    ::

        with integrations.explain_oom(model):
            for batch in loader:
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    The error stays the same. The note has the bytes of weights, gradients, optimizer states and tensors stored for
    backward (by module if the model is compressed), and the cheapest change that fits, found by ``fit``. Without an
    error, the block only records the shapes of each forward's inputs. An error in the forward of a compressed model
    says where the bytes were even without this block. It does not name a change that fits, because that needs a copy of
    the model, and not every model can be copied in the middle of its forward.

    Args:
        model: the model that is trained in the block, compressed or not.
        memory: the memory that the training may take, in the forms of ``fit``; ``None`` for all of the model's device.

    Raises:
        TypeError: ``model`` is not a module, or ``memory`` is not a number of bytes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; give the model that is trained")
    limit = None if memory is None else training_memory(memory, _get_device(model))
    last = _Forward()

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal last
        given, named = tree_map_only(Tensor, _outline, (args, kwargs))
        last = _Forward(given, named, autocast_on(_get_device(model)))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    except BaseException as error:
        hook.remove()
        add_note(error, lambda: f"{_memory_in_words(model)}\n{_fix_in_words(model, last, limit)}")
        raise
    finally:
        hook.remove()


@dataclass(frozen=True)
class _Outline:
    """What is left of an input."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def tensor(self) -> Tensor:
        """An input of this shape, without elements where it has fractions."""
        if self.dtype.is_floating_point:
            return torch.empty(self.shape, dtype=self.dtype, device="meta")
        return torch.zeros(self.shape, dtype=self.dtype)


@dataclass(frozen=True)
class _Forward:
    """What is left of a forward.

    Attributes:
        args, kwargs: its inputs, of whose tensors there are outlines.
        autocast: the dtype of the autocast around it; ``None`` without one.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    autocast: torch.dtype | None = None

    def inputs(self) -> Any:
        """The inputs by position, and by name."""
        return tree_map_only(_Outline, _Outline.tensor, (self.args, dict(self.kwargs)))


def _outline(tensor: Tensor) -> _Outline:
    return _Outline(tuple(tensor.shape), tensor.dtype)


def explain_memory(model: nn.Module) -> str:
    """Where a model's bytes are, in words, and who says what would have fitted."""
    how = f"To find a change that fits, {_ASK}, or train inside of integrations.explain_oom(model)."
    return f"{_memory_in_words(model)}\n{how}"


def _memory_in_words(model: nn.Module) -> str:
    """Where a model's bytes are, in words."""
    model = compiled_module(model)
    parts = {
        "weights": bytes_of_tensors((*model.parameters(), *model.buffers())),
        "gradients": bytes_of_tensors(get_gradient(one) for one in model.parameters()),
        "optimizer states": bytes_of_tensors(find_states(find_optimizers(model))),
    }
    told = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items())
    return f"Memory of {type(model).__name__}: {told}{_saved_in_words(model)}{_device_in_words(_get_device(model))}."


def _saved_in_words(model: nn.Module) -> str:
    """What a compressed model's last forward has left for backward, by module."""
    try:
        rows = compression(model).report().rows
    except ValueError:
        return ""
    by_module = Counter[str]()
    for row in rows:
        by_module[row.module or "(model)"] += row.stored_bytes
    most = ", ".join(f"{module} {format_bytes(count)}" for module, count in by_module.most_common(_MODULES) if count)
    return f", stored for backward {format_bytes(sum(by_module.values()))}" + (f" ({most}, ...)" if most else "")


def _get_device(model: nn.Module) -> torch.device:
    return next((one.device for one in model.parameters()), torch.device("cpu"))


def _device_in_words(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, whole = torch.cuda.mem_get_info(device)
    return (
        f"; of {format_bytes(whole)} of {device}, {format_bytes(torch.cuda.memory_allocated(device))} in tensors, "
        f"{format_bytes(torch.cuda.memory_reserved(device))} reserved by torch, {format_bytes(free)} free"
    )


def _find_memory(model: nn.Module) -> int | None:
    """Bytes of the model's device; ``None`` if they cannot be told."""
    try:
        return measure_room(_get_device(model)).whole
    except PlanningError:
        return None


def _fix_in_words(model: nn.Module, forward: _Forward, limit: int | None) -> str:
    """The cheapest change that would have fitted into ``limit`` bytes, in words. An error that says so already is not
    followed by another one."""
    model = compiled_module(model)
    memory = _find_memory(model) if limit is None else limit
    if memory is None or not (forward.args or forward.kwargs):
        return f"The inputs are not known here: {_ASK}."
    name, precision = kept_like(find_optimizers(model)), Precision(None, forward.autocast)
    ways = [way for way in _WAYS if way != "chunked" or not why_unchunked(model)]
    try:
        found = fit(model, *forward.inputs(), memory=memory, optimizer=name, dtype=precision, ways=ways, grow=False)
    except Exception as error:  # whatever it is, the error that memory ran out is to be seen
        first = (str(error).splitlines() or [""])[0]
        return f"No change that fits is known ({type(error).__name__}: {first:.200}): {_ASK}."
    said = f"{format_bytes(found.total)} with {name}, of {format_bytes(memory)}"
    if found.fits:
        return (
            f"By its tensors, the training takes {said}, which fits: find the other tensors or processes that hold "
            "memory."
        )
    if found.answer is not None:
        return (
            f"The training takes {said}. The cheapest change that fits, {format_bytes(found.answer.peak)}: {found.code}"
        )
    return (
        f"The training takes {said}; of the options that were tried, {found.best.name} takes the least, "
        f"{format_bytes(found.best.peak)}: take a smaller batch, or {_ASK}."
    )


add_explainer(explain_memory)
