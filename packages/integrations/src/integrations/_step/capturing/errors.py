"""The errors of captures."""

from __future__ import annotations


class NoGradient(ValueError):
    """No output requires a gradient, and autograd keeps nothing for a backward."""


class NotCaptured(ValueError):
    """A step that no capture describes. The message says why, and what to do."""


class Escaped(NotCaptured):
    """A forward under trial reads a tensor of the real step's graph, which a trial's backward would run and free."""
