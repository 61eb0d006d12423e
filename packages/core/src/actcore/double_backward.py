"""Detect that gradients are differentiated (``create_graph=True``) by way of tensors that a codec has rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from actcore.codec import Codec
from actcore.codecs import BitMask, Narrow, Offload, Positive, Raw
from actcore.warn import warn

EXACT = (BitMask, Narrow, Positive, Raw)
"""Codecs that lose nothing of what backward needs. A user's codec may round."""


def builds_graph() -> bool:
    """Return whether a backward runs in this thread and autograd builds a graph of it.

    Such a backward keeps the graph that it goes through. A plain one does not, even if a Function enables gradients to
    compute a part of its forward again, as reversible networks do. ``False`` under ``torch.func``, which builds a graph
    of every backward, and in compiled code, which has no second derivative.
    """
    return (
        torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and torch._C._current_graph_task_id() != -1
        and torch._C._autograd._get_current_graph_task_keep_graph()  # type: ignore[attr-defined]
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def notify(
    stored: Iterable[tuple[Codec, torch.dtype]], name: str, on_double_backward: Callable[[], object] | None
) -> None:
    """Notify that a backward restores tensors, if autograd builds a graph of it and a codec has rounded one of them.

    Args:
        stored: the codec and dtype of each tensor.
        name: what saved them, for the warning.
        on_double_backward: is called; ``None`` warns.
    """
    if not builds_graph() or not any(dtype.is_floating_point and rounds(codec) for codec, dtype in stored):
        return
    if on_double_backward is not None:
        on_double_backward()
        return
    warn(
        f"{name}: backward differentiates gradients (create_graph=True) through saved tensors that are rounded. Second "
        "derivatives may be far off; store these tensors exactly (actcore.Raw() as the codec)"
    )


def rounds(codec: Codec) -> bool:
    """Return whether the tensors that a codec restores may differ from those that it stored."""
    return not isinstance(codec.inner if isinstance(codec, Offload) else codec, EXACT)
