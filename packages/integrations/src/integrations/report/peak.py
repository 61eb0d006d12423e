"""Estimate the peak memory of a step from the tensors that its forward saves.

Backward holds saved tensors that are not freed yet, restored tensors, and the gradients that an operator reads and
returns. These gradients are taken to have the shapes of the operators' saved tensors: an index or a mask has the shape
of the tensor that it selects from. Temporary memory of operators is not known, so the estimate is usually too low.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from torch import nn
from torch.nn.parameter import is_lazy

from integrations.capture.dispatch.memory import is_wrapper, iter_parts
from integrations.report.row import Row
from integrations.report.words import KEPT
from integrations.tracing.storage.records import IN_CHUNKS, bytes_of_chunks


def gradient_bytes_by_module(model: nn.Module) -> dict[str, int]:
    """Return the bytes on this rank of the gradients of each module's own parameters, by the module's path. A shared
    parameter counts at its first module. Lazy parameters have no shape yet, and do not count."""
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not is_lazy(parameter):
            path = name.rpartition(".")[0]
            parts = iter_parts(parameter) if is_wrapper(parameter) else (parameter,)
            found[path] = found.get(path, 0) + sum(part.numel() * part.itemsize for part in parts)
    return found


def estimated_peaks(rows: Sequence[Row], gradients: Mapping[str, int], gradient_bytes: int = 0) -> tuple[int, int]:
    """Return the activation peaks of a step without compression and with it, in bytes: the most that is allocated at
    once, beyond the bytes that are still allocated after backward.

    Args:
        rows: the rows of the forward.
        gradients: the result of ``gradient_bytes_by_module``. These gradients remain after backward, and do not count.
        gradient_bytes: the bytes of the gradient that the loss's backward makes, if known.
    """
    alone = [row for row in rows if not row.owner]
    chunked = [row.codec.startswith(IN_CHUNKS) for row in alone]
    original = [row.original_bytes for row in alone]
    nothing = [0] * len(alone)
    # A chunked loss has no softmax, and in backward neither its gradient nor that of the logits.
    logits = max((_tensor_bytes(row) for row, chunks in zip(alone, chunked, strict=True) if chunks), default=0)
    plain = _peak(alone, _Memory(original, nothing, nothing, nothing), gradients, max(gradient_bytes, logits))
    made = [replace(row, shape=(0,)) if chunks else row for row, chunks in zip(alone, chunked, strict=True)]
    stored = [0 if row.host else row.stored_bytes for row in alone]
    restored = [0 if row.codec in KEPT else _tensor_bytes(row) for row in made]
    storing = [one + _chunk_bytes(row) for one, row in zip(restored, alone, strict=True)]
    # If the loss has a row for the head's input, the other row holds the gradients of the head's parameters.
    trained = any(chunks and row.role == "input" for row, chunks in zip(alone, chunked, strict=True))
    stays = [row.stored_bytes if trained and _chunk_bytes(row) else 0 for row in alone]
    return plain, _peak(made, _Memory(stored, storing, restored, stays), gradients, gradient_bytes)


class _Memory(NamedTuple):
    """The bytes of each row.

    Attributes:
        waiting: until backward.
        storing: more, when forward stores it.
        restored: more, when backward reads it.
        stays: how many of ``waiting`` become gradients of parameters when backward reads it.
    """

    waiting: Sequence[int]
    storing: Sequence[int]
    restored: Sequence[int]
    stays: Sequence[int]


def _peak(rows: Sequence[Row], memory: _Memory, gradients: Mapping[str, int], gradient_bytes: int) -> int:
    """Return the peak of a step with such rows."""
    first: dict[str, int] = {}  # by module: its first row, after which backward has all of its gradients
    waiting, storing, restored, stays = memory
    total = sum(gradients.values())
    peak, held, itemsize = 0, 0, 4
    for place, row in enumerate(rows):
        first.setdefault(row.module, place)
        held += waiting[place]
        peak = max(peak, held + storing[place])  # forward holds the tensor while it stores it
    made, above = 0, gradient_bytes
    peak = max(peak, held + above)
    for place in reversed(range(len(rows))):
        row = rows[place]
        itemsize = row.dtype.itemsize if row.dtype.is_floating_point else itemsize
        below = _element_count(row) * itemsize
        peak = max(peak, held + restored[place] + above + below + made)
        held, above, made = held - waiting[place], below, made + stays[place]
        if first[row.module] == place:
            made += gradients.get(row.module, 0)
    # Modules without rows, such as embeddings, have made their gradients by now, too.
    return max(peak, above + total) - total


def _chunk_bytes(row: Row) -> int:
    """Return the bytes that the forward of a chunked loss takes beside the gradients that it keeps; 0 if the row does
    not stand for its logits."""
    is_of_logits = row.codec.startswith(IN_CHUNKS) and row.role == "result"
    return bytes_of_chunks(row.codec) if is_of_logits else 0


def _tensor_bytes(row: Row) -> int:
    """Return the bytes of a row's tensor. An expanded tensor, as many indices are, has fewer than its shape says."""
    nbytes = _element_count(row) * row.dtype.itemsize
    return min(nbytes, row.original_bytes) if row.original_bytes or not row.dtype.is_floating_point else nbytes


def _element_count(row: Row) -> int:
    """Return the number of elements of a row's tensor. For a jagged tensor, derive it from the bytes."""
    if all(type(size) is int for size in row.shape):
        return prod(row.shape)
    return row.original_bytes // row.dtype.itemsize
