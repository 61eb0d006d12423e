"""``python -m bench fewbit``: its options, and what makes it a bench."""

from __future__ import annotations

import torch

from bench.cli.arguments import positive
from bench.cli.bench import Bench
from bench.cli.options import Options
from bench.models.data import mrpc as sentences
from bench.suites.fewbit import measure, memory, step_time
from bench.suites.fewbit.report import REPORT
from bench.suites.fewbit.results import KIND


def options(add: Options) -> None:
    """Those of the command."""
    add.part(measure.PARTS, words="default: all; those that lack a library or data are left out")
    add.data_root(f"folder with {sentences.FOLDER}/ in it; default: ACTCORE_DATA")
    batches = ", ".join(f"{batch} on {device}" for device, batch in memory.BATCHES.items())
    add.add("--batch", type=positive, help=f"of the parts memory and grid; default: {batches}")
    add.add("--layers", type=positive, help="of the parts memory and grid; default: RoBERTa-base's 12")
    add.number("--seeds", "of training, paired", default=measure.SEEDS, quick=measure.QUICK_SEEDS)
    add.number("--rounds", "that count, of what is timed", default=step_time.ROUNDS, quick=step_time.QUICK_ROUNDS)
    add.quick(
        f"small networks, {measure.QUICK_SEEDS} seed, {measure.QUICK_STEPS} steps, {step_time.QUICK_ROUNDS} rounds"
    )
    add.device()
    add.threads(torch.get_num_threads())
    add.json(", one by one; what the file has is not measured again")
    add.chart()


BENCH = Bench(KIND, "few-bit activations and randomized linear layers", options, measure.run, REPORT)
