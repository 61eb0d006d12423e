"""``python -m bench curves``: its options, and what is run."""

from __future__ import annotations

import argparse

from bench.results.record import Record
from bench.runner.child import Child
from bench.runner.clock import THREADS
from bench.runner.command import Bench, Options
from bench.runner.memory import Memory
from bench.runner.run import Deadline, begun, progress
from bench.suites.curves import cell
from bench.suites.curves.entries import KIND, WAYS, Trained
from bench.suites.curves.report import REPORT
from bench.suites.curves.tasks import QUICK, TASKS, load

SEEDS, QUICK_SEEDS = 3, 1


def run(asked: argparse.Namespace) -> Record:
    """Trains what is asked for: all tasks and ways of a seed, then those of the next.

    Raises:
        BenchError: the file holds other results, or data are damaged.
    """
    size, deadline = QUICK if asked.quick else asked.device, Deadline(asked.deadline)
    root = asked.data_root and str(asked.data_root)
    going = begun(KIND, asked, size=size)
    with progress("tasks", len(asked.tasks)) as advance:  # to import their libraries takes a minute on a busy machine

        def load_and_build(name: str) -> None:
            task = load(name, size, root, asked.device)
            task.build()
            going.set(tasks={name: str(task)})
            advance(f"{name}, loaded")

        names = going.present(asked.tasks, load_and_build)
    wanted = [Trained(name, way, seed) for seed in range(asked.seeds) for name in names for way in WAYS]
    options = {"size": size, "device": asked.device, "data_root": root, "threads": asked.threads}
    peaks = [Memory(name, way) for name in names for way in WAYS]
    with Child() as sized, Child({}) as child:  # the allocator's setting for peaks takes a third of a step
        going.measure(
            peaks,
            lambda one: sized.measure(cell.measure_peak, one, deadline.left, **options),
            name="peaks",
            deadline=deadline,
        )
        sized.end()
        going.measure(
            wanted,
            lambda one: child.measure(cell.train, one, deadline.left, **options),
            name="trainings",
            deadline=deadline,
        )
    return going.record


def options(add: Options) -> None:
    """Those of the command."""
    add.many("--task", TASKS, "task, repeatable; default: all", default=tuple(TASKS))
    add.number("--seeds", "number of training seeds", default=SEEDS, quick=QUICK_SEEDS)
    add.data_root("folder with cifar10_subset.npz and planetoid/; default: ACTCORE_DATA, or else built-in digits")
    add.deadline("training")
    add.quick("small models, 20 steps each")
    add.files(threads=THREADS)


BENCH = Bench(
    KIND, "training curves of four tasks: loss, accuracy and peak, plainly and compressed", options, run, REPORT
)
