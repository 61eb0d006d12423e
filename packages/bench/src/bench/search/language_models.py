"""Llamas of transformers, with random weights, on any number of random tokens."""

from __future__ import annotations

from bench.llm.models import Sizes, subject
from bench.systems.subject import Subject


def llama(sizes: Sizes, tokens: int) -> Subject:
    """The model in 16 bits, and one row of so many tokens.

    Raises:
        MissingLibrary: transformers is not installed.
    """
    return subject("llama", tokens, sizes)


def tiny() -> Subject:
    """One in which each way has something to do."""
    return llama(Sizes(64, 16, 1, 2, 32), 8)
