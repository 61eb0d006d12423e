"""The record of torch's database of operators under compression, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from bench.results.entry import Entry, at, metric, nested, numbers, part
from bench.results.entry import table as named
from bench.results.record import Kind, Record
from bench.results.report import Report
from bench.results.tables import table

ROUNDED, EXACT, KEPT = "rounded", "exactly in fewer bits", "kept"
FAILS, NOTHING, NOT_RUN = "fails", "saves nothing that is autograd's alone", "not run"
_NO_RULE = "no rule"
IN_PLACE = "in place"


@numbers
class Saved:
    """How tensors of one operator and role are stored at the level."""

    operator: str = metric("", "the call that saves them", default="")
    role: str = metric("", "of the tensors in the call", default="")
    store: str = metric("", "kept, exactly in fewer bits, or rounded", default="")
    why: str = metric("", "the report's reason", default="")


@part("operator", "an operator of torch's database on that one's samples: plain, at L0, at a level, and under a plan")
class Operated(Entry):
    """One operator in one form."""

    name: str = at("below torch, with the database's variant")
    form: str = at("function, or in place")
    dtype: str = at("of the samples; empty where it has no gradient")
    samples: int = metric("", "that were compared", default=0)
    left_out: dict[str, int] = named("", "by reason, samples that were not: torch itself refuses or repeats nothing")
    planned: int = metric("", "samples whose exact plan was followed, too", default=0)
    recomputed: int = metric("", "those of them of which the plan has something recomputed", default=0)
    saved: list[Saved] = nested(Saved, "each operator, role and store that came up at the level", many=True)
    rounded: int = metric("", "samples with another gradient at the level", default=0)
    bounds: dict[str, float] = named("", "by bound on that one, the largest share of it; at most 1 where it holds")
    error: float = metric("", "the largest of the whole gradient at the level, relative", default=0.0)
    wrong: dict[str, int] = named("", "by what was wrong, samples")

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not self.failure and not self.wrong


KIND = Kind(
    "operators",
    (Operated,),
    {
        "level": "level",
        "samples": "most samples of an operator",
        "planned": "most samples that a plan is followed with",
        "seed": "seed",
    },
)


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


TITLE = "Operators: torch's own database under compression"


def parts(record: Record) -> Iterator[RenderableType]:
    """A table for each verdict, and how many there are of each."""
    found: dict[str, list[Line]] = {}
    for line in lines(record):
        found.setdefault(line.verdict, []).append(line)
    if FAILS in found:
        yield table(
            found[FAILS],
            ("fails", lambda line: line.called),
            ("what is wrong", lambda line: "; ".join(line.wrong)),
            labels=2,
        )
    yield table(
        found.get(ROUNDED, []),
        ("rounded", lambda line: line.called),
        ("saved", lambda line: line.roles(ROUNDED)),
        ("bound", lambda line: ", ".join(_bounds(line))),
        ("exactly, or kept", lambda line: line.roles(EXACT, KEPT)),
        ("of the bound", lambda line: ", ".join(f"{share:.2g}" for share in _bounds(line).values())),
        ("error", lambda line: f"{max(one.error for one in line.forms):.2g}"),
        labels=4,
    )
    yield table(
        found.get(EXACT, []),
        ("exactly in fewer bits", lambda line: line.called),
        ("saved", lambda line: line.roles(EXACT)),
        ("kept", lambda line: line.roles(KEPT)),
        labels=3,
    )
    yield _grouped("kept because", by_reason(found.get(KEPT, [])))
    nothing = {NOTHING: [line.called for line in found.get(NOTHING, [])]}
    yield _grouped("nothing to store", nothing | by_reason(found.get(NOT_RUN, [])))
    yield Text("\n".join(summary(record)), style="bold")


def _bounds(line: Line) -> dict[str, float]:
    found: dict[str, float] = {}
    for form in line.forms:
        for bound, share in form.bounds.items():
            found[bound] = max(found.get(bound, 0.0), share)
    return found


def _grouped(heading: str, names: dict[str, list[str]]) -> Table:
    rows: Sequence[tuple[str, list[str]]] = [item for item in names.items() if item[1]]
    return table(
        rows,
        (heading, lambda row: row[0]),
        ("how many", lambda row: str(len(row[1]))),
        ("operators", lambda row: ", ".join(row[1])),
        labels=3,
    )


def summary(record: Record) -> Iterator[str]:
    """How many operators there are of each verdict, and what was run."""
    counts = Counter(line.verdict for line in lines(record))
    yield "; ".join(f"{verdict}: {counts[verdict]}" for verdict in (ROUNDED, EXACT, KEPT, NOTHING, NOT_RUN, FAILS))
    entries = record.of(Operated)
    samples, planned = sum(one.samples for one in entries), sum(one.planned for one in entries)
    recomputed = sum(one.recomputed for one in entries)
    yield f"{samples:,} samples, {planned:,} with an exact plan, which recomputes in {recomputed:,}"


def notes(record: Record) -> Iterator[str]:
    """What was compared, and what was not."""
    yield (
        "Each sample: two plain steps, one at L0, two at the level with tensors of any size, and two under the plan of "
        "compress_model(error=0) with a sine behind the operator. Results are plain torch's bit for bit in all of "
        "them, gradients at L0 and under the plan; at the level they are so, too, or within a bound."
    )
    for one in record.of(Operated):
        if one.samples and one.left_out:
            reasons = "; ".join(f"{reason} ({count})" for reason, count in one.left_out.items())
            yield f"Samples left out of {one.name}, {one.form}, {one.dtype}: {reasons}."


REPORT = Report(TITLE, parts, notes)
