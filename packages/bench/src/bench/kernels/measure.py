"""Every case with every dtype and size, contenders in turn."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bench import records
from bench.errors import BenchError
from bench.kernels import rivals
from bench.kernels.cases import GROUP, Case, cases
from bench.kernels.clock import in_turn, threads
from bench.kernels.contenders import Contender, yardsticks
from bench.kernels.results import KernelResults, Measurement, Timing
from bench.machine import Machine
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
_PACKAGES = ("torch", "actcore")


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        device: to run on.
        threads: of torch's operators.
        sizes: bytes of the tensors; multiples of 4096.
        rounds: that count, of each case.
        names: parts of cases' names, or none for all cases.
        bits: widths, or none for all.
        groups: sizes of the groups of ``GroupAffine`` and ``Float8``.
        dtypes: names without ``torch.``, or none for all.
        with_others: whether plain PyTorch and other libraries run beside.
        json: the file that results are written to after each measurement.
    """

    device: torch.device
    threads: int
    sizes: Sequence[int]
    rounds: int
    names: Sequence[str] = ()
    bits: Sequence[int] = ()
    groups: Sequence[int] = (GROUP,)
    dtypes: Sequence[str] = ()
    with_others: bool = True
    json: Path | None = None


def run(options: Options) -> KernelResults:
    """Measures what ``options`` ask for, with a progress bar on stderr.

    Raises:
        BenchError: there is no such device, or nothing fits the choice.
    """
    if options.device.type == "cuda" and not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    wanted = [
        (case, dtype, nbytes)
        for case in _chosen(options)
        for dtype in case.dtypes
        if not options.dtypes or _name(dtype) in options.dtypes
        for nbytes in options.sizes
    ]
    if not wanted:
        raise BenchError("no case has the codec, bits and dtype that were chosen together; leave one of them out")
    libraries = rivals.present() if options.with_others else {}
    skipped: list[str] = []
    measurements: list[Measurement] = []
    start = time.perf_counter()
    machine = Machine.here(options.device, options.threads, _PACKAGES)

    def found() -> KernelResults:
        return KernelResults(
            machine=machine,
            device=options.device.type,
            rounds=options.rounds,
            libraries=libraries,
            skipped=list(dict.fromkeys(skipped)),
            measurements=measurements,
            seconds=time.perf_counter() - start,
        )

    with (
        threads(options.threads),
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        ) as progress,
    ):
        task = progress.add_task("kernels", total=len(wanted))
        for case, dtype, nbytes in wanted:
            progress.update(task, description=f"{case.name}, {_name(dtype)}, {size_name(nbytes)}")
            try:
                measurements.append(_measure(case, dtype, nbytes, options, libraries, skipped))
            except Exception as error:  # whatever one case fails with, others are to be measured
                skipped.append(f"{case.name}, {_name(dtype)}, {size_name(nbytes)}: {_reason(error)}")
            if options.json is not None:  # what ends the process later costs nothing of this
                records.save(found(), options.json)
            progress.advance(task)
    return found()


def _chosen(options: Options) -> list[Case]:
    known = cases(options.groups)
    for part in options.names:
        if not any(part.lower() in case.name.lower() for case in known):
            raise BenchError(f"no case has {part!r} in its name; there are {'; '.join(case.name for case in known)}")
    return [
        case
        for case in known
        if not options.names or any(part.lower() in case.name.lower() for part in options.names)
        if not options.bits or case.bits in options.bits
    ]


def _measure(
    case: Case, dtype: torch.dtype, nbytes: int, options: Options, libraries: dict[str, str], skipped: list[str]
) -> Measurement:
    generator = torch.Generator(options.device).manual_seed(0)
    numel = nbytes // dtype.itemsize
    x = case.prepare(torch.randn(numel, generator=generator, device=options.device), dtype)
    own, *others = case.contenders
    units = [] if case.stores else list(others.pop(0).contenders(x))  # torch's own operator is a yardstick, too
    calls = min(_MOST_CALLS[options.device.type], max(1, _BLOCK // nbytes))

    def timings(contenders: Iterable[Contender], rounds: int, beside: int) -> list[Timing]:
        taking_turns = [*yardsticks(x), *contenders]
        seconds = in_turn([contender.action for contender in taking_turns], rounds, x.device, calls)
        return [
            Timing(contender.who, contender.what, contender.moved_bytes, times, beside)
            for contender, times in zip(taking_turns, seconds, strict=True)
        ]

    found = timings([*units, *own.contenders(x)], options.rounds, 0)
    if options.with_others:
        slow = [contender for other in others for contender in other.contenders(x)]
        slow += _rivals(case, x, libraries, skipped)
        if slow:
            found += timings([*units, *slow], min(options.rounds, _OTHERS_ROUNDS), 1)
    return Measurement(
        case=case.name,
        bits=case.bits,
        dtype=_name(dtype),
        nbytes=x.nbytes,
        targets=_targets(case, _name(dtype), nbytes, options.device.type),
        least_achievable=_least_achievable(case, _name(dtype), nbytes, options.device.type),
        timings=found,
    )


def _rivals(case: Case, x: torch.Tensor, libraries: dict[str, str], skipped: list[str]) -> list[Contender]:
    found: list[Contender] = []
    for library, make in case.rivals:
        if libraries[library].startswith("not "):
            continue
        try:
            contenders = list(make().contenders(x))
            for contender in contenders:
                contender.action()
        except Exception as error:  # in whatever way it does not work here: the others are measured all the same
            skipped.append(f"{library} beside {case.name}, {_name(x.dtype)}: {_reason(error)}")
            continue
        if not contenders:
            skipped.append(f"{library} beside {case.name}, {_name(x.dtype)}: does not take this dtype")
        found += contenders
    return found


def _targets(case: Case, dtype: str, nbytes: int, device: str) -> dict[str, float]:
    if device != "cpu" or nbytes < _JUDGED_FROM[device]:
        return {}
    return {what: limit for what, name, limit in case.targets if name == dtype}


def _least_achievable(case: Case, dtype: str, nbytes: int, device: str) -> float | None:
    judged = device == "cuda" and nbytes >= _JUDGED_FROM[device] and case.stores
    return _CUDA_TARGETS.get(dtype) if judged else None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
