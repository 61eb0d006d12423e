"""``explain_oom``: says of an error that memory has run out where the bytes were, and what would have fitted."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from integrations._common.compiling import compiled_module
from integrations._common.out_of_memory import add_note, tell_by
from integrations._fits.optimizers import OPTIMIZERS, nbytes
from integrations._fits.run import fit
from integrations._planning.budget import Budget, bytes_of
from integrations._torch import tree_map_only
from integrations.attach import compression
from integrations.report.words import format_bytes

_WAYS = ("plain", "chunked", "lean", "checkpoint")
_MODULES = 3  # that are named
_ASK = "ask integrations.fit(model, sample, memory=...) what would fit"
_MEMINFO = Path("/proc/meminfo")


@contextmanager
def explain_oom(model: nn.Module, memory: Budget | None = None) -> Iterator[None]:
    """A block in which an error that memory has run out says where the bytes were, and what would have fitted.

    ::

        with integrations.explain_oom(model):
            for batch in loader:
                model(**batch).loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    The error is the same, with a note: the bytes of weights, gradients, optimizer states and of what was stored for
    backward, by module where the model is compressed, and the cheapest change that would have fitted, by ``fit``.
    Before an error, the shapes of each forward's inputs are noted; nothing else is done. An error in the forward of a
    compressed model says where the bytes were without this block, too. What would have fitted it does not say: for that
    the model is copied, and not every model bears that in the middle of its forward.

    Args:
        model: the model that is trained in the block, compressed or not.
        memory: what the training may take; ``None`` for all of the model's device.

    Raises:
        TypeError: ``model`` is no module, or ``memory`` is no number of bytes.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}; give the model that is trained")
    limit = None if memory is None else bytes_of(memory, 0, "memory")
    last: dict[str, Any] = {"args": (), "kwargs": {}}

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        last["args"], last["kwargs"] = tree_map_only(Tensor, _outline, (args, kwargs))

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield
    except BaseException as error:
        hook.remove()
        inputs = tree_map_only(_Outline, _Outline.tensor, (last["args"], last["kwargs"]))
        add_note(error, lambda: f"{_told(model)}\n{_told_what_fits(model, inputs[0], inputs[1], limit)}")
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


def _outline(tensor: Tensor) -> _Outline:
    return _Outline(tuple(tensor.shape), tensor.dtype)


def told(model: nn.Module) -> str:
    """Where a model's bytes are, in words, and who says what would have fitted."""
    return f"{_told(model)}\nWhat would have fitted: {_ASK}, or train inside of integrations.explain_oom(model)."


def _told(model: nn.Module) -> str:
    """Where a model's bytes are, in words."""
    model = compiled_module(model)
    optimizer = _optimizer_of(model)
    parts = {
        "weights": _sum((*model.parameters(), *model.buffers())),
        "gradients": _sum(one.grad for one in model.parameters()),
        "optimizer states": 0 if optimizer is None else _sum(_states(optimizer)),
    }
    told = ", ".join(f"{name} {format_bytes(count)}" for name, count in parts.items())
    return f"There were, of {type(model).__name__}: {told}{_waiting(model)}{_device_of(model)}."


def _waiting(model: nn.Module) -> str:
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


def _device_of(model: nn.Module) -> str:
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type != "cuda":
        return ""
    free, whole = torch.cuda.mem_get_info(device)
    return (
        f"; of {format_bytes(whole)} of {device}, {format_bytes(torch.cuda.memory_allocated(device))} in tensors, "
        f"{format_bytes(torch.cuda.memory_reserved(device))} reserved by torch, {format_bytes(free)} free"
    )


def _memory_of(model: nn.Module) -> int | None:
    """Bytes of the model's device; ``None`` if they cannot be told."""
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    if device.type == "cuda":
        whole: int = torch.cuda.mem_get_info(device)[1]
        return whole
    if not _MEMINFO.exists():
        return None
    return int(_MEMINFO.read_text().split("MemTotal:")[1].split()[0]) << 10


def _told_what_fits(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int | None) -> str:
    """The cheapest change that would have fitted into ``limit`` bytes, in words. An error that says so already is not
    followed by another one."""
    model = compiled_module(model)
    optimizer, memory = _optimizer_of(model), _memory_of(model) if limit is None else limit
    if memory is None or not (args or kwargs):
        return f"The inputs are not known here: {_ASK}."
    name = "sgd" if optimizer is None else type(optimizer).__name__.lower()
    name = name if name in OPTIMIZERS else "sgd"
    try:
        inputs = dict(kwargs) if kwargs and not args else args
        found = fit(model, inputs, memory=memory, optimizer=name, ways=_WAYS, grow=False)
    except Exception as error:  # whatever it is, the error that memory ran out is to be seen
        first = (str(error).splitlines() or [""])[0]
        return f"What would have fitted is not known ({type(error).__name__}: {first:.200}): {_ASK}."
    said = f"{format_bytes(found.total)} with {name}, of {format_bytes(memory)}"
    if found.fits:
        return f"By its tensors, the training takes {said}, which fits: look for what else holds memory."
    if found.answer is not None:
        return (
            f"The training takes {said}. The cheapest change that fits, {format_bytes(found.answer.peak)}: {found.code}"
        )
    return (
        f"The training takes {said}; of what was tried, {found.best.name} takes the least, "
        f"{format_bytes(found.best.peak)}: take a smaller batch, or {_ASK}."
    )


def _optimizer_of(model: nn.Module) -> torch.optim.Optimizer | None:
    """The optimizer that trains a model. It is looked for among all objects, once memory has run out."""
    own = set(map(id, model.parameters()))
    for found in gc.get_objects():
        if issubclass(type(found), torch.optim.Optimizer) and own & {
            id(one) for group in found.param_groups for one in group["params"]
        }:
            return found  # type: ignore[no-any-return]
    return None


def _states(optimizer: torch.optim.Optimizer) -> Iterator[Any]:
    for state in optimizer.state.values():
        yield from state.values() if isinstance(state, dict) else ()


def _sum(tensors: Any) -> int:
    return sum(nbytes(one) for one in tensors if isinstance(one, Tensor))


tell_by(told)
