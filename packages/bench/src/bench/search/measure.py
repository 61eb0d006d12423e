"""A run of ``python -m bench search``: search by search, each trial written as it is made."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from bench import records
from bench.deadline import Deadline
from bench.errors import BenchError, MissingLibrary
from bench.machine import Machine, installed
from bench.networks import needs
from bench.progress import progress
from bench.search.bisection import Grid, largest
from bench.search.dimensions import NAMES, Dimension, dimensions
from bench.search.processes import Trials
from bench.search.results import Search, SearchResults, Trial
from bench.search.trial import Request
from bench.systems.ways import PLAIN, WAYS
from bench.taken_up import commit_of, taken_up
from bench.units import size_name
from bench.workers import TooLong

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

_PACKAGES = ("torch", "actcore", "actcore-integrations")
_LIBRARIES = {"resnet": "timm", "swin": "timm", "bert": "transformers", "gcn": "torch_geometric"}  # to import
_DISTRIBUTIONS = ("timm", "transformers", "torch-geometric")

Take = Callable[[Request, float | None], Trial]


@dataclass(frozen=True)
class Options:
    """What to run.

    Attributes:
        names: of ``dimensions.NAMES``.
        ways: of ``systems.ways.WAYS``; ``None``: those by default. Plain is always among them.
        by_default: those, in the order in which they are searched.
        deadline: by which the run ends.
        memory_limits: bytes that training may take, by family.
        resolution: by how much, relatively, a largest number may be missed; 0: not at all.
        device: of models and batches.
        threads: of torch's operators.
        seed: of weights and inputs.
        json: the file that results are written to, and taken up from.
    """

    names: Sequence[str]
    ways: Sequence[str] | None
    memory_limits: Mapping[str, int]
    resolution: float
    device: torch.device
    threads: int
    seed: int
    json: Path | None
    by_default: Sequence[str] = COMPRESSED
    deadline: Deadline = field(default_factory=Deadline)


def run(options: Options) -> SearchResults:
    """Makes the trials that the file does not have, with a progress bar on stderr: each way of all that is searched, in
    the order of ``Options``, so that what is worth most is there when the deadline comes.

    Raises:
        BenchError: there is no such device, or its memory cannot be limited so; the file holds other results.
    """
    _require_limit(options)
    distributions = (*_PACKAGES, *filter(installed, _DISTRIBUTIONS))
    machine = Machine.here(options.device, options.threads, distributions)
    blank = SearchResults(machine, options.device.type, dict(options.memory_limits), options.seed)
    named = "machine, device, memory limit, seed, number of threads or version of a library"
    results = taken_up(blank, options.json, _settings, named)
    known = dimensions(options.device.type)
    missing = {name: why for name in options.names if (why := _missing(known[name].family))}
    results = replace(results, skipped=[f"{name}: {why}" for name, why in missing.items()])
    names = [name for name in options.names if name not in missing]
    ways = {name: ways_of(known[name], options.ways, options.by_default) for name in names}
    left = [(name, way) for way in dict.fromkeys(way for some in ways.values() for way in some) for name in names]
    left = [(name, way) for name, way in left if way in ways[name]]
    with Trials() as trials, progress("search", len(left)) as advance:
        searcher = Searcher(results, options, trials.take)
        for place, (name, way) in enumerate(left):
            try:
                found = searcher.search(known[name], name, way)
            except _TooLate:
                searcher.skip(_unreached(left[place:], options.deadline))
                break
            advance(f"{name}, {way}: {'none' if found.largest is None else found.largest}")
    return searcher.results


def _unreached(left: Sequence[tuple[str, str]], deadline: Deadline) -> str:
    names: dict[str, list[str]] = {}
    for name, way in left:
        names.setdefault(way, []).append(name)
    parts = [f"{way} of {', '.join(some)}" for way, some in names.items()]
    return f"{deadline} came before the end of {'; '.join(parts)}"


class Searcher:
    """Searches, and holds what is found; ``results`` are written after each trial.

    Args:
        results: taken up so far.
        options: of the run.
        take: makes a trial, in so many seconds.
    """

    def __init__(self, results: SearchResults, options: Options, take: Take) -> None:
        self.results = results
        self._options = options
        self._take = take
        self._first: dict[str, int] = {}  # where a way begins, by dimension

    def search(self, dimension: Dimension, name: str, way: str) -> Search:
        """Searches a dimension in a way, and proves one that goes beyond the plain one: plain must fail there.

        A way begins where the one before it ended: that is closer than any number that is known beforehand.
        """
        found = self._largest(dimension, name, way, self._first.get(name, dimension.first))
        plain = self.results.search(name, PLAIN)
        if found.largest is not None:
            self._first[name] = found.largest
            if way != PLAIN and plain is not None and plain.ended and found.largest > (plain.largest or 0):
                self._trial(plain, found.largest)
        return found

    def skip(self, reason: str) -> None:
        """Says that something was left out."""
        self.results = replace(self.results, skipped=[*self.results.skipped, reason])

    def _largest(self, dimension: Dimension, name: str, way: str, first: int) -> Search:
        before = self.results.search(name, way) or Search(name, way)
        # Another commit's sizes, or optimizer: its numbers are of another training.
        if before.title not in ("", dimension.title) or before.optimizer not in ("", dimension.optimizer):
            before = Search(name, way)
        if before.ended and before.resolution <= self._options.resolution:
            return before
        search = replace(
            before,
            title=dimension.title,
            items=dimension.items,
            optimizer=dimension.optimizer,
            memory_limit=self._options.memory_limits[dimension.family],
            resolution=self._options.resolution,
            largest=None,  # of a search that was less precise
            capped=False,
            ended=False,
            # What crashed is tried again.
            trials=[trial for trial in before.trials if not trial.crashed],
        )
        self._keep(search)

        def fits(value: int) -> bool:
            current = self.results.search(name, way)
            assert current is not None
            trial = self._trial(current, value)
            if trial.crashed or trial.does_not_apply:
                raise _NoAnswer
            return trial.fits

        grid = Grid(dimension.least, dimension.most, dimension.step)
        try:
            found = largest(fits, grid, first, self._options.resolution)
        except _NoAnswer:
            return self._found(name, way)
        self._keep(replace(self._found(name, way), largest=found.largest, capped=found.capped, ended=True))
        return self._found(name, way)

    def _trial(self, search: Search, value: int) -> Trial:
        """The trial that is known, or a new one."""
        known = search.trial(value)
        if known is not None and not known.crashed:
            return known
        start = time.perf_counter()
        options = self._options
        limit, threads = search.memory_limit, options.threads
        request = Request(search.dimension, search.way, value, options.device.type, limit, threads, options.seed)
        try:
            trial = self._taken(request)
            if trial.crashed and self._taken(replace(request, memory_limit=_MORE * limit)).fits:
                # Not every library asks whether it was given the memory: some write to where it would have been.
                failure = f"{trial.failure}; with {_MORE} times the memory it finished"
                trial = replace(trial, crashed=False, failure=failure)
        except TooLong as error:
            trial = Trial(value, failure=str(error), crashed=True)
        trial = replace(trial, commit=commit_of(self.results.machine))
        current = self._found(search.dimension, search.way)
        self._keep(replace(current, trials=[*current.trials, trial]), time.perf_counter() - start)
        return trial

    def _taken(self, request: Request) -> Trial:
        deadline = self._options.deadline
        if deadline.over:
            raise _TooLate
        try:
            return self._take(request, deadline.share)
        except TooLong as error:
            if deadline.over:
                raise _TooLate from error
            raise

    def _found(self, name: str, way: str) -> Search:
        found = self.results.search(name, way)
        assert found is not None
        return found

    def _keep(self, search: Search, seconds: float = 0.0) -> None:
        """The searches with another one, in the order of the command line's names, written."""
        key = search.dimension, search.way
        others = [one for one in self.results.searches if (one.dimension, one.way) != key]
        names, ways = list(NAMES), list(WAYS)
        searches = sorted([*others, search], key=lambda one: (names.index(one.dimension), ways.index(one.way)))
        self.results = replace(self.results, searches=searches, seconds=self.results.seconds + seconds)
        if self._options.json is not None:
            records.save(self.results, self._options.json)


