"""``python -m integrations.fewbit compare``: what both roundings do to the gradient."""

import pytest

from integrations import fewbit
from integrations.fewbit import roundings
from integrations.fewbit.cli import main


def test_it_measures_the_errors_that_the_tables_have():
    """For inputs of N(0, 1), which the normal weight stands for, the mean of 16,384 squares. No error e is above 1/2, the
    largest step's half, so a square's variance is at most 1/4 of its mean m, and the mean's standard error at most
    sqrt(m / 4 / 16,384): a tenth of m takes 5 of them at m = 0.008. The stochastic variance has 256 draws for each."""
    errors = {(error.rounding, error.weight): error for error in roundings.compare("gelu", bits=(2,))}
    for weight in ("uniform", "normal"):
        steps, levels = fewbit.table("gelu", 2, (), weight), fewbit.level_table("gelu", 2, (), weight)
        nearest, stochastic = errors["nearest", weight], errors["stochastic", weight]
        assert nearest.bias**2 == pytest.approx(fewbit.estimate_error("gelu", steps, weight="normal"), rel=0.1)
        assert nearest.deviation == 0
        variance = fewbit.estimate_error("gelu", levels, weight="normal")
        assert stochastic.deviation**2 == pytest.approx(variance, rel=0.1)
        # What is left of the variance over 256 draws, v / 256, is taken off; it is itself known to 1 part in
        # sqrt(16,384 / 2), and 5 of these make less than a twentieth of it: the bias left is below sqrt(v / 256 / 20).
        assert stochastic.bias < (variance / 256 / 20) ** 0.5
        assert abs(stochastic.mean) < 5 * (variance / 256 / 16384) ** 0.5


def test_the_command_prints_a_table(monkeypatch, capsys):
    monkeypatch.setattr(roundings, "_DRAWS", 2)
    assert main(["compare", "tanh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["bits", "rounding", "fitted", "to", "bias", "deviation", "mean"]
    assert len(lines) == 1 + 4 * 2 * 2


def test_it_refuses_what_has_no_levels_to_compare(capsys):
    assert main(["compare", "relu"]) == 1
    assert "function must be one of celu, elu" in capsys.readouterr().err
