"""What is said of an error that memory has run out, by whoever knows more than it says."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

_WORDS = ("not enough memory", "can't allocate memory", "cannot allocate memory", "out of memory")

Explainer = Callable[[nn.Module], str]
"""Returns a model's memory in words."""

_explainers: list[Explainer] = []
_NOTED = "Memory ran out"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocator raised the error, of CUDA or of the CPU."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in _WORDS)


def add_explainer(explainer: Explainer) -> None:
    """Has this function explain errors from now on."""
    _explainers.append(explainer)


def explain(error: BaseException, model: nn.Module) -> None:
    """Adds to an error that memory has run out where a model's bytes are. Other errors are left alone.

    Args:
        error: the error.
        model: whose forward raised it.
    """
    for explainer in _explainers:
        add_note(error, partial(explainer, model))


def add_note(error: BaseException, words: Callable[[], str]) -> None:
    """Adds a note to an error that memory has run out, in the place of one that it may have. Other errors are left
    alone, and ``words`` is not called for them."""
    if not is_out_of_memory(error):
        return
    others = [note for note in getattr(error, "__notes__", ()) if not note.startswith(_NOTED)]
    error.__notes__ = others
    error.add_note(f"{_NOTED}. {words()}")
