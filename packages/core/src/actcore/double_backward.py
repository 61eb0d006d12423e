"""Detect that gradients are differentiated (``create_graph=True``) by way of tensors that a codec has rounded."""

from __future__ import annotations

import torch

from actcore.codec import Codec
from actcore.codecs import BitMask, Narrow, Offload, Positive, Raw
from actcore.warn import warn

EXACT = (BitMask, Narrow, Positive, Raw)
"""Codecs that lose nothing of what backward needs. A user's codec may round."""

BY_ROUNDED = "backward differentiates gradients (create_graph=True) through saved tensors that are rounded"
"""The beginning of warnings."""

# Private in torch: without it, nothing is detected.
_keeps_graph = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", None)


def builds_graph() -> bool:
    """Return whether a backward runs in this thread and autograd builds a graph of it.

    Such a backward keeps the graph that it goes through. A plain one does not, even if a Function enables gradients to
    compute a part of its forward again, as reversible networks do. ``False`` in compiled code, which has no second
    derivative.
    """
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._current_graph_task_id() != -1
        and _keeps_graph is not None
        and _keeps_graph()
    )


def rounds(codec: Codec) -> bool:
    """Return whether a codec may restore other numbers than it stored."""
    return not isinstance(codec.inner if isinstance(codec, Offload) else codec, EXACT)


def warn_of_rounding(name: str) -> None:
    """Warn of a backward with ``create_graph=True`` that reads rounded tensors.

    Args:
        name: what stored the tensors.
    """
    warn(
        f"{name}: {BY_ROUNDED}. Second derivatives may be far off; store these tensors exactly (actcore.Raw() as the "
        "codec)"
    )