class _TooLate(Exception):
    """The deadline has come."""


class _NoAnswer(Exception):
    """A trial says neither that a number fits nor that it does not."""


def ways_of(dimension: Dimension, ways: Sequence[str] | None, by_default: Sequence[str] = COMPRESSED) -> list[str]:
    """Those that a dimension is searched in, plain first.

    Args:
        dimension: which.
        ways: asked for; ``None``: those by default.
        by_default: of which Q-layers are searched where there are convolutions.
    """
    convolutions = dimension.family == "resnet"
    asked = ways if ways is not None else [way for way in by_default if convolutions or way != "Q-layers"]
    return list(dict.fromkeys([PLAIN, *asked]))


def _require_limit(options: Options) -> None:
    if options.device.type == "cpu":
        if platform.system() != "Linux":
            raise BenchError(
                f"a process's memory can be limited on Linux alone, this is {platform.system()}; use --device cuda"
            )
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        _require_memory(options, total, "the machine's")
        return
    if not torch.cuda.is_available():
        raise BenchError("device cuda is not there: torch finds no usable GPU; use --device cpu")
    # What is free, a trial sees beside its own context; to ask here would make a context of this process's, too.
    _require_memory(options, torch.cuda.get_device_properties(options.device).total_memory, "the GPU's")


def _require_memory(options: Options, total: int, whose: str) -> None:
    """What fails for want of memory shall fail of the limit."""
    most = max(options.memory_limits.values())
    if most > total:
        raise BenchError(
            f"--memory-limit must be at most {whose} memory, {size_name(total >> 20 << 20)}, got {size_name(most)}; "
            "name a smaller one"
        )


def _settings(results: SearchResults) -> tuple[object, ...]:
    machine = results.machine
    return machine.processor, machine.threads, machine.versions, results.device, results.memory_limits, results.seed


def _missing(family: str) -> str:
    """Which library a family lacks; empty if none."""
    try:
        needs(_LIBRARIES[family])
    except MissingLibrary as error:
        return str(error)
    return ""
