"""The stage ``build``: versions, the build, its self-check, and what the device can do at most."""

from __future__ import annotations

import re
from collections.abc import Iterator

from bench.gpu.cases import Case, Done
from bench.gpu.place import Place
from bench.gpu.results import FAILED, OK, Row

# As compilers, linkers, ninja, CMake, pip and Python begin what went wrong; "strerror_r - found" is none.
_ERROR = re.compile(r"\b(?:error|\w*Error|ERROR):|\bCMake Error ")


def cases(place: Place) -> list[Case]:
    """In the order in which each needs what is before it."""
    building = place.python("bench.gpu.building")
    kept = "a dry run takes the actcore that is installed"
    ceilings = place.python("bench.gpu.ceilings", "--device", place.device, *["--dry"] * place.dry)
    # A GPU's dry run builds, too, since there is no other actcore there.
    return [
        Case("facts", place.python("bench.gpu.facts"), 60, read=_facts),
        Case("build", building, 330, ["builds"], read=_built, missing=kept if place.device == "cpu" else ""),
        Case("self-check", place.python("actcore"), 60, ["reference"], read=lambda done: [_checked(done, place)]),
        Case("ceilings", ceilings, 60, read=_ceilings),
    ]


def _facts(done: Done) -> Iterator[Row]:
    for name, what in done.answer.items():
        yield Row(name, values={"what": what})


def _built(done: Done) -> Iterator[Row]:
    claims = ["builds"]
    if done.reason:
        errors = [] if done.over else [line for line in done.output.splitlines() if _ERROR.search(line)]
        yield Row("build", FAILED, errors[0][:300] if errors else done.reason, round(done.seconds, 1), claims=claims)
        return
    answer = done.answer
    yield Row("build", OK, "", answer["seconds"], {"what": f"{answer['way']}, {answer['architectures']}"}, claims)


def _checked(done: Done, place: Place) -> Row:
    """Whether every operator gives the reference's bits on the device that was asked for."""
    agreeing = [line.split()[:2] for line in done.output.splitlines() if line.endswith(" ok")]
    wrong = [line.split()[1] for line in done.output.splitlines() if line.endswith("DISAGREES WITH THE REFERENCE")]
    there = sum(device == place.device for device, _ in agreeing)
    values: dict[str, float | str] = {"what": f"{there} operators on {place.device} agree with the reference"}
    reason = done.reason
    if wrong:
        reason = f"{', '.join(wrong)} disagree with the reference"
    elif not reason and not there:
        missing = [line for line in done.output.splitlines() if line.startswith("cuda_missing")]
        reason = f"no operator was checked on {place.device}: {(missing or ['nothing says why'])[0]}"
    return Row("self-check", FAILED if reason else OK, reason, round(done.seconds, 1), values, ["reference"])


def _ceilings(done: Done) -> Iterator[Row]:
    for name, figures in done.answer.items():
        yield Row(name, values={"what": ", ".join(f"{figure:,.1f} {unit}" for unit, figure in figures.items())})
