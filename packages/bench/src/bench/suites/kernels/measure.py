"""Every case with every dtype and size, contenders in turn."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from bench.errors import BenchError, reason
from bench.results.record import Record
from bench.runner.clock import in_turn
from bench.runner.run import begun
from bench.suites.kernels import rivals
from bench.suites.kernels.cases import Case, cases
from bench.suites.kernels.contenders import Contender, yardsticks
from bench.suites.kernels.results import KIND, Measurement, Timing
from bench.units import GIB, KIB, MIB

SIZES = {"cpu": (4 * KIB, MIB, 64 * MIB, 256 * MIB), "cuda": (4 * KIB, MIB, 64 * MIB, GIB)}
QUICK_SIZES = (4 * KIB, 16 * MIB)
ROUNDS, QUICK_ROUNDS = 9, 3
# Others take turns among themselves: some need seconds a call. In that time a virtual machine's host takes freed memory
# back, and whoever is next waits for it.
_OTHERS_ROUNDS = 3

_JUDGED_FROM = {"cpu": 256 * MIB, "cuda": GIB}  # the targets are for tensors that no cache holds
# Of copy_'s bytes a second. bfloat16 has twice the elements a byte, and its arithmetic is what limits.
_CUDA_TARGETS = {"float32": 0.9, "bfloat16": 0.8, "int64": 0.9, "int32": 0.9}
_BLOCK = 4 * MIB  # bytes that a timed row of calls works on, so that the clock's own cost does not show
# A GPU takes some thousand launches ahead of it; where more are enqueued behind a spin, Python waits for its end.
_MOST_CALLS = {"cpu": 200, "cuda": 20}


def run(asked: argparse.Namespace) -> Record:
    """Measures what the options ask for, with a progress bar on stderr.

    Raises:
        BenchError: nothing fits the choice; the file holds other results.
    """
    wanted = {
        (case.name, case.bits, _name(dtype), nbytes): (case, dtype)
        for case in _chosen(asked)
        for dtype in case.dtypes
        if not asked.dtypes or _name(dtype) in asked.dtypes
        for nbytes in asked.sizes
    }
    if not wanted:
        raise BenchError("no case has the codec, bits and dtype that were chosen together; leave one of them out")
    going = begun(KIND, asked)
    libraries = {} if asked.alone else rivals.present()
    going.set(libraries=libraries)

    def skip(why: str) -> None:
        if why not in going.record.skipped:
            going.skip(why)

    def measured(blank: Measurement) -> Measurement:
        case, dtype = wanted[blank.case, blank.bits, blank.dtype, blank.nbytes]
        return _measured(blank, case, dtype, asked, libraries, skip)

    going.measure([Measurement(*place) for place in wanted], measured)
    return going.record


def _chosen(asked: argparse.Namespace) -> list[Case]:
    known = cases(asked.groups)
    for part in asked.cases:
        if not any(part.lower() in case.name.lower() for case in known):
            raise BenchError(f"no case has {part!r} in its name; there are {'; '.join(case.name for case in known)}")
    return [
        case
        for case in known
        if not asked.cases or any(part.lower() in case.name.lower() for part in asked.cases)
        if not asked.bits or case.bits in asked.bits
    ]


def _measured(
    blank: Measurement,
    case: Case,
    dtype: torch.dtype,
    asked: argparse.Namespace,
    libraries: dict[str, str],
    skip: Callable[[str], None],
) -> Measurement:
    device, nbytes = torch.device(asked.device), blank.nbytes
    generator = torch.Generator(device).manual_seed(0)
    x = case.prepare(torch.randn(nbytes // dtype.itemsize, generator=generator, device=device), dtype)
    own, *others = case.contenders
    units = [] if case.stores else list(others.pop(0).contenders(x))  # torch's own operator is a yardstick, too
    calls = min(_MOST_CALLS[device.type], max(1, _BLOCK // nbytes))

    def timings(contenders: Iterable[Contender], rounds: int, beside: int) -> list[Timing]:
        taking_turns = [*yardsticks(x), *contenders]
        seconds = in_turn([contender.action for contender in taking_turns], rounds, x.device, calls)
        return [
            Timing(contender.who, contender.what, contender.moved_bytes, times, beside)
            for contender, times in zip(taking_turns, seconds, strict=True)
        ]

    found = timings([*units, *own.contenders(x)], asked.rounds, 0)
    if not asked.alone:
        slow = [contender for other in others for contender in other.contenders(x)]
        slow += _rivals(case, x, libraries, skip)
        if slow:
            found += timings([*units, *slow], min(asked.rounds, _OTHERS_ROUNDS), 1)
    return replace(
        blank,
        nbytes=x.nbytes,
        targets=_targets(case, blank.dtype, nbytes, device.type),
        least_achievable=_least_achievable(case, blank.dtype, nbytes, device.type),
        timings=found,
    )


def _rivals(case: Case, x: torch.Tensor, libraries: dict[str, str], skip: Callable[[str], None]) -> list[Contender]:
    found: list[Contender] = []
    for library, make in case.rivals:
        if libraries[library].startswith("not "):
            continue
        beside = f"{library} beside {case.name}, {_name(x.dtype)}"
        try:
            contenders = list(make().contenders(x))
            for contender in contenders:
                contender.action()
        except Exception as error:  # in whatever way it does not work here: the others are measured all the same
            skip(f"{beside}: {reason(error)}")
            continue
        if not contenders:
            skip(f"{beside}: does not take this dtype")
        found += contenders
    return found


def _targets(case: Case, dtype: str, nbytes: int, device: str) -> dict[str, float]:
    if device != "cpu" or nbytes < _JUDGED_FROM[device]:
        return {}
    return {what: limit for what, name, limit in case.targets if name == dtype}


def _least_achievable(case: Case, dtype: str, nbytes: int, device: str) -> float | None:
    judged = device == "cuda" and nbytes >= _JUDGED_FROM[device] and case.stores
    return _CUDA_TARGETS.get(dtype) if judged else None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
