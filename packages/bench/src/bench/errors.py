"""``BenchError``: what the command line prints as one line."""

from __future__ import annotations


class BenchError(Exception):
    """Something that the user can mend. Its message is one line: what is wrong, what was found, what to do."""


class MissingLibrary(BenchError):
    """A network's library is not installed."""
