"""The inputs of ``torch.utils.checkpoint``, from which backward computes a segment again.

Autograd saves them in a function of checkpoint's own, which no ``TorchFunctionMode`` sees. The Python stack tells.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch import Tensor
from torch.utils import checkpoint as torch_checkpoint

OPERATOR = "checkpoint"
_CHECKPOINT = torch_checkpoint.checkpoint.__module__
_BETWEEN = ("torch.autograd", "torch._dynamo", "integrations.saved", "actcore")  # a checkpoint's saving and our hook


def boundary_role(tensor: Tensor) -> str:
    """What a tensor that is being saved outside of any call is to a checkpoint: ``"input"`` if a gradient goes through
    it, ``"other"`` if not, as with a mask; empty if no checkpoint saves it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith(_BETWEEN):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__") != _CHECKPOINT:
        return ""
    return "input" if tensor.requires_grad else "other"
