"""``ChunkedLoss``: the loss in chunks of a plan. ``chunking`` and ``head_in``: the layer whose logits need not be
made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from integrations._utils.chunked_loss import OPERATOR
from integrations.capture.graphs.graph import Graph, Op
from integrations.losses.chunked_head import ChunkedHead
from integrations.losses.head import path_of_head, why_unchunked

CLASSES = "log_softmax"
"""Part of the names of operators that compute a cross-entropy from logits."""

SHARE = 10
"""Logits of a tenth of the least peak and more are worth a loss in chunks."""

_PRODUCTS = ("aten.addmm.", "aten.mm.", "aten.linear.", "aten.bmm.")
_MOST = 16  # operators between a product and its loss: casts, scales, caps


@dataclass(frozen=True)
class ChunkedLoss:
    """The loss in chunks of a plan, and what the step takes that computes it from whole logits.

    Attributes:
        head: path of the layer that makes the logits.
        peak: bytes of the activation peak of the plain step with whole logits.
        accumulating_peak: the same where each parameter has a gradient already.
        seconds: modelled seconds of the plain step with whole logits.
        rows: rows of a chunk, as many as the memory allows; 0 for the default.
        least_rows: rows of a chunk in the captured step; 0 if they are unknown, as for a loss in a checkpoint.
        most_rows: rows beyond which more make nothing faster.
        outside: whether the loss is computed outside of the model, so that no operator of its forward has the chunks.
        assumed: whether that loss is not known, and is taken to be one cross-entropy.
    """

    head: str
    peak: int
    accumulating_peak: int
    seconds: float
    rows: int
    least_rows: int
    most_rows: int
    outside: bool = False
    assumed: bool = False


def chunking(model: nn.Module, graph: Graph) -> str:
    """Return the argument that makes ``compress_model`` compute the cross-entropy without logits, such as
    ``loss="chunked"``. Return an empty string if the step has no cross-entropy, or no linear layer makes the logits."""
    path = head_in(model, graph)
    if path is None:
        return ""
    return f'loss={{"head": "{path}"}}' if why_unchunked(model) else 'loss="chunked"'


def head_in(model: nn.Module, graph: Graph) -> str | None:
    """Return the path of the linear layer that makes the logits of a step's cross-entropy; ``None`` as above."""
    paths = [_made_by(graph, op) for op in graph.ops if CLASSES in op.name]
    if not paths:
        return None
    if not why_unchunked(model):
        return path_of_head(model)
    for path in filter(None, paths):
        try:
            layer = model.get_submodule(path)
        except AttributeError:
            continue
        if not ChunkedHead.refuses(layer):
            return path
    return None


def logits_bytes(graph: Graph) -> int:
    """Return the bytes of the largest tensor that a cross-entropy makes from logits; 0 without one."""
    values = [value for op in graph.ops if CLASSES in op.name for value in op.makes]
    return max((graph.values[value].nbytes for value in values), default=0)


def largest_product(graph: Graph, classes: int) -> int:
    """Return the elements of the largest result of a matrix product with so many columns, as whole logits are; 0
    without one."""
    products = [op for op in graph.ops if op.name.startswith(_PRODUCTS)]
    shapes = [shape for op in products for shape in op.shapes if shape and shape[-1] == classes]
    return max(map(math.prod, shapes), default=0)


def chunk_op(graph: Graph) -> int | None:
    """Return the number of the operator that computes a loss in chunks with its gradients; ``None`` if there is none,
    or there are several."""
    name = OPERATOR.replace("::", ".")
    found = [number for number, op in enumerate(graph.ops) if op.name.startswith(name)]
    if len(found) != 1:
        return None
    _, *gradients = graph.ops[found[0]].shapes
    return found[0] if any(math.prod(shape) for shape in gradients) else None


def _made_by(graph: Graph, op: Op) -> str:
    """Return the path of the module whose matrix product an operator reads; empty if there is none. Follow the first
    operand of each operator, over at most ``_MOST`` operators."""
    for _ in range(_MOST):
        if op.name.startswith(_PRODUCTS):
            return op.module
        if not op.reads:
            return ""
        op = graph.ops[graph.values[op.reads[0]].producer]
    return ""
