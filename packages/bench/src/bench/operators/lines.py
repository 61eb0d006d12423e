"""What the tables have of each operator: its forms together, in one of the tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bench.operators.results import EXACT, KEPT, ROUNDED, Operated, Saved
from bench.operators.subjects import IN_PLACE
from bench.results.record import Record

FAILS, NOTHING, NOT_RUN = "fails", "saves nothing that is autograd's alone", "not run"
_NO_RULE = "no rule"


@dataclass(frozen=True)
class Line:
    """An operator.

    Attributes:
        name: of the operator.
        forms: what was found of each.
    """

    name: str
    forms: tuple[Operated, ...]

    @property
    def verdict(self) -> str:
        """Which table it is in: ``FAILS``, ``ROUNDED``, ``EXACT``, ``KEPT``, ``NOTHING`` or ``NOT_RUN``."""
        if not all(one.passed for one in self.forms):
            return FAILS
        found = next((store for store in (ROUNDED, EXACT, KEPT) if self.saved(store)), NOTHING)
        return found if any(one.samples for one in self.forms) else NOT_RUN

    @property
    def called(self) -> str:
        """The name, and whether it ran in place, too."""
        in_place = any(one.samples and one.form == IN_PLACE for one in self.forms)
        return f"{self.name}, in place too" if in_place else self.name

    def saved(self, store: str) -> list[Saved]:
        """What is stored so of real numbers, in all forms; complex ones count where there are no others."""
        forms = [form for form in self.forms if not form.dtype.startswith("complex")] or self.forms
        return list(dict.fromkeys(one for form in forms for one in form.saved if one.store == store))

    def roles(self, *stores: str) -> str:
        """The same in words, by operator; without those of which some were rounded, and others are too small for it."""
        passed_over = set() if ROUNDED in stores else {(one.operator, one.role) for one in self.saved(ROUNDED)}
        found: dict[str, list[str]] = {}
        for one in (saved for store in stores for saved in self.saved(store)):
            if (one.operator, one.role) not in passed_over:
                found.setdefault(one.operator, []).append(one.role)
        parts = (f"{', '.join(dict.fromkeys(roles))} of {operator}" for operator, roles in found.items())
        return "; ".join(parts)

    @property
    def reason(self) -> str:
        """Why what it saves is kept: the reasons of all that is, or why it was not run."""
        if self.verdict == NOT_RUN:
            left = [reason for one in self.forms for reason in (one.does_not_apply, *one.left_out) if reason]
            return left[0] if left else "the database has no samples"
        return "; ".join(sorted({_short(one.why) for one in self.saved(KEPT)}))

    @property
    def wrong(self) -> Iterator[str]:
        """What was wrong, by form."""
        for one in self.forms:
            where = f"{one.form}, {one.dtype}"
            yield from filter(None, [one.failure and f"{where}: {one.failure}"])
            yield from (f"{where}: {what} ({count} samples)" for what, count in one.wrong.items())


def lines(record: Record) -> list[Line]:
    """Of all operators, in the order of their names."""
    forms: dict[str, list[Operated]] = {}
    for one in record.of(Operated):
        forms.setdefault(one.name, []).append(one)
    return [Line(name, tuple(forms[name])) for name in sorted(forms, key=str.lower)]


def by_reason(found: Iterable[Line]) -> dict[str, list[str]]:
    """The names of operators by their reason, the most frequent first."""
    names: dict[str, list[str]] = {}
    for line in found:
        names.setdefault(line.reason, []).append(line.called)
    return dict(sorted(names.items(), key=lambda item: (-len(item[1]), item[0])))


def _short(why: str) -> str:
    """A reason without the operator that it names, which all of its group would have to have alike."""
    return _NO_RULE if why.startswith(_NO_RULE) else why
