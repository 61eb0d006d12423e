"""``python -m bench systems --part planning``: what planning takes, and small steps beside every choice."""

import random
from dataclasses import replace

import pytest

from actcore import checkpoint_plans
from bench.cli import main, suites
from bench.suites.memory.systems import planning
from bench.suites.memory.systems.entries import Cell, Planning


def test_the_search_is_beside_every_choice():
    found = planning.compared(6, 5, 0)
    assert (found.ops, found.steps) == (6, 5)
    assert 0 < found.searched <= 5
    assert found.peak_ratio >= 1
    assert found.time_ratio >= 1


def test_a_search_that_finds_little_is_seen(monkeypatch):
    """One that keeps everything as it is, or nothing."""

    def ends(step, **options):
        plans = checkpoint_plans(step, **options)
        if options["max_steps"] > 1 << 30:
            return plans
        return replace(plans, exact=False, front=(plans.front[0], plans.front[-1]))

    monkeypatch.setattr(planning, "checkpoint_plans", ends)
    found = planning.compared(5, 3, 0)
    assert found.searched == 3
    assert found.peak_ratio > 1.05
    assert found.time_ratio > 1.05


def test_random_steps_differ_and_are_the_same_again():
    steps = [planning.random_step(random.Random(seed), 5) for seed in (0, 0, 1)]
    assert steps[0] == steps[1] != steps[2]


def test_a_quick_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(planning, "OPS", (4,))
    file = tmp_path / "planning.json"
    assert main.main(["systems", "--part", "planning", "--quick", "--threads", "1", "--json", str(file)]) == 0
    found = suites.load(file)
    (one,) = found.of(Planning)
    assert one.subject == "bert-small"
    assert min(one.values, one.options, one.choices) > 10
    assert one.peak_ratio >= 1
    assert one.time_ratio is None or one.time_ratio >= 1
    text = " ".join(capsys.readouterr().out.split())
    assert "BERT, 2 layers of 128" in text
    assert "beside every choice" in text
    assert "gradient's error" not in text  # there is no cell


def test_the_deep_model_has_some_3000_values():
    found = planning.DEEP["bert-deep"]()
    assert len(found.blocks) == 120


@pytest.mark.parametrize("command", ["systems", "checkpoint", "search", "activations", "kernels", "sensitivity"])
def test_every_command_shows_its_help(command, capsys):
    """A percent sign in a name is a placeholder to argparse."""
    with pytest.raises(SystemExit) as ended:
        main.main([command, "--help"])
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out


def test_what_a_file_has_stays(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(planning, "OPS", ())
    file = tmp_path / "systems.json"
    command = ["systems", "--threads", "1", "--json", str(file), "--model", "mlp"]
    assert main.main([*command, "--no-time", "--way", "L1"]) == 0
    cells = suites.load(file).of(Cell)
    assert len(cells) == 2
    for _ in range(2):
        assert main.main([*command, "--part", "planning"]) == 0
    found = suites.load(file)
    assert found.of(Cell) == cells
    assert [one.subject for one in found.of(Planning)] == ["mlp"]
    assert main.main([*command, "--part", "planning", "--chart", "x.png"]) == 1
    assert "no chart" in capsys.readouterr().err
