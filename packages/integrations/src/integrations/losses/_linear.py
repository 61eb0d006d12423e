"""``linear_cross_entropy``: cross-entropy of a linear layer's outputs, which never exist as a whole."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actcore.stored import Absent
from integrations._utils.autocast import dtype_of_product
from integrations._utils.plain_tensor_types import has_elements
from integrations._utils.torch_internals import peek_interpreter_stack
from integrations.capture.costs.chunked import scratch_of_chunks
from integrations.losses import _operator
from integrations.losses._chunks import rows_of_chunk
from integrations.losses._differentiated import differentiated
from integrations.losses._shards import VocabularyShard, is_replicated, why_whole
from integrations.losses._terms import Terms, make_terms, require_reduction
from integrations.tracing.tensors import is_dtensor


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None = None,
    *,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    scale: float = 1.0,
    softcap: float | None = None,
    rows: int | None = None,
) -> Tensor:
    """Compute ``F.cross_entropy(F.linear(hidden, weight, bias), labels)`` without storing the logits.

    Forward computes the logits of a few rows at a time, turns them into their gradient and multiplies it into the
    gradients of ``hidden``, ``weight`` and ``bias``, so that no product is computed twice. With ``reduction="none"``,
    and in compiled code, backward recomputes the logits. Losses, the softmax and the sums over rows are in float32, or
    in float64 for float64 tensors. Under autocast the products are in its dtype.

    ::

        hidden = model.model(input_ids).last_hidden_state
        loss = linear_cross_entropy(hidden[:, :-1], model.lm_head.weight, labels[:, 1:])

    In tensor parallel, ``weight`` and ``bias`` are DTensors placed as ``[Shard(0)]``, and ``hidden`` is one placed as
    ``[Replicate()]``, on the same mesh of one dimension. Each rank computes the logits of its classes alone.

    Args:
        hidden: (..., features), the input of the linear layer.
        weight: (classes, features), of the same dtype.
        labels: (...), int64 or int32: class indices, or ``ignore_index``.
        bias: (classes,), of the same dtype as ``weight``.
        class_weight: (classes,), a factor for the loss of each class; must not require a gradient.
        ignore_index: the label of rows without a loss, which ``"mean"`` does not count.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``, as in ``F.cross_entropy``.
        label_smoothing: from 0 to 1, as in ``F.cross_entropy``.
        scale: the factor by which logits are multiplied first.
        softcap: the bound of the logits after scaling, ``softcap * tanh(logits / softcap)``, as in Gemma 2.
        rows: the number of rows whose logits are computed at a time. By default, these logits take about the memory of
            ``hidden``; or up to half the memory of the weight's gradient, if it is needed, and a quarter of all logits.
            There are at least 128 rows on a CPU and 512 on a GPU.

    Returns:
        A scalar, or the losses in the shape of ``labels``; float32, or float64 for float64 tensors. A replicated
        DTensor if ``weight`` is a DTensor.

    Raises:
        TypeError: an argument is not a tensor, has an unsupported dtype, or is a DTensor where the others are not.
        ValueError: shapes, devices or dtypes do not match, a number is out of its range, a label is not a class, or a
            DTensor is placed in another way.
        NotImplementedError: it is differentiated twice, called under ``torch.func``, or compiled with DTensors.
    """
    if not torch.compiler.is_compiling() and peek_interpreter_stack() is not None:
        raise NotImplementedError(
            "linear_cross_entropy does not support torch.func or vmap; use torch.nn.functional.cross_entropy of the "
            "logits there"
        )
    if rows is not None and (isinstance(rows, bool) or not isinstance(rows, int) or rows < 1):
        raise ValueError(f"rows must be an int from 1, or None, got {rows!r}")
    numbers = ignore_index, label_smoothing, scale, softcap
    if not (is_dtensor(hidden) and is_dtensor(weight)):
        terms = make_terms(*numbers)
        return cross_entropy_of_rows(hidden, weight, bias, labels, class_weight, terms, reduction, rows)
    if torch.compiler.is_compiling():
        raise NotImplementedError("linear_cross_entropy of DTensors cannot be compiled: call it outside torch.compile")
    if why := why_whole(weight, bias):
        raise ValueError(f"linear_cross_entropy cannot use this layer: {why}")
    shard = VocabularyShard.of(weight)
    if not is_replicated(hidden, shard.mesh):
        raise ValueError(
            f"hidden must be placed as (Replicate(),) on the mesh of weight, got {hidden.placements}: pass "  # type: ignore[attr-defined]
            "hidden.redistribute(weight.device_mesh, [Replicate()])"
        )
    own = *shard.local(hidden, weight, bias), shard.own_copy("labels", labels)
    class_weight, terms = shard.own_copy("class_weight", class_weight), make_terms(*numbers, shard)
    return shard.replicate(cross_entropy_of_rows(*own, class_weight, terms, reduction, rows, shard))


def cross_entropy_of_rows(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    class_weight: Tensor | None,
    terms: Terms,
    reduction: str,
    rows: int | None,
    shard: VocabularyShard | None = None,
) -> Tensor:
    """Return what ``linear_cross_entropy`` returns, for plain tensors.

    Args:
        hidden, labels, class_weight, reduction, rows: as there.
        weight, bias: this rank's.
        terms: what makes the loss.
        shard: the classes of this rank; ``None`` for all classes.
    """
    _check(hidden, weight, labels, bias, class_weight, terms)
    require_reduction(reduction)
    flat, targets = hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1).long()
    wide = _operator.wide(hidden.dtype)
    classes = None if class_weight is None else class_weight.detach().to(wide)
    most = len(weight) if shard is None else shard.most
    rows = rows or rows_of_chunk(flat, most, torch.is_grad_enabled() and weight.requires_grad)
    if reduction == "none" or torch.compiler.is_compiling():
        losses = linear_losses(flat, weight, bias, targets, classes, terms, rows)
        if reduction == "none":
            return losses.view(labels.shape)
        return losses.sum() / terms.divisor(targets, classes, wide) if reduction == "mean" else losses.sum()

    def summed(wanted: Sequence[bool]) -> tuple[Tensor, list[Tensor], int]:
        tensors = flat, weight, bias
        given = _computed_with(*tensors)
        args = *given, targets, classes, None, *terms, rows, list(wanted)
        losses, *gradients = _operator.linear_cross_entropy(*args)
        cast = sum(new.nbytes for new, old in zip(given, tensors, strict=True) if new is not None and new is not old)
        return losses.sum(dtype=torch.float64).to(wide), gradients, cast + scratch_of_chunks(args)

    total = terms.divisor(targets, classes, wide) if reduction == "mean" else None
    # torch saves the softmax in float32: models or autocast cast the logits for the loss.
    logits = Absent.like(flat, (len(flat), len(weight)), wide)
    return differentiated(summed, total, (flat, weight, bias), logits, rows)


def linear_losses(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    class_weight: Tensor | None,
    terms: Terms,
    rows: int,
) -> Tensor:
    """Return the loss of each row, (rows,), in float32, or float64 for such tensors; without labels, the ``logsumexp``
    over the classes. Backward computes their gradients.

    Args:
        hidden: (rows, features).
        weight, bias, terms: as for ``cross_entropy_of_rows``.
        labels: (rows,), int64.
        class_weight: (classes,), of the losses' dtype.
        rows: the rows of a chunk.
    """
    losses: Tensor
    given = *_computed_with(hidden, weight, bias), labels, class_weight, None, *terms, rows, [False] * 3
    losses, *_ = _operator.linear_cross_entropy(*given)
    return losses


def linear_chosen(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, classes: Tensor, shard: VocabularyShard | None
) -> Tensor:
    """Return one output of a linear layer for each row, (rows,), in the dtype of the layer's outputs.

    Args:
        hidden: (rows, features).
        weight, bias: this rank's.
        classes: (rows,), int64: the output of each row.
        shard: the classes of this rank; ``None`` for all classes.
    """
    own = None
    if shard is not None:
        classes, own = shard.own(classes)
    chosen = torch.bmm(hidden.unsqueeze(1), F.embedding(classes, weight).unsqueeze(2)).flatten()
    if bias is not None:
        chosen = chosen + bias[classes].to(chosen.dtype)
    return chosen if shard is None or own is None else shard.total(torch.where(own, chosen, 0))


def _computed_with(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the dtype of the products."""
    return [None if tensor is None else tensor.to(dtype_of_product(tensor)) for tensor in tensors]


