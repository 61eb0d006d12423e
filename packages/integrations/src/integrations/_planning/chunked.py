"""``chunking``: find the ``loss=`` argument that computes a model's loss without its logits, for error messages."""

from __future__ import annotations

from torch import nn

from integrations._step.graphs.graph import Graph, Op
from integrations.losses.head import ChunkedHead, why_unchunked

CLASSES = "log_softmax"
"""Part of the names of operators that compute a cross-entropy from logits."""

_PRODUCTS = ("aten.addmm.", "aten.mm.", "aten.linear.", "aten.bmm.")
_MOST = 16  # operators between a product and its loss: casts, scales, caps


def chunking(model: nn.Module, graph: Graph) -> str:
    """Return the argument that makes ``compress_model`` compute the cross-entropy without logits, such as
    ``loss="chunked"``. Return an empty string if the step has no cross-entropy, or no linear layer makes the logits."""
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
    """Return the path of the module whose matrix product an operator reads; empty if there is none. Follow the first
    operand of each operator, over at most ``_MOST`` operators."""
    for _ in range(_MOST):
        if op.name.startswith(_PRODUCTS):
            return op.module
        if not op.reads:
            return ""
        op = graph.ops[graph.values[op.reads[0]].producer]
    return ""
