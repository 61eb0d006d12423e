"""``python -m bench llm``: its options, and what is run."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import asdict, replace

from bench.models.data import sentence_stream as words
from bench.results.record import Record
from bench.runner.child import Child, in_child
from bench.runner.clock import THREADS
from bench.runner.command import Bench, Options
from bench.runner.run import Run, begun
from bench.suites.llm import cell, training
from bench.suites.llm.entries import KIND, Learned, Trained
from bench.suites.llm.report import REPORT
from bench.suites.llm.subjects import QUICK, SUBJECTS, require

ROUNDS, QUICK_ROUNDS = 5, 2
SEEDS, QUICK_SEEDS = 3, 1
PARTS = ("way", "training")


def run(asked: argparse.Namespace) -> Record:
    """Measures what is asked for. What fails is recorded, and the rest goes on.

    Raises:
        BenchError: the file holds other results.
    """
    going = begun(KIND, asked)
    if "way" in asked.parts:
        _ways(going, asked)
    if "training" in asked.parts:
        _training(going, asked)
    return going.record


def _ways(going: Run, asked: argparse.Namespace) -> None:
    named = dict.fromkeys(way for name in asked.subjects for way in SUBJECTS[name].ways)
    there = going.present(named, require)
    groups = [[Trained(name, way) for way in SUBJECTS[name].ways if way in there] for name in asked.subjects]
    going.measure_together(groups, lambda left: measured(left, asked.rounds, asked.threads))


def measured(left: list[Trained], rounds: int, threads: int) -> list[Trained]:
    """A subject in some of its ways, each in a process of its own, beside its first."""
    name = left[0].subject
    first = Trained(name, SUBJECTS[name].ways[0])
    wanted = [first, *(one for one in left if one.place != first.place)]
    with ExitStack() as stack:
        children = [stack.enter_context(Child()) for _ in wanted]
        cells = [
            child.measure(cell.measure_once, one, threads=threads) for one, child in zip(wanted, children, strict=True)
        ]
        for _ in range(rounds if not cells[0].reason else 0):
            timed = [
                (one, None) if one.reason else child.measure_with(cell.measure_step, one)
                for one, child in zip(cells, children, strict=True)
            ]
            plain = timed[0][1]
            cells = [_with_time(one, seconds, plain) for one, seconds in timed]
    asked_for = {one.place for one in left}
    return [one for one in cells if one.place in asked_for]


def _with_time(one: Trained, seconds: float | None, plain: float | None) -> Trained:
    """With one more round's times; both are needed."""
    if seconds is None or plain is None:
        return one
    return replace(one, seconds=[*one.seconds, seconds], plain_seconds=[*one.plain_seconds, plain])


def _training(going: Run, asked: argparse.Namespace) -> None:
    recipe = training.QUICK if asked.quick else training.RECIPE
    text = words.load(recipe.vocabulary, asked.data_root)
    going.set(data=str(text), recipe={**asdict(recipe), "guess": text.guess})
    options = {"quick": asked.quick, "data_root": asked.data_root and str(asked.data_root), "threads": asked.threads}
    going.measure(
        [Learned(way, seed) for seed in range(asked.seeds) for way in training.WAYS],
        lambda one: in_child(training.trained, one, **options),
        name="training",
    )


def options(add: Options) -> None:
    """Those of the command."""
    words = "way: each model in its ways of training; training: a small Llama trained in several ways; default: both"
    add.part(PARTS, words=words)
    usual = [name for name in SUBJECTS if name not in QUICK]
    words = f"model, repeatable: {', '.join(SUBJECTS)}"
    add.many("--subject", SUBJECTS, words, default=usual, quick=QUICK, metavar="NAME")
    add.number("--rounds", "number of rounds of timed steps", default=ROUNDS, quick=QUICK_ROUNDS)
    add.number("--seeds", "number of training seeds", default=SEEDS, quick=QUICK_SEEDS)
    add.data_root("folder with mrpc/, to train on; default: ACTCORE_DATA, or else generated sentences")
    add.quick(f"{', '.join(QUICK)}, and a training of some steps")
    add.files(threads=THREADS, device=False)


BENCH = Bench(KIND, "language models: memory, time and error of every way, and training", options, run, REPORT)
