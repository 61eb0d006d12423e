"""The errors of captures."""

from __future__ import annotations


class NoGradient(ValueError):
    """No output requires a gradient, and autograd saves nothing for a backward."""


class NotCaptured(ValueError):
    """A step cannot be captured. The message says why, and what to do."""


class NoPartCaptured(NotCaptured):
    """Neither can a step of any part of the model."""


class Escaped(NotCaptured):
    """A trial's forward reads a tensor of the real step's graph. The trial's backward would run and free that graph."""
