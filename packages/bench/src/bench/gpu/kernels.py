"""The stage ``kernels``: ``python -m bench kernels`` of tensors that no cache holds, as fractions of a copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, MISSED, OK, Row

if TYPE_CHECKING:
    from bench.kernels.results import KernelResults

_GROUPS = (256, 192)  # the default; and the inputs of layers 384, 1152 or 1600 wide
_DTYPES = ("float32", "bfloat16")


def cases(place: Place) -> list[Case]:
    """One for each dtype, so that an error of one leaves the other; in a dry run one for both, which is quicker."""
    return [_case(place, _DTYPES)] if place.dry else [_case(place, (dtype,)) for dtype in _DTYPES]


def _case(place: Place, dtypes: Sequence[str]) -> Case:
    file = place.out / f"gpu-kernels-{'-'.join(dtypes)}.json"
    file.unlink(missing_ok=True)
    size, rounds = ("1MiB", 1) if place.dry else ("1GiB", 9)
    arguments = ["--device", place.device, "--alone", "--size", size, "--rounds", str(rounds)]
    arguments += [part for dtype in dtypes for part in ("--dtype", dtype)]
    arguments += [part for group in _GROUPS for part in ("--group", str(group))]
    command = place.python("bench", "kernels", *arguments, "--json", file)

    def read(done: Done) -> Iterator[Row]:
        place.make_importable()
        from bench import records  # imports actcore, which the stage `build` makes
        from bench.kernels.results import KernelResults

        if not file.exists():
            raise FileNotFoundError(f"the command wrote no {file.name}")
        results = records.load(file)
        file.unlink()
        assert isinstance(results, KernelResults)
        yield from rows(results)

    return Case(f"all codecs, {' and '.join(dtypes)}", command, 110, dtypes, read=read)


def rows(results: KernelResults) -> Iterator[Row]:
    """A row for each codec or operator and dtype."""
    from bench.kernels.contenders import ACTCORE, COMPRESS, DECOMPRESS, TRAIN

    for entry in results.measurements:
        timings = {what: timing for what in (COMPRESS, DECOMPRESS, TRAIN) if (timing := entry.get(ACTCORE, what))}
        values: dict[str, float | str] = {what: round(entry.achievable(timing), 3) for what, timing in timings.items()}
        values["GB/s"] = ", ".join(_rate(timing.logical_io_gbps) for timing in timings.values())
        missed = [what for what, timing in timings.items() if entry.reached(timing) is False]
        goal = f"{' and '.join(missed)}: {entry.least_achievable} of a copy is the goal"
        # Groups of another size are a claim of their own; operators have no goal.
        claims = ["groups" if "groups of" in entry.case else entry.dtype] if entry.least_achievable else []
        yield Row(f"{entry.case}, {entry.dtype}", MISSED if missed else OK, goal if missed else "", 0, values, claims)
    for line in results.skipped:
        name, _, reason = line.partition(": ")
        claims = [dtype for dtype in _DTYPES if dtype in name]
        yield Row(name, FAILED, reason, claims=claims)


def _rate(figure: float) -> str:
    """Of three significant digits, or of all before the point: a dry run's are below 1."""
    return f"{figure:.0f}" if figure >= 100 else f"{figure:.3g}"
