"""What the loss adds to a forward's report: rows of what it saves, and the gradient with which its backward begins.

If the training loop computes the loss from what the model returns, the model's hooks do not see it: what it saves is
kept as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from actcore import SavedTensor
from integrations._utils.torch_internals import DisableTorchFunction, tree_leaves
from integrations.capture.loss import Loss, own_loss
from integrations.report.row import Row
from integrations.report.words import LOSS
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import get_storage
from integrations.tracing.tracker import CallTracker

CROSS_ENTROPY = "cross_entropy"
_WHY = "the loss is computed outside of the model, and only the model's forward is compressed"
_OWN = "The loss is the model's own"
_GIVEN = "The loss is the given function"
_ASSUMED = (
    "The loss is assumed to be the cross entropy of the model's output; --criterion none leaves it out, and "
    "criterion= in Python sets another one"
)


@dataclass(frozen=True)
class LossPart:
    """What a loss adds to a report.

    Attributes:
        words: whose loss it is; empty without one.
        gradient_bytes: bytes of the gradient of what it is computed from.
        rows: what it saves, where the model's own hooks do not see it.
    """

    words: str = ""
    gradient_bytes: int = 0
    rows: tuple[Row, ...] = ()


def make_part(output: Any, loss: Loss | str | None, storages: Storages) -> LossPart:
    """What the loss of a forward adds; nothing for a model that returns its loss.

    Args:
        output: the forward's.
        loss: a function of the output; ``"cross_entropy"``, if there are logits; ``None`` for none.
        storages: the storages that the forward has saved, each of which counts once.
    """
    logits = _logits(output)
    size = 0 if logits is None else logits.numel() * logits.itemsize
    if own_loss(output) is not None:
        return LossPart(_OWN, size)
    if callable(loss):
        return LossPart(_GIVEN, size, _rows(loss, output, storages))
    if loss is None or logits is None:
        return LossPart()
    return LossPart(_ASSUMED, size, _rows(_cross_entropy(logits), output, storages))


def differentiable(output: Any) -> Any:
    """What a step starts its backward from, if the loop computes a cross-entropy: that of the logits, if there are any;
    otherwise the output itself."""
    logits = _logits(output)
    return output if logits is None else _cross_entropy(logits)(output)


def _rows(loss: Loss, output: Any, storages: Storages) -> tuple[Row, ...]:
    tracker = CallTracker()
    given = {storage._cdata for tensor in _tensors(output) if (storage := get_storage(tensor)) is not None}
    rows: list[Row] = []

    def pack(tensor: Tensor) -> Tensor:
        with DisableTorchFunction():
            call, storage = tracker.call, get_storage(tensor)
            if storage is None or (storage in tracker.foreign and storage._cdata not in given):
                return tensor  # a target, or weights of classes: their owner keeps them
            operator, role = ("", "") if call is None else (call.operator, call.role(tensor, storage))
            saved = SavedTensor.of(tensor, operator=operator, role=role, module=LOSS, occurrence=0)
            # What the forward has stored in another form is kept as it is, too.
            kept = 0 if storage._cdata in seen or storages.keeps(storage) else storage.nbytes()
            seen.add(storage._cdata)
            rows.append(Row.of(Record(saved, "kept", _WHY, "", storages.original_bytes(storage), kept)))
        return tensor

    seen: set[int] = set()
    with tracker, torch.autograd.graph.saved_tensors_hooks(pack, _as_it_is):
        held = loss(output)  # held, so that no two storages have one address
    del held
    return tuple(rows)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


def _cross_entropy(logits: Tensor) -> Loss:
    """The cross-entropy over classes in the last dimension; for images with a class for each pixel, in the second."""
    flat = logits if logits.dim() > 3 else logits.flatten(0, -2)
    target = torch.zeros((len(flat), *flat.shape[2:]), dtype=torch.int64, device=logits.device)
    return lambda output: F.cross_entropy(flat, target)


def _logits(output: Any) -> Tensor | None:
    """What a loss is computed from; ``None`` if the output does not tell."""
    if isinstance(output, Mapping):  # as the outputs of transformers are
        output = output.get("logits")
    elif isinstance(output, tuple):
        output = output[0] if output else None
    fits = isinstance(output, Tensor) and output.requires_grad and output.dim() >= 2 and output.is_floating_point()
    return output if fits else None


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
