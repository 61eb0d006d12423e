"""``RunningSession``: a session of a handle, while it runs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from actcore import current_rank
from integrations.adaptive.finite import Look
from integrations.adaptive.plan import Plan
from integrations.adaptive.planned import PlannedBits
from integrations.adaptive.probe import Probe
from integrations.outcome import judge
from integrations.saved.compiled import may_be_replayed
from integrations.saved.policy import FixedBits
from integrations.saved.session import Session

if TYPE_CHECKING:
    from integrations.compression import Compression


class RunningSession:
    """Registers a session with its handle while it runs, and keeps its records after."""

    def __init__(
        self, handle: Compression, step: int, plan: Plan | None, probe: Probe | None, look: Look | None
    ) -> None:
        self._handle = handle
        fixed = FixedBits(handle.level)
        handle._recipes = recipes = handle._recipes.under(fixed if plan is None else PlannedBits(fixed, plan))
        self._session = Session(
            handle.model,
            handle._paths,
            recipes,
            handle.level,
            step,
            current_rank(),
            observer=probe,
            redraw=handle.redraw,
            look=None if look is None else look.at,
        )

    def __enter__(self) -> Session:
        self._before = self._handle._records
        self._session.__enter__()
        self._handle._sessions[threading.get_ident()] = self._session
        self._handle._records = self._session.records
        return self._session

    def __exit__(self, *error: Any) -> None:
        self._handle._sessions.pop(threading.get_ident(), None)
        self._session.__exit__(*error)
        if not self._session.records and may_be_replayed():
            self._handle._records = self._before  # of the last forward that told
        elif error[0] is None:
            judge(self._handle, self._session.records)
