"""From the pack hook of a ``torch.utils.checkpoint`` to the checkpoint's frame, which recomputes its segment."""

from __future__ import annotations

from typing import Any

from torch.utils import checkpoint as torch_checkpoint

from integrations._utils.torch_internals import CheckpointFrame


def find_checkpoint(hook: Any) -> Any:
    """The checkpoint whose pack hook this is; ``None`` for other hooks, such as that of a segment's second run."""
    code, cells = getattr(hook, "__code__", None), getattr(hook, "__closure__", None) or ()
    if code is None or "frame" not in code.co_freevars or hook.__module__ != torch_checkpoint.__name__:
        return None
    found = cells[code.co_freevars.index("frame")].cell_contents
    return found if isinstance(found, CheckpointFrame) else None
