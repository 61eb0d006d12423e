"""``takes_less``: plan for less memory if a forward runs out of it, so that it can run a second time."""

from __future__ import annotations

from integrations._utils.out_of_memory import explain, is_out_of_memory
from integrations._utils.warn import warn
from integrations.api.handle.handle_state import HandleState
from integrations.api.handle.running_session import RunningSession
from integrations.planner.alternatives import less_in_words
from integrations.planner.plan import Plan
from integrations.report.words import format_bytes


def takes_less(handle: HandleState, session: RunningSession, error: BaseException) -> bool:
    """Return whether a forward that raised an error is to run a second time, with a plan for a tenth less memory.

    Otherwise, if memory ran out, the error gets notes: where the bytes were, and what to change.

    Args:
        handle: the model's.
        session: of the forward, which has been left.
        error: what the forward raised.
    """
    followed = session.plan
    if is_out_of_memory(error) and followed is not None and not (why := session.take_less()):
        warn(
            f"memory ran out in the forward of {followed.model}, whose plan has an activation peak of "
            f"{format_bytes(followed.peak)}. From now on it is planned for 10 % less, and this forward runs a second "
            "time from its start: its Python code and the hooks of its submodules run twice in this step. To use "
            f"this budget from the start, pass {less_in_words(followed)}"
        )
        return True
    if is_out_of_memory(error):
        explain_shortage(handle, session, error, "" if followed is None else why)
    return False


def explain_shortage(handle: HandleState, session: RunningSession, error: BaseException, why: str) -> None:
    """Add notes to an error that memory ran out in a forward: where the bytes were, and what to change.

    Args:
        handle: the model's.
        session: of the forward.
        error: what the forward raised. Other errors are left alone.
        why: why the forward does not run a second time.
    """
    if is_out_of_memory(error) and session.plan is not None:
        error.add_note(_note(session.plan, why))
    explain(error, handle.model)


def _note(followed: Plan, why: str) -> str:
    less = less_in_words(followed)
    if less:
        change = f"Pass {less}, which is 10 % less"
    elif followed.time is not None:
        change = "Pass a larger time=, which takes less memory"
    else:
        change = "Use a smaller batch: no plan takes less memory"
    rounding = "" if followed.error or followed.compressed else ", or error=0.1 to allow rounding"
    return (
        f"The plan of this {followed.model} has an activation peak of {format_bytes(followed.peak)}, and memory ran "
        f"out in its forward, which did not run again, since {why}. {change}{rounding}."
    )
