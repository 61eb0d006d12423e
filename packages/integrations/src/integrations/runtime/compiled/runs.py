"""Which compiled regions run in a forward, and what the report says of them.

No Python runs in a region: it calls one operator in C++, which draws the region's stream of noise and notes the
region's number. The session reads the notes when its forward ends, and makes the records once for each sequence of
regions.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ref

from actcore import Layout
from actcore.device_streams import begin_regions
from actcore.noise import step_key
from integrations.runtime.compiled.joint_plans import JointPlan
from integrations.runtime.compiled.regions import DESCRIBED, RegionEntry, regions
from integrations.tracing.storage.records import IN_CHUNKS, Record, kept_by

if TYPE_CHECKING:
    from integrations.runtime.packing import PackedForward

_BEHIND = 1 << 32
"""How often a session's regions have begun, at the most."""

_MOST = 64
"""Sequences of regions whose records are remembered: with sizes that vary there may be one for each step."""

_here = threading.local()  # .runs: of the session that was entered last in the thread


class RegionRuns:
    """The compiled regions that run in one forward.

    Args:
        session: the forward.

    Attributes:
        known: whether the records of these regions are those of a forward before.
    """

    known = False

    def __init__(self, session: PackedForward) -> None:
        self._found = ref(session)  # which has these
        self._notes: list[int] = []
        self._places: list[tuple[PackedForward, str]] = []  # by run: the forward whose model it is, and the module
        self._begun = 0
        self._before: RegionRuns | None = None  # the regions of this forward that have run in another session

    @property
    def _session(self) -> PackedForward:
        session = self._found()
        assert session is not None
        return session

    def listen(self) -> None:
        """Notes where the region that begins now is called."""
        self._places.append((self._session, ""))  # there is one for each note, whatever comes
        self._places[-1] = self._session.owner_of_forward()

    def take_over(self, before: RegionRuns) -> None:
        """Has the regions from now on draw other streams than those of a session with the same number.

        Args:
            before: the regions of that session.
        """
        self._begun, self._before = _BEHIND, before

    def find_joint(self) -> list[JointPlan] | None:
        """The plans of the graphs that have run so far, each as often as it has run; ``None`` if torch alone has
        divided one of them."""
        self._notes += self._begin()
        notes = self._notes if self._before is None else self._before._notes + self._notes
        found = [regions.get(number) for number, _ in _read(notes) if number >= 0]
        plans = [None if region is None else region.joint for region in found]
        known = [one for one in plans if one is not None]
        return known if known and len(known) == len(plans) else None

    def count_eager(self) -> int:
        """The bytes that eager code has stored between the graphs."""
        stored = [one for one in self._session.records if not one.owner and not one.codec.startswith(IN_CHUNKS)]
        return sum(one.stored_bytes for one in stored if not one.host)

    def _begin(self) -> list[int]:
        """Has regions noted for this forward. Returns what was noted before."""
        session = self._session
        again = 0 if session.redraw is None else session.redraw(DESCRIBED)
        # Begun once more, behind a forward inside this one, it goes on with other streams.
        key = step_key(step_key(session.step, session.rank, again), self._begun)
        self._begun += 1
        listener = _LISTENER if session.specs.listens or session.outer is not None else 0
        return begin_regions(key, listener)

    def settle(self) -> None:
        """Adds the records of what the regions have saved to those of the forward, which is over."""
        session, specs, notes = self._session, self._session.specs, tuple(self._notes)
        specs.only_regions = not session.records
        known = specs.region_records.get(notes)
        if not notes or (known is not None and not self._places):
            session.records.extend(known or ())
            self.known = bool(notes)
            return
        numbers = tuple(number for number, _ in _read(notes))
        places = self._places or [(session, root) for root in specs.region_places.get(numbers, ())]
        found = list(_make_records(session, notes, places))
        for owner, record in found:
            owner.records.append(record)
        if session.outer is None:
            # Code that several modules share is compiled in the first of them: the others are known from the next
            # forward on, which listens.
            specs.listens = not places
            if places:
                if len(specs.region_records) >= _MOST:
                    specs.region_records.clear()
                specs.region_records[notes] = [record for _, record in found]
                specs.region_places[numbers] = [root for _, root in places]


def _read(notes: Sequence[int]) -> Iterator[tuple[int, Sequence[int]]]:
    """The numbers of the regions that were noted, with the sizes of each."""
    place = 0
    while place < len(notes):
        number, count = notes[place : place + 2]
        yield number, notes[place + 2 : place + 2 + count]
        place += 2 + count


def _make_records(
    session: PackedForward, notes: Sequence[int], places: Sequence[tuple[PackedForward, str]]
) -> Iterator[tuple[PackedForward, Record]]:
    for run, (number, sizes) in enumerate(_read(notes)):
        region = regions.get(number)
        if region is not None:
            owner, root = places[run] if run < len(places) else (session, region.root)
            for entry in region.met:
                yield owner, _make_record(owner, root, entry, sizes)


def runs_here() -> RegionRuns | None:
    """The regions of the forward that runs in this thread."""
    runs: RegionRuns | None = getattr(_here, "runs", None)
    return runs


def begin(runs: RegionRuns | None) -> None:
    """Has the regions that run in this thread noted for a forward, or for none."""
    before: RegionRuns | None = getattr(_here, "runs", None)
    notes = begin_regions(0) if runs is None else runs._begin()
    if before is not None:
        before._notes += notes
    _here.runs = runs


@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def _listen(region: int) -> None:
    runs: RegionRuns | None = getattr(_here, "runs", None)
    if runs is not None:
        runs.listen()


_LISTENER = ctypes.cast(_listen, ctypes.c_void_p).value or 0


def _make_record(session: PackedForward, root: str, entry: RegionEntry, values: Sequence[int]) -> Record:
    template = entry.saved
    module = ".".join(part for part in (root, template.module) if part)
    occurrence = session.occurrence((module, template.operator, template.role))
    shape, strides, nbytes = entry.sizes(values)
    saved = replace(template, shape=shape, strides=strides, module=module, occurrence=occurrence)
    if entry.owner:
        return kept_by(entry.owner, saved)
    stored = nbytes if entry.form.exact else entry.form.nbytes(Layout(tuple(shape), strides).stored_numel, saved.dtype)
    return Record(saved, entry.form.name, entry.form.why, "", nbytes, stored)
