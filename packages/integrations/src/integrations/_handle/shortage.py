"""``takes_less``: plan for less memory if a forward runs out of it, so that it can run a second time."""

from __future__ import annotations

from integrations._common.out_of_memory import explain, is_out_of_memory
from integrations._common.warn import warn
from integrations._handle.handle_state import HandleState
from integrations._handle.running import RunningSession
from integrations._planning.less import less_in_words
from integrations._planning.plan import Plan
from integrations.report.words import format_bytes


def takes_less(handle: HandleState, session: RunningSession, error: BaseException) -> bool:
    """Return whether a forward that raised an error is to run a second time, with a plan for a tenth less memory.

    Otherwise, if memory ran out, the error gets notes: where the bytes were, and what to change.

    Args:
        handle: the model's.
        session: of the forward, which has been left.
        error: what the forward raised.
    """
    if not is_out_of_memory(error):
        return False
    followed = session.plan
    if followed is not None:
        before = followed.peak, less_in_words(followed)
        why = session.take_less()
        if not why:
            _tell(followed, *before)
            return True
        error.add_note(_note(followed, why))
    explain(error, handle.model)
    return False


def _tell(followed: Plan, peak: int, less: str) -> None:
    warn(
        f"memory ran out in the forward of {followed.model}, whose plan has an activation peak of {format_bytes(peak)}. "
        f"From now on it is planned for 10 % less, and this forward runs a second time from its start: its Python code "
        f"and the hooks of its submodules run twice in this step. To plan so from the start, pass {less}"
    )


def _note(followed: Plan, why: str) -> str:
    less = less_in_words(followed)
    change = f"Pass {less}, which is 10 % less" if less else "Use a smaller batch: the plan has the least memory already"
    rounding = "" if followed.error or followed.compressed else ", or error=0.1 to allow rounding"
    return (
        f"The plan of this {followed.model} has an activation peak of {format_bytes(followed.peak)}, and memory ran out "
        f"in its forward, which did not run again, since {why}. {change}{rounding}."
    )
