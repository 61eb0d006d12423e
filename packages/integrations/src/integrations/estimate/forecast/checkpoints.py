"""``checkpoint``: switches on a model's own gradient checkpointing, as its library names it."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import nn

_TRANSFORMERS, _TIMM = "gradient_checkpointing_enable", "set_grad_checkpointing"


def checkpoints(model: nn.Module) -> bool:
    """Whether a model has gradient checkpointing of its own to switch on by ``checkpoint``."""
    if hasattr(model, _TRANSFORMERS):
        return bool(getattr(model, "supports_gradient_checkpointing", False))
    enable = getattr(copy.deepcopy(model), _TIMM, None)
    if enable is None:
        return False
    try:
        enable()
    except (AssertionError, NotImplementedError):  # a model of timm that has the method says so
        return False
    return True


def make_code(model: nn.Module) -> str:
    """The line of code that does what ``checkpoint`` does."""
    if hasattr(model, _TRANSFORMERS):
        return f'model.{_TRANSFORMERS}({{"use_reentrant": False}})'
    return f"model.{_TIMM}()"


def checkpoint(model: nn.Module) -> None:
    """Switches it on, in place.

    Raises:
        ValueError: the model has none.
    """
    if not checkpoints(model):
        raise ValueError(
            f"{type(model).__name__} has no gradient checkpointing to enable, unlike models of timm and "
            "transformers; leave the option out, or make a recomputation plan: integrations.checkpoint.plan"
        )
    if not hasattr(model, _TRANSFORMERS):
        enable: Any = getattr(model, _TIMM)
        enable()
        return
    with warnings.catch_warnings():  # transformers renames it
        warnings.simplefilter("ignore", FutureWarning)
        enable = getattr(model, _TRANSFORMERS)
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
