"""The known defects of GACT's benchmark scripts, G19 and G23: options that did nothing, and a second from nowhere."""

import argparse

import pytest
import torch

from bench import cli
from bench.activations import measure as activations
from bench.gnn import measure as gnn
from bench.gnn import training
from bench.gnn.training import Run
from bench.kernels import clock, measure
from bench.sensitivity import measure as sensitivity

RUNS = {"gnn": gnn, "kernels": measure, "sensitivity": sensitivity, "activations": activations}


class Stopped(Exception):
    """Carries what was to be run."""


def options_of(command):
    [commands] = [action for action in cli._parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return [action for action in commands.choices[command]._actions if action.option_strings and action.dest != "help"]


def value_of(option):
    """One that is not the default."""
    if option.nargs == 0:
        return []
    if option.choices is not None:
        return [str(next(choice for choice in reversed(list(option.choices)) if choice != option.default))]
    return [{"size": "16KiB", "group": "96"}.get(option.dest, "7")]


def asked(monkeypatch, command, *arguments):
    def run(options):
        raise Stopped(options)

    monkeypatch.setattr(RUNS[command], "run", run)
    with pytest.raises(Stopped) as stopped:
        cli.main([command, *arguments])
    return stopped.value.args[0]


# What is written where does not change what is run; other tests read the files. An estimate is another run.
_ASIDE = ("json", "chart", "estimate", "against")


@pytest.mark.parametrize(
    ("command", "option"),
    [(command, option) for command in RUNS for option in options_of(command) if option.dest not in _ASIDE],
    ids=lambda value: value if isinstance(value, str) else value.dest,
)
def test_g19_every_option_changes_what_is_run(command, option, monkeypatch, tmp_path):
    """``--intermediate_size`` was read and never used, and ``--ckpt`` failed."""
    monkeypatch.chdir(tmp_path)
    default = asked(monkeypatch, command)
    assert asked(monkeypatch, command, option.option_strings[-1], *value_of(option)) != default


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
