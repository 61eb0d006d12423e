"""``python -m bench sensitivity``: a short run on a small model, and what is computed from its values."""

import pytest
import torch
from torch import nn

import integrations
from bench.cli import main, suites
from bench.models.subject import Case
from bench.suites.sensitivity import command
from bench.suites.sensitivity.entries import Sensitivities


@pytest.fixture
def small(monkeypatch):
    """One small model in place of the real ones."""

    def case():
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
        x = torch.randn(64, 32)
        return Case(model, lambda: model(x).square().mean(), "small")

    monkeypatch.setattr(command, "MODELS", {"gcn": case})


def test_a_run_prints_and_writes(small, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert main.main(["sensitivity", "--model", "gcn", "--quick", "--threads", "1", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Which tensors matter" in printed
    found = suites.load(file)
    (model,) = found.of(Sensitivities)
    assert model.tensors == ["2: linear input", "4: linear input"]
    assert len(model.references) == command.QUICK_PAIRS
    assert model.planned_bytes <= model.plain_bytes
    assert main.main(["show", str(file)]) == 0
    assert "Which tensors matter" in capsys.readouterr().out


def test_correlations_and_ratio():
    model = Sensitivities(
        "a", "", ["x", "y", "z"], [[1, 2, 3], [1, 5, 2]], [[2, 4, 9], [3, 2, 1]], [3, 4], [1.5, 2], 1, 1, 0
    )
    assert model.correlation_of_one == 1.0  # means of the reference: 2.5, 3, 5
    assert model.split_half == -1.0
    assert model.error_ratio == 0.5


def test_a_missing_library_is_said_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    assert main.main(["sensitivity", "--model", "resnet18", "--quick"]) == 1
    assert "timm cannot be imported" in capsys.readouterr().err


def test_equal_bits_are_those_of_every_operator():
    """Widths that a level gives some operators more of would be measured at one width and scaled from another."""
    level = integrations.Level(**command.equal_bits(4))
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64))
    options = {name: getattr(level, name) for name in command.equal_bits(4)}
    with integrations.compress(model, level="L1", **options) as handle:
        model(torch.randn(64, 64)).sigmoid().square().sum()
    codecs = {row.codec for row in handle.report().rows if row.codec.startswith("GroupAffine")}
    assert len(codecs) >= 1
    assert all("bits=4" in codec for codec in codecs)
