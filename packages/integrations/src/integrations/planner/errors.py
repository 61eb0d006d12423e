"""``PlanningError``: no plan is made of a model; users see it as ``ValueError`` without frames of this package."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

_PACKAGE = str(Path(__file__).parents[1])


class PlanningError(ValueError):
    """No plan is made of a model: it cannot be captured, or its memory is unknown, or see ``BudgetError``."""


class BudgetError(PlanningError):
    """No plan keeps to the bounds that were asked for."""


def for_user(error: PlanningError) -> ValueError:
    """Return the error for users: without a traceback, with its notes and its cause, which has none of our frames.

    Raise it outside of the ``except`` block, so that users see one message and not one on top of another.
    """
    found = ValueError(*error.args)
    for note in getattr(error, "__notes__", ()):
        found.add_note(note)
    cause = error.__cause__
    if cause is not None:
        found.__cause__ = cause.with_traceback(_of_others(cause.__traceback__))
    return found


def raising_for_user(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Return a function that users call, which raises a ``PlanningError`` as ``for_user`` returns it."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        try:
            return function(*args, **kwargs)
        except PlanningError as error:
            failure = for_user(error)
        raise failure

    return call


def _of_others(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package."""
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    for entry in reversed(entries):
        if not entry.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            traceback = TracebackType(traceback, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return traceback
