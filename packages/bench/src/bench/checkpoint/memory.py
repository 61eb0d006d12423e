"""Measured activation peaks, in a process of their own (``python -m bench.checkpoint.memory``).

The activation peak is the most memory during forward and backward, less what was there before, with ``.grad`` unset,
and less the gradients. A step that pays for caches goes before; where a step takes long, that one is of few samples.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.checkpoint.architectures import ARCHITECTURES, Architecture
from bench.checkpoint.contenders import Way, ready
from bench.checkpoint.results import Peak
from bench.checkpoint.step import Setup, build, inputs_of, loss
from bench.errors import BenchError, reason
from bench.memory import child_answer, peak_bytes
from bench.process_memory import Counters, counters, limit_allocation
from integrations.checkpoint import Plan

LONG = 2.0  # modelled seconds of a step from which few samples go before it; it takes about as long on two cores
FEW = 2  # samples of that one; BatchNorm needs two

_MODULE = "bench.checkpoint.memory"  # of the child process; this file's name for itself is __main__ there


@dataclass(frozen=True)
class Job:
    """A step whose peak is to be measured.

    Attributes:
        way: how the model is trained.
        batch, size: of its inputs.
        warm_up: samples of the step that goes before.
        planned_bytes: the planned peak; ``None`` for ways without a plan.
        plan: for ways that follow one.
    """

    way: Way
    batch: int
    size: int
    warm_up: int
    planned_bytes: int | None = None
    plan: Plan | None = None


@dataclass(frozen=True)
class Settings:
    """What all steps have in common.

    Attributes:
        device: that the model is on.
        threads: of torch's operators.
        seed: of weights, inputs and gradients.
        memory_limit: bytes that the process may take.
        channels_last: whether images are in that order.
    """

    device: str
    threads: int
    seed: int
    memory_limit: int
    channels_last: bool = False

    @property
    def setup(self) -> Setup:
        """How models and inputs are made."""
        return Setup(torch.device(self.device), self.seed, self.channels_last)


def measure(architecture: Architecture, jobs: Sequence[Job], settings: Settings, found: Callable[[Peak], None]) -> None:
    """Measures steps of a model, one after another, in one process; a new one where it ended without an answer.

    Args:
        architecture: the model.
        jobs: the steps.
        settings: common to all.
        found: called with each peak, or with why there is none.
    """
    with tempfile.TemporaryDirectory() as folder:
        left = list(jobs)
        while left:
            answers = Path(folder) / "answers.jsonl"
            answers.touch()
            request = {
                "model": architecture.name,
                "jobs": [_request(job, Path(folder) / f"plan-{place}.json") for place, job in enumerate(left)],
                "settings": asdict(settings),
                "answers": str(answers),
            }
            failure = ""
            try:
                child_answer(_MODULE, request)
            except BenchError as error:
                failure = str(error)
            lines = answers.read_text().splitlines()
            answers.unlink()
            for line in lines:
                found(Peak(**json.loads(line)))
            left = left[len(lines) :]
            if left:  # the process ended at the first of them
                found(replace(_unmeasured(architecture, left.pop(0)), failure=failure))


def measure_here(architecture: Architecture, job: Job, settings: Settings) -> Peak:
    """Measures one step in this process. What fails is said in the answer."""
    peak = _unmeasured(architecture, job)
    count = counters(settings.setup.device)
    if isinstance(count, str):
        return replace(peak, failure=count)
    try:
        return replace(peak, peak_bytes=_measured(architecture, job, settings.setup, count))
    except Exception as error:  # whatever one step fails with, others are to be measured
        return replace(peak, failure=reason(error))


def _unmeasured(architecture: Architecture, job: Job) -> Peak:
    return Peak(architecture.name, job.way.name, job.batch, job.size, None, job.planned_bytes, job.warm_up)


def _measured(architecture: Architecture, job: Job, setup: Setup, count: Counters) -> int:
    model = build(architecture, setup)
    forward = ready(job.way, model, architecture.blocks(model), job.plan)
    loss(forward, inputs_of(architecture, job.warm_up, job.size, setup), setup.seed).backward()
    inputs = inputs_of(architecture, job.batch, job.size, setup)
    return peak_bytes(model, lambda: loss(forward, inputs, setup.seed), count)


def _request(job: Job, file: Path) -> dict[str, Any]:
    """A job as JSON can say it; its plan is too long for a command line."""
    if job.plan is not None:
        file.write_text(job.plan.to_json())
    return {**vars(job), "way": asdict(job.way), "plan": None if job.plan is None else str(file)}


def _job(request: Mapping[str, Any]) -> Job:
    plan = None if request["plan"] is None else Plan.from_json(Path(request["plan"]).read_text())
    return Job(**{**request, "way": Way(**request["way"]), "plan": plan})


def answer(request: Mapping[str, Any]) -> None:
    """Measures what a request asks for, and adds each peak to the file that it names."""
    settings = Settings(**request["settings"])
    architecture = ARCHITECTURES[request["model"]]
    for entry in request["jobs"]:
        peak = measure_here(architecture, _job(entry), settings)
        with Path(request["answers"]).open("a") as file:
            file.write(json.dumps(asdict(peak)) + "\n")


def _child(text: str) -> None:
    """What the child process does. Its answer is the file: what it measured stays if it is ended."""
    request = json.loads(text)
    torch.set_num_threads(request["settings"]["threads"])
    if request["settings"]["device"] == "cpu":
        limit_allocation(request["settings"]["memory_limit"])
    answer(request)
    print("null")


if __name__ == "__main__":
    _child(sys.argv[1])
