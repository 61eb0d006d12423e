"""``BenchError``: what the command line prints as one line."""

from __future__ import annotations

import textwrap


class BenchError(Exception):
    """Something that the user can mend. Its message is one line: what is wrong, what was found, what to do."""


class DoesNotApply(Exception):
    """A way that a subject has no use for; the message says why."""


class MissingLibrary(BenchError):
    """A network's library is not installed."""


def reason(error: Exception) -> str:
    """An error in one line, for results: what one measurement failed with, others are to be made."""
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
