"""What ``integrations.timm``, ``.hf`` and ``.pyg`` check before they compress a model of their library."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from types import ModuleType

from torch import nn


def library(name: str, extra: str) -> ModuleType:
    """The library, imported.

    Raises:
        ImportError: it is not installed; the message says what to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise ImportError(
            f"integrations.{extra} needs {name}, which is not installed: pip install actcore-integrations[{extra}]"
        ) from error


def require_member(model: nn.Module, packages: Iterable[str], what: str) -> None:
    """Checks that something in a model belongs to a library.

    Args:
        model: the model.
        packages: the packages of the library's classes.
        what: a model of the library, in words.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: no module in it is of a class of the library.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    roots = set(packages)
    if not any(base.__module__.partition(".")[0] in roots for one in model.modules() for base in type(one).__mro__):
        raise ValueError(
            f"model must be {what}, or contain one, got {type(model).__name__}, which contains none; "
            "integrations.compress_model takes any module"
        )


CHECKPOINTS = {
    "grad_checkpointing": "model.set_grad_checkpointing(False)",  # timm's
    "gradient_checkpointing": "model.gradient_checkpointing_disable()",  # transformers'
}
"""Attributes of modules that checkpoint their blocks themselves, and the calls that end it."""


def require_one_checkpointing(model: nn.Module, name: str = "checkpoint") -> None:
    """Checks that a model does not checkpoint its blocks itself, beside a plan of what backward recomputes.

    Args:
        model: the model to plan for.
        name: the argument that asks for the plan.

    Raises:
        ValueError: it does.
    """
    for attribute, way_out in CHECKPOINTS.items():
        if checkpoints_itself(model, attribute):
            raise ValueError(
                f"{name} must be None in a {type(model).__name__} that has its own gradient checkpointing: both "
                f"would recompute the same tensors; call {way_out} first, or leave {name} out"
            )


def checkpoints_itself(model: nn.Module, attribute: str) -> bool:
    """Whether this attribute, one of ``CHECKPOINTS``, is set in some module of a model."""
    return any(getattr(module, attribute, False) is True for module in model.modules())
