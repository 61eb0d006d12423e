"""``python -m bench.suites.fewbit.step_errors``: the tables beside FewBit's, and both roundings of a gradient."""

import json

import pytest

from bench.suites.fewbit import step_errors
from integrations import fewbit


def test_rounding_errors_are_those_of_the_tables():
    """For inputs of N(0, 1), which the normal weight stands for, the mean of 16,384 squares.

    No error is above 1/2, so a square's variance is at most 1/4 of its mean m, and the mean's standard error at most
    sqrt(m / 4 / 16,384): at m = 0.008, a tenth of m is more than 2 of these, and the inputs are always the same.
    """
    errors = {(error.rounding, error.weight): error for error in step_errors.rounding_errors("gelu", bits=(2,))}
    for weight in ("uniform", "normal"):
        steps, levels = fewbit.table("gelu", 2, (), weight), fewbit.level_table("gelu", 2, (), weight)
        nearest, stochastic = errors["nearest", weight], errors["stochastic", weight]
        assert nearest.bias**2 == pytest.approx(fewbit.estimate_error("gelu", steps, weight="normal"), rel=0.1)
        assert nearest.deviation == 0
        variance = fewbit.estimate_error("gelu", levels, weight="normal")
        assert stochastic.deviation**2 == pytest.approx(variance, rel=0.1)
        # The part of the variance that is left over 256 draws, v / 256, is taken off; it is itself known to 1 part in
        # sqrt(16,384 / 2), and 5 of these make less than a twentieth of it: the bias left is below sqrt(v / 256 / 20).
        assert stochastic.bias < (variance / 256 / 20) ** 0.5
        assert abs(stochastic.mean) < 5 * (variance / 256 / 16384) ** 0.5


def test_roundings_are_a_table(monkeypatch, capsys):
    errors = step_errors.rounding_errors("tanh", draws=2)
    monkeypatch.setattr(step_errors, "rounding_errors", lambda function: errors)
    assert step_errors.main(["roundings", "tanh"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["bits", "rounding", "fitted", "to", "bias", "deviation", "mean"]
    assert len(lines) == 1 + 4 * 2 * 2


def test_a_function_without_levels_is_refused(capsys):
    assert step_errors.main(["roundings", "relu"]) == 1
    assert "function must be one of celu, elu" in capsys.readouterr().err


def test_errors_are_a_table(capsys, tmp_path):
    row = {"shipped": 1.5, "optimal": 0.5, "shipped_gauss": 1.0, "optimal_gauss": 0.25}
    path = tmp_path / "fewbit_errors.json"
    path.write_text(json.dumps({"functions": {"gelu": {"3": row}}}))
    assert step_errors.main(["tables", "--reference", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 16 + 4
    [gelu] = [line for line in lines if line.startswith("| gelu |")]
    assert gelu.split("|")[4].strip() == "1.5 / 0.5 / **0.0119**"
    assert step_errors.main(["tables", "--reference", str(path), "--weight", "normal"]) == 0
    assert "1 / 0.25 / **0.00191**" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["[]", "{", '{"functions": {"gelu": {"3": {"shipped": 1.0}}}}'])
def test_a_damaged_reference_is_one_line(content, capsys, tmp_path):
    path = tmp_path / "fewbit_errors.json"
    path.write_text(content)
    assert step_errors.main(["tables", "--reference", str(path)]) == 1
    assert "must hold errors by function and bits" in capsys.readouterr().err
