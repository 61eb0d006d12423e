"""``chunking``: how a model's loss can be computed without its logits, for errors that name it."""

from __future__ import annotations

from torch import nn

from integrations._step.graphs.graph import Graph, Op
from integrations.losses.head import ChunkedHead, why_unchunked

CLASSES = "log_softmax"
"""In the names of the operators that make a cross-entropy of logits."""

_PRODUCTS = ("aten.addmm.", "aten.mm.", "aten.linear.", "aten.bmm.")
_MOST = 16  # operators between a product and its loss: casts, scales, caps


def chunking(model: nn.Module, graph: Graph) -> str:
    """Return the argument with which ``compress_model`` computes the model's cross-entropy without its logits, such as
    ``loss="chunked"``; empty if the step has no cross-entropy, or the model no linear layer that makes its logits."""
    paths = [_made_by(graph, op) for op in graph.ops if CLASSES in op.name]
    if not paths:
        return ""
    if not why_unchunked(model):
        return 'loss="chunked"'
    for path in filter(None, paths):
        try:
            layer = model.get_submodule(path)
        except AttributeError:
            continue
        if not ChunkedHead.refuses(layer):
            return f'loss={{"head": "{path}"}}'
    return ""


def _made_by(graph: Graph, op: Op) -> str:
    """Return the path of the module whose product an operator reads, if others of few arguments are between them."""
    for _ in range(_MOST):
        if op.name.startswith(_PRODUCTS):
            return op.module
        if not op.reads:
            return ""
        op = graph.ops[graph.values[op.reads[0]].producer]
    return ""
