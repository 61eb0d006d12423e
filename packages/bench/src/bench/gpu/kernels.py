"""The stage ``kernels``: ``python -m bench kernels`` of tensors that no cache holds, as fractions of a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, NOT_REACHED, OK, Row

if TYPE_CHECKING:
    from bench.results.record import Record

_GROUPS = (256, 192)  # the default; and the inputs of layers 384, 1152 or 1600 wide
_DTYPES = (("float32", "int64", "int32"), ("bfloat16",))
_SECONDS = 170  # of a case; the other has what is left of the stage's time
# In bfloat16 the estimate of docs/benchmarks/kernels.md has these at 0.8 of a copy and more, 1 and 2 bits at 0.68 and
# 0.72, and Float8 at 0.55; with float32 Float8 is at 0.94, of which groups of 192 leave 30 of 32 threads: 0.88.
_JUDGED = ("GroupAffine, 8 bits", "GroupAffine, 4 bits")


def cases(place: Place) -> list[Case]:
    """One for each dtype, so that an error of one leaves the other; in a dry run one for both, which is quicker."""
    dtypes = [[dtype for some in _DTYPES for dtype in some]] if place.dry else _DTYPES
    return [_case(place, some) for some in dtypes]


def _case(place: Place, dtypes: Sequence[str]) -> Case:
    file = place.out / f"kernels-{'dry' if place.dry else place.device}-{dtypes[0]}.json"
    file.unlink(missing_ok=True)
    size, rounds = ("1MiB", 1) if place.dry else ("1GiB", 9)
    arguments = ["--device", place.device, "--alone", "--size", size, "--rounds", str(rounds)]
    arguments += [part for dtype in dtypes for part in ("--dtype", dtype)]
    arguments += [part for group in _GROUPS for part in ("--group", str(group))]
    command = place.python("bench", "kernels", *arguments, "--json", file)

    def read(done: Done) -> Iterator[Row]:
        place.make_importable()
        from bench.cli import records  # imports actcore, which the stage `build` makes

        if not file.exists():
            raise FileNotFoundError(f"the command wrote no {file.name}")
        yield from rows(records.load(file))
        if done.reason:  # what it had not come to, of whatever claim it is
            outcome = NOT_REACHED if done.over else FAILED
            yield Row(f"the rest, {', '.join(dtypes)}", outcome, done.reason, claims=claims)

    claims = list(dict.fromkeys([*(_claim(_JUDGED[0], dtype) for dtype in dtypes), "groups", "others"]))
    return Case(f"all codecs, {', '.join(dtypes)}", command, _SECONDS, claims, read=read)


def rows(record: Record) -> Iterator[Row]:
    """A row for each codec or operator and dtype."""
    from bench.suites.kernels.cases import cases as known
    from bench.suites.kernels.contenders import ACTCORE, COMPRESS, DECOMPRESS, TRAIN
    from bench.suites.kernels.results import Measurement

    operators = {case.name for case in known() if not case.stores}
    for entry in record.of(Measurement):
        if entry.failure:
            claims = [] if entry.case in operators else [_claim(entry.case, entry.dtype)]
            yield Row(f"{entry.case}, {entry.dtype}", FAILED, entry.failure, claims=claims)
            continue
        timings = {what: timing for what in (COMPRESS, DECOMPRESS, TRAIN) if (timing := entry.get(ACTCORE, what))}
        values: dict[str, float | str] = {what: round(entry.achievable(timing), 3) for what, timing in timings.items()}
        values["GB/s"] = ", ".join(_rate(timing.logical_io_gbps) for timing in timings.values())
        missed = [what for what, timing in timings.items() if entry.reached(timing) is False]
        goal = f"{' and '.join(missed)}: {entry.least_achievable} of a copy is the goal"
        claims = [_claim(entry.case, entry.dtype)] if entry.least_achievable else []  # operators have no goal
        yield Row(f"{entry.case}, {entry.dtype}", MISSED if missed else OK, goal if missed else "", 0, values, claims)


def _claim(case: str, dtype: str) -> str:
    """What a codec speaks for."""
    if dtype == "bfloat16" and not case.startswith(_JUDGED):
        return "others"
    if "groups of" in case:
        return "others" if case.startswith("Float8") else "groups"
    return "integers" if dtype in ("int64", "int32") else dtype


def _rate(figure: float) -> str:
    """Of three significant digits, or of all before the point: a dry run's are below 1."""
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"
