"""The known defects of GACT's benchmark scripts, G19 and G23: options that did nothing, and a second from nowhere."""

import argparse
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bench
from bench.cli import main
from bench.cli.suites import BENCHES
from bench.runner import clock
from bench.suites.gnn import training
from bench.suites.gnn.training import Run

GACTS = ("gnn", "kernels", "sensitivity", "activations")


class Stopped(Exception):
    """Carries what was to be run."""


def options_of(command):
    [commands] = [action for action in main._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return [action for action in commands.choices[command]._actions if action.option_strings and action.dest != "help"]


def value_of(option):
    """One that is not the default."""
    if option.nargs == 0:
        return []
    if option.choices is not None:
        return [str(next(choice for choice in reversed(list(option.choices)) if choice != option.default))]
    return [{"size": "16KiB", "group": "96"}.get(option.dest, "7")]


def asked(monkeypatch, command, *arguments):
    """What a bench gets, without what was said in which words."""

    def run(options):
        raise Stopped(options)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(main, "BENCHES", {command: replace(BENCHES[command], run=run)})
    with pytest.raises(Stopped) as stopped:
        main.main([command, *arguments])
    return {name: value for name, value in vars(stopped.value.args[0]).items() if name not in ("said", "command")}


# What is written where does not change what is run; other tests read the files. An estimate is another run.
_ASIDE = ("json", "chart", "estimate", "against")


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, option) for command in GACTS for option in options_of(command) if option.dest not in _ASIDE],
    ids=lambda value: value if isinstance(value, str) else value.dest,
)
def test_g19_every_option_changes_what_is_run(command, option, monkeypatch, tmp_path):
    """``--intermediate_size`` was read and never used, and ``--ckpt`` failed."""
    monkeypatch.chdir(tmp_path)
    default = asked(monkeypatch, command)
    assert asked(monkeypatch, command, option.option_strings[-1], *value_of(option)) != default


@pytest.mark.parametrize("command", BENCHES)
def test_g19_every_option_is_read(command):
    """By the bench, or by what all benches share."""
    folder = Path(bench.__file__).parent
    [suite] = [found for found in folder.rglob(command) if found.is_dir()]
    shared = [folder / "cli" / name for name in ("bench.py", "options.py", f"{command}.py")]
    files = [*suite.rglob("*.py"), *(folder / "runner").rglob("*.py"), *(file for file in shared if file.is_file())]
    text = "".join(file.read_text() for file in files)
    unread = [
        option.dest
        for option in options_of(command)
        if not any(form.format(option.dest) in text for form in ("asked.{}", "options.{}", '"{}"'))
    ]
    assert unread == []


class Ticking:
    """A clock that goes on only while somebody works."""

    def __init__(self):
        self.now = 1000.0

    def perf_counter(self):
        return self.now

    def work(self, seconds):
        self.now += seconds


@pytest.fixture
def ticking(monkeypatch):
    made = Ticking()
    monkeypatch.setattr(clock, "time", made)
    monkeypatch.setattr(training, "time", made)
    return made


@pytest.mark.parametrize("calls", [1, 4])
def test_g23_a_contenders_time_is_that_of_its_calls_alone(ticking, calls):
    """A speed began with one second that nobody had worked, and counted nine steps for it. The first round, of which
    caches are warm later, counts for none."""
    actions = [lambda: ticking.work(2.0), lambda: ticking.work(0.5)]
    assert clock.in_turn(actions, 3, torch.device("cpu"), calls) == [[2.0] * 3, [0.5] * 3]


def test_g23_an_epochs_time_is_that_of_its_step_alone(ticking, graph, monkeypatch):
    run = Run("gcn", None, 0, graph)
    step, evaluate = run._step, run._evaluate
    monkeypatch.setattr(run, "_step", lambda: [ticking.work(2.0), step()][1])
    monkeypatch.setattr(run, "_evaluate", lambda: [ticking.work(10.0), evaluate()][1])
    run.train(3)
    assert run.curve.block_seconds == [6.0]
    assert run.curve.epoch_seconds == [2.0]