class LinearCrossEntropyLoss(nn.Module):
    """``linear_cross_entropy`` as a module.

    It has no parameters, and reads its options at each call. ``class_weight`` is a buffer, which moves with the module.

    ::

        criterion = LinearCrossEntropyLoss(ignore_index=tokenizer.pad_token_id)
        loss = criterion(hidden, head.weight, labels)

    Args:
        **options: options of ``linear_cross_entropy``.

    Raises:
        TypeError: there is no such option.
    """

    class_weight: Tensor | None

    def __init__(self, **options: Any) -> None:
        super().__init__()
        tensors = dict.fromkeys(("hidden", "weight", "labels"))
        inspect.signature(linear_cross_entropy).bind(**tensors, **options)
        self.register_buffer("class_weight", options.pop("class_weight", None))
        self.options = options

    def forward(self, hidden: Tensor, weight: Tensor, labels: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the loss."""
        return linear_cross_entropy(hidden, weight, labels, bias, class_weight=self.class_weight, **self.options)

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={value!r}" for name, value in self.options.items())


def _check(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    bias: Tensor | None,
    class_weight: Tensor | None,
    terms: Terms,
) -> None:
    for name, tensor in (("hidden", hidden), ("weight", weight), ("bias", bias), ("class_weight", class_weight)):
        if tensor is None and name in ("bias", "class_weight"):
            continue
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            got = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise TypeError(f"{name} must be a tensor of floating point numbers, got {got}")
        if hasattr(tensor, "full_tensor"):
            raise TypeError(
                f"{name} must be a plain tensor, got a distributed {type(tensor).__name__}: compute the loss in the "
                "forward of the module that you passed to fully_shard, where the weights are not sharded, or pass "
                f"{name}.full_tensor(); in tensor parallel, hidden and weight must both be DTensors"
            )
    if not isinstance(labels, Tensor) or labels.dtype not in (torch.int64, torch.int32):
        got = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(
            f"labels must be an int64 or int32 tensor of class indices, got {got}; for class probabilities use "
            "torch.nn.functional.cross_entropy of the logits"
        )
    if weight.dim() != 2 or hidden.dim() < 1 or hidden.shape[-1] != weight.shape[-1]:
        raise ValueError(
            "hidden must be (..., features) and weight (classes, features), got "
            f"{tuple(hidden.shape)} and {tuple(weight.shape)}"
        )
    if labels.shape != hidden.shape[:-1]:
        raise ValueError(
            f"labels must have the shape of hidden without its last dimension, {tuple(hidden.shape[:-1])}, got "
            f"{tuple(labels.shape)}; if each position predicts the next, shift both first"
        )
    classes = terms.classes or len(weight)
    for name, tensor, count in (("bias", bias, len(weight)), ("class_weight", class_weight, classes)):
        if tensor is not None and tensor.shape != (count,):
            raise ValueError(f"{name} must have the shape {(count,)}, got {tuple(tensor.shape)}")
    for name, tensor in (("weight", weight), ("labels", labels), ("bias", bias), ("class_weight", class_weight)):
        if tensor is not None and tensor.device != hidden.device:
            raise ValueError(f"{name} must be on hidden's device, {hidden.device}, got {tensor.device}; move it there")
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and dtype_of_product(tensor) != dtype_of_product(hidden):
            raise ValueError(f"{name} must have hidden's dtype, {hidden.dtype}, got {tensor.dtype}; cast one of them")
    if class_weight is not None and class_weight.requires_grad:
        raise ValueError("class_weight must not require a gradient; pass class_weight.detach()")
    # Elsewhere, looking at labels would wait for the device, whose kernels refuse such labels themselves.
    if labels.device.type == "cpu" and has_elements(labels) and not torch.compiler.is_compiling() and labels.numel():
        wrong = (labels != terms.ignored) & ((labels < 0) | (labels >= classes))
        if wrong.any():
            raise ValueError(
                f"labels must be classes from 0 to {classes - 1}, or ignore_index, {terms.ignored}, got "
                f"{labels[wrong][0].item()}"
            )
