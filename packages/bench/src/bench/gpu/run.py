"""Cases within a stage's time: none of them keeps the others from being run."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import IO

import torch

from bench.gpu.cases import Case, Done
from bench.gpu.place import ROOT, Place
from bench.gpu.results import KIND, NOT_REACHED, SKIPPED, Row, StageResults
from bench.gpu.stages import Stage
from bench.results.files import save
from bench.results.machine import Machine
from bench.results.record import Record

_PACKAGES = ("torch", "triton", "timm", "transformers", "torch-geometric", "actcore", "actcore-integrations")
LOG = "gpu.log"
"""Of all stages: a machine that is lent may give back few files."""
_LEAST = 5.0  # seconds that a case is begun with
_PAUSE = 0.05
_GRACE = 5.0  # seconds that a process which is interrupted has to write what it knows; pytest writes its report


@dataclass
class _Process:
    case: Case
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    begin: float
    end: float

    def done(self, over: bool, interrupted: bool = False) -> Done:
        """How it ended, after it did."""
        seconds = time.monotonic() - self.begin
        code = self.process.wait()
        self.output.seek(0)
        text = self.output.read().decode(errors="replace")
        self.output.close()
        return Done(code, text, seconds, over, interrupted)


@dataclass
class StageRun:
    """A stage that runs. Its results are written after each case.

    Attributes:
        stage, place: what, and where.
        seconds: that it may take.
        results: what was written last; ``None`` before.
        machine: where; ``None`` before.
    """

    stage: Stage
    place: Place
    seconds: float
    results: StageResults | None = None
    machine: Machine | None = None
    _running: list[_Process] = field(default_factory=list)

    def run(self) -> StageResults:
        """Runs all cases; those that the time does not suffice for are in the results, too.

        Raises:
            KeyboardInterrupt: as it came, after the results were written, with what was not reached.
        """
        begin = time.monotonic()
        end = begin + self.seconds
        rows: list[Row] = []
        # That of an earlier run would look like this one's if it is interrupted.
        (self.place.out / f"gpu-{self.stage.name}.json").unlink(missing_ok=True)
        waiting = deque(self.stage.cases(self.place))
        try:
            while waiting or self._running:
                while waiting and len(self._running) < self.stage.workers(self.place):
                    case = waiting.popleft()
                    if case.missing:
                        rows.append(case.row(SKIPPED, case.missing))
                    elif end - time.monotonic() < _LEAST:
                        rows.append(case.row(NOT_REACHED, f"the stage's {self.seconds:.0f} s were over"))
                    else:
                        self._running.append(self._started(case, end))
                if ended := [one for one in self._running if self._has_ended(one)]:
                    late = [one.process for one in ended if one.process.poll() is None]
                    stop(late)
                    for one in ended:
                        self._running.remove(one)
                        rows += self._rows(one.case, one.done(over=one.process in late))
                    self._save(rows, begin)
                else:
                    time.sleep(_PAUSE)
        except KeyboardInterrupt:
            going = [one.process for one in self._running if one.process.poll() is None]
            stop(going)
            for one in self._running:
                over = one.process in going
                rows += self._rows(one.case, one.done(over, interrupted=over))
            rows += [case.row(NOT_REACHED, "interrupted before it began") for case in waiting]
            self._save(rows, begin)
            raise
        finally:  # whatever came between
            for one in self._running:
                kill(one.process)
        return self._save(rows, begin)

    @staticmethod
    def _has_ended(one: _Process) -> bool:
        return one.process.poll() is not None or time.monotonic() > one.end

    def _started(self, case: Case, end: float) -> _Process:
        output = tempfile.TemporaryFile()  # noqa: SIM115, it lives as long as the process
        begin = time.monotonic()
        end = min(end, begin + case.seconds)
        process = subprocess.Popen(
            [*case.command, *case.within(end - begin)],
            cwd=ROOT,
            env=self.place.environment(**case.environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,  # whatever it starts is ended with it
        )
        return _Process(case, process, output, begin, end)

    def _rows(self, case: Case, done: Done) -> list[Row]:
        self._log(case, done)
        return case.rows(done)

    def _log(self, case: Case, done: Done) -> None:
        with (self.place.out / LOG).open("a") as log:
            log.write(f"==== {self.stage.name}, {case.name}: {shlex.join(case.command)}\n{done.output}\n")
            log.write(f"==== {self.stage.name}, {case.name}: {done.reason or 'done'}, {done.seconds:.1f} s\n\n")

    def _save(self, rows: list[Row], begin: float) -> StageResults:
        self.place.make_importable()
        device = torch.device(self.place.device)
        machine = Machine.here(device, torch.get_num_threads(), _PACKAGES)
        machine = replace(machine, command=shlex.join(["tools/gpu.sh", *sys.argv[1:]]))
        seconds = round(time.monotonic() - begin, 1)
        results = StageResults(self.stage.name, self.place.device, self.place.dry, list(rows), seconds)
        record = Record(KIND.name, machine, entries=[results], seconds=seconds)
        save(record, self.place.out / f"gpu-{self.stage.name}.json")
        self.results, self.machine = results, machine
        return results


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Interrupts processes, each with what it has started, and kills after seconds what goes on."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
    end = time.monotonic() + _GRACE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
    for process in processes:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
