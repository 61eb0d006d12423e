"""``python -m bench kernels``: its options, and what is run."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from bench.errors import BenchError, reason
from bench.results.record import Record
from bench.runner.clock import THREADS, in_turn
from bench.runner.command import Bench, Options, positive, size
from bench.runner.run import begun
from bench.suites.kernels import estimate
from bench.suites.kernels.cases import FLOATS, GROUP, INTEGERS, Case, cases
from bench.suites.kernels.contenders import Contender, present, yardsticks
from bench.suites.kernels.entries import KIND, Measurement, Timing
from bench.suites.kernels.report import REPORT
from bench.units import GIB, KIB, MIB, size_name

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


def run_cases(asked: argparse.Namespace) -> Record:
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
        raise BenchError("no case has this combination of codec, bits and dtype; leave one of them out")
    going = begun(KIND, asked)
    libraries = {} if asked.alone else present()
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
            raise BenchError(f"no case has {part!r} in its name; choose from {'; '.join(case.name for case in known)}")
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


_OF_A_RUN = ("case", "bits", "group", "dtype", "size", "rounds", "alone", "quick")


def options(add: Options) -> None:
    """Those of the command."""
    add.add("--case", action="append", metavar="TEXT", help="part of a case's name, repeatable; default: all")
    add.add("--bits", action="append", type=int, choices=range(1, 9), help="bit width, repeatable; default: all")
    words = f"elements of a group, repeatable; default: {GROUP}"
    add.add("--group", action="append", type=_group, metavar="ELEMENTS", help=words)
    names = [str(dtype).removeprefix("torch.") for dtype in (*FLOATS, *INTEGERS)]
    add.add("--dtype", action="append", choices=names, help="dtype, repeatable; default: all that a case supports")
    words = "; ".join(f"{device}: {', '.join(map(size_name, sizes))}" for device, sizes in SIZES.items())
    words = f"size of the tensor, such as 4KiB or 256MiB, repeatable; default: {words}"
    add.add("--size", action="append", type=size, help=words)
    add.add("--rounds", type=positive, help=f"number of timed rounds of each case; default: {ROUNDS}")
    words = "compare with copies only, without plain PyTorch and other libraries"
    add.add("--alone", action="store_true", help=words)
    add.quick(f"{' and '.join(map(size_name, QUICK_SIZES))}, {QUICK_ROUNDS} rounds")
    words = "run nothing; count the instructions of the CUDA kernels (needs nvcc and cuobjdump)"
    add.add("--estimate", action="store_true", help=words)
    add.add("--against", metavar="COMMIT", default="", help="with --estimate: compare with the kernels of this commit")
    add.files(threads=THREADS)


def _group(text: str) -> int:
    """The size of a group, as an argument's type."""
    value = positive(text, least=32)
    if value % 32:
        raise argparse.ArgumentTypeError(f"must be a multiple of 32, got {text!r}")
    return value


def settle(asked: argparse.Namespace) -> None:
    """Finds what a run has.

    Raises:
        BenchError: what was asked for does not go together.
    """
    if asked.against and not asked.estimate:
        raise BenchError("--against needs --estimate; add --estimate, or leave --against out")
    if asked.estimate:
        given = [f"--{name}" for name in _OF_A_RUN if getattr(asked, name)]
        if given:
            raise BenchError(f"--estimate runs nothing and cannot use {', '.join(given)}; leave these options out")
        return
    sizes = asked.size or (QUICK_SIZES if asked.quick else SIZES[asked.device])
    asked.sizes, asked.cases, asked.dtypes = sorted(set(sizes)), asked.case or (), asked.dtype or ()
    asked.groups = asked.group or (GROUP,)
    asked.rounds = asked.rounds or (QUICK_ROUNDS if asked.quick else ROUNDS)


def run(asked: argparse.Namespace) -> Record:
    """Measures, or counts instructions."""
    return estimate.run(asked.against, asked.threads) if asked.estimate else run_cases(asked)


WHAT = "time codecs and operators beside copies, plain PyTorch and others"
ESTIMATE = ((estimate.KIND, estimate.REPORT),)
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle, others=ESTIMATE)
