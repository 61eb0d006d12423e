"""``python -m bench search``: its options, and what is run."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from bench.errors import BenchError
from bench.models.subject import needs
from bench.results.record import Record
from bench.runner.child import TooLong
from bench.runner.command import Bench, Options, size
from bench.runner.run import Deadline, Run, begun, progress
from bench.suites.search.bisection import Grid, largest
from bench.suites.search.dimensions import (
    DEFAULT,
    FAMILIES,
    MEMORY_LIMITS,
    NAMES,
    QUICK,
    QUICK_LIMITS,
    Dimension,
    dimensions,
)
from bench.suites.search.entries import KIND, Search, Trial, find_search
from bench.suites.search.processes import Trials
from bench.suites.search.report import REPORT
from bench.suites.search.trial import Request
from bench.units import size_name
from bench.ways.decoders import ALL_WAYS, CONTEXT
from bench.ways.general import PLAIN

RESOLUTION, QUICK_RESOLUTION = 0.05, 0.25

COMPRESSED = (PLAIN, "L1", "L2", "L2.2", "Q-layers", "checkpoint, least", "L1 + checkpoint", "each block (torch)")
"""The ways that are searched by default; Q-layers where there are convolutions."""

QUICK_WAYS = (PLAIN, "L1", "each block (torch)")

GPU_NAMES = ("resnet50-batch", "bert-large-batch")
"""What is searched on a GPU that is lent for minutes."""

GPU_WAYS = (
    PLAIN,
    "L1",
    "L4bit-swap",
    "each block (torch)",
    "Q-layers",
    "L1.2",
    "L2",
    "checkpoint, least",
    "L1 + checkpoint",
)
"""In which, what is worth most first."""

_MORE = 4  # times the limit, to tell a crash for want of memory from others

_LIBRARIES = {  # to import
    "resnet": "timm",
    "swin": "timm",
    "bert": "transformers",
    "gcn": "torch_geometric",
    "llama": "transformers",
}

Take = Callable[[Request, float | None], Trial]


def run(asked: argparse.Namespace) -> Record:
    """Makes the trials that the file does not have, with a progress bar on stderr: each way of all that is searched, in
    their order, so that what is worth most is there when the deadline comes.

    Raises:
        BenchError: memory cannot be limited so; the file holds other results.
    """
    _require_limit(torch.device(asked.device), asked.memory_limits)
    going = begun(KIND, asked)
    known = dimensions(asked.device)
    families = dict.fromkeys(known[name].family for name in asked.names)
    going.set(memory_limits={family: asked.memory_limits[family] for family in families})
    names = going.present(asked.names, lambda name: needs(_LIBRARIES[known[name].family]))
    ways = {name: searched_ways(known[name], asked.ways or None, asked.by_default) for name in names}
    left = [(name, way) for way in dict.fromkeys(way for some in ways.values() for way in some) for name in names]
    left = [(name, way) for name, way in left if way in ways[name]]
    with Trials() as trials, progress("search", len(left)) as advance:
        searcher = Searcher(going, asked, trials.take)
        for place, (name, way) in enumerate(left):
            try:
                found = searcher.search(known[name], name, way)
            except _TooLate:
                going.skip(_unreached(left[place:], asked.within))
                break
            advance(f"{name}, {way}: {'none' if found.largest is None else found.largest}")
    return going.record


def _unreached(left: Sequence[tuple[str, str]], deadline: Deadline) -> str:
    names: dict[str, list[str]] = {}
    for name, way in left:
        names.setdefault(way, []).append(name)
    parts = [f"{way} of {', '.join(some)}" for way, some in names.items()]
    return f"{deadline} came before the end of {'; '.join(parts)}"


class Searcher:
    """Searches, and writes what is found after each trial.

    Args:
        going: the run.
        asked: its options.
        take: makes a trial, in so many seconds.
    """

    def __init__(self, going: Run, asked: argparse.Namespace, take: Take) -> None:
        self._going = going
        self._asked = asked
        self._take = take
        self._first: dict[str, int] = {}  # where a way begins, by dimension

    def search(self, dimension: Dimension, name: str, way: str) -> Search:
        """Searches a dimension in a way, and proves one that goes beyond the plain one: plain must fail there.

        A way begins where the one before it ended: that is closer than any number that is known beforehand.
        """
        found = self._largest(dimension, name, way, self._first.get(name, dimension.first))
        plain = find_search(self._going.record, name, PLAIN)
        if found.largest is not None:
            self._first[name] = found.largest
            if way != PLAIN and plain is not None and plain.ended and found.largest > (plain.largest or 0):
                self._trial(plain, found.largest)
        return found

    def _largest(self, dimension: Dimension, name: str, way: str, first: int) -> Search:
        before = find_search(self._going.record, name, way) or Search(name, way)
        # Another commit's sizes, or optimizer: its numbers are of another training.
        if before.title not in ("", dimension.title) or before.optimizer not in ("", dimension.optimizer):
            before = Search(name, way)
        if before.ended and before.resolution <= self._asked.resolution:
            return before
        search = replace(
            before,
            title=dimension.title,
            items=dimension.items,
            optimizer=dimension.optimizer,
            memory_limit=self._asked.memory_limits[dimension.family],
            resolution=self._asked.resolution,
            largest=None,  # of a search that was less precise
            capped=False,
            ended=False,
            # What crashed is tried again.
            trials=[trial for trial in before.trials if not trial.crashed],
        )
        self._going.add(search)

        def fits(value: int) -> bool:
            trial = self._trial(self._found(name, way), value)
            if trial.crashed or trial.does_not_apply:
                raise _NoAnswer
            return trial.fits

        grid = Grid(dimension.least, dimension.most, dimension.step)
        try:
            found = largest(fits, grid, first, self._asked.resolution)
        except _NoAnswer:
            return self._found(name, way)
        self._going.add(replace(self._found(name, way), largest=found.largest, capped=found.capped, ended=True))
        return self._found(name, way)

    def _trial(self, search: Search, value: int) -> Trial:
        """The trial that is known, or a new one."""
        known = search.trial(value)
        if known is not None and not known.crashed:
            return known
        device, threads, seed = self._asked.device, self._asked.threads, self._asked.seed
        limit = search.memory_limit
        request = Request(search.dimension, search.way, value, device, limit, threads, seed)
        try:
            trial = self._taken(request)
            if trial.crashed and self._taken(replace(request, memory_limit=_MORE * limit)).fits:
                # Not every library asks whether it was given the memory: some write to where it would have been.
                failure = f"{trial.failure}; with {_MORE} times the memory it finished"
                trial = replace(trial, crashed=False, failure=failure)
        except TooLong as error:
            trial = Trial(value, failure=str(error), crashed=True)
        trial = replace(trial, commit=self._going.commit)
        current = self._found(search.dimension, search.way)
        self._going.add(replace(current, trials=[*current.trials, trial]))
        return trial

    def _taken(self, request: Request) -> Trial:
        deadline: Deadline = self._asked.within
        if deadline.over:
            raise _TooLate
        try:
            return self._take(request, deadline.share)
        except TooLong as error:
            if deadline.over:
                raise _TooLate from error
            raise

    def _found(self, name: str, way: str) -> Search:
        found = find_search(self._going.record, name, way)
        assert found is not None
        return found


class _TooLate(Exception):
    """The deadline has come."""


class _NoAnswer(Exception):
    """A trial says neither that a number fits nor that it does not."""


def searched_ways(
    dimension: Dimension, ways: Sequence[str] | None, by_default: Sequence[str] = COMPRESSED
) -> list[str]:
    """Those that a dimension is searched in, plain first.

    Args:
        dimension: which.
        ways: asked for; ``None``: those by default.
        by_default: of which Q-layers are searched where there are convolutions; decoders have others.
    """
    convolutions = dimension.family == "resnet"
    by_default = CONTEXT if dimension.family == "llama" else by_default
    asked = ways if ways is not None else [way for way in by_default if convolutions or way != "Q-layers"]
    return list(dict.fromkeys([PLAIN, *asked]))


def _require_limit(device: torch.device, limits: Mapping[str, int]) -> None:
    if device.type == "cpu":
        if platform.system() != "Linux":
            raise BenchError(
                f"memory on the CPU can be limited only on Linux, got {platform.system()}; use --device cuda"
            )
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _require_memory(limits, total, "the machine's")
        return
    # What is free, a trial sees beside its own context; to ask here would make a context of this process's, too.
    _require_memory(limits, torch.cuda.get_device_properties(device).total_memory, "the GPU's")


def _require_memory(limits: Mapping[str, int], total: int, whose: str) -> None:
    """What fails for want of memory shall fail of the limit."""
    most = max(limits.values())
    if most > total:
        raise BenchError(
            f"--memory-limit must be at most {whose} memory, {size_name(total >> 20 << 20)}, got {size_name(most)}; "
            "name a smaller one"
        )


def options(add: Options) -> None:
    """Those of the command."""
    add.add(
        "--family", action="append", choices=FAMILIES, help="all searches of these models, repeatable; default: all"
    )
    add.add(
        "--search",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"search, repeatable: {', '.join(NAMES)}; default: all on CUDA, on the CPU {', '.join(DEFAULT)}",
    )
    usual = f"{'; '.join(COMPRESSED)}; of decoders {'; '.join(CONTEXT)}"
    words = f"way of training, repeatable; default: {usual}; plain is always searched"
    add.many("--way", ALL_WAYS, words, quick=QUICK_WAYS, metavar="WAY")
    add.add(
        "--memory-limit",
        type=size,
        help="memory for weights, gradients, the optimizer's state and activations; enforced by CUDA's "
        f"allocator, and on the CPU by the kernel; default: {'; '.join(map(_in_words, MEMORY_LIMITS))}",
    )
    words = f"find the largest size exactly; otherwise to {100 * RESOLUTION:g} %%"
    add.add("--precise", action="store_true", help=words)
    add.seed("of weights and inputs")
    add.quick(f"{', '.join(QUICK)}, {len(QUICK_WAYS)} ways, in less memory, to {100 * QUICK_RESOLUTION:g} %")
    words = f"{', '.join(GPU_NAMES)} in the ways {'; '.join(GPU_WAYS)}, the most useful first"
    add.add("--gpu", action="store_true", help=words)
    add.deadline("trial")
    add.files()


def settle(asked: argparse.Namespace) -> None:
    """Finds what is searched, in which memory and how precisely, and begins to count the time.

    Raises:
        BenchError: what was named does not go together.
    """
    asked.within = Deadline(asked.deadline)
    asked.names = _names(asked)
    asked.resolution = 0.0 if asked.precise else QUICK_RESOLUTION if asked.quick else RESOLUTION
    limits = (QUICK_LIMITS if asked.quick else MEMORY_LIMITS)[asked.device]
    asked.memory_limits = dict.fromkeys(limits, asked.memory_limit) if asked.memory_limit else limits
    asked.by_default = GPU_WAYS if asked.gpu else COMPRESSED


def _in_words(device: str) -> str:
    limits = MEMORY_LIMITS[device]
    found = dict.fromkeys(limits.values())
    return f"{', '.join(f'{size_name(one)} ({_of(limits, one)})' for one in found)} on {device}"


def _of(limits: Mapping[str, int], limit: int) -> str:
    return ", ".join(family for family, one in limits.items() if one == limit)


def _names(options: argparse.Namespace) -> list[str]:
    """What is searched: what was named, and otherwise all of the families that were."""
    known = dimensions(options.device)
    if options.search:
        chosen = list(dict.fromkeys(options.search))
    elif options.gpu:
        chosen = list(GPU_NAMES)
    elif options.quick:
        chosen = list(QUICK)
    elif options.family or options.device == "cuda":
        chosen = list(NAMES)
    else:
        chosen = list(DEFAULT)
    names = [name for name in chosen if known[name].family in (options.family or FAMILIES)]
    if not names:
        raise BenchError(
            f"--family {', '.join(options.family)} has no search named {', '.join(chosen)}; leave --family or --search "
            "out"
        )
    return names


WHAT = "the largest models and batches that train within a given memory"
BENCH = Bench(KIND, WHAT, options, run, REPORT, settle)
