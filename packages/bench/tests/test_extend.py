"""The examples of ``docs/how-to/extend.md``, as they stand there."""

import argparse
import re
from pathlib import Path

import pytest
import torch

import integrations
from bench.results.record import load
from bench.runner.command import Options
from integrations.policies import rules
from integrations.rules import Need, Rule, add_rule

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "extend.md"


def example(heading):
    """The code of a section, run."""
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", section.group(1), re.MULTILINE | re.DOTALL))
    assert len(code.splitlines()) <= 48  # the imports of two blocks
    names = {}
    exec(compile(code, str(PAGE), "exec"), names)
    return names


@pytest.fixture
def own_rules(monkeypatch):
    """Rules that are gone after the test."""
    added = dict(rules._rules)
    monkeypatch.setattr(rules, "_rules", added)
    monkeypatch.setattr("integrations.policies.policy.RULES", added)


@pytest.mark.parametrize("heading", ["A codec", "A subject of a benchmark"])
def test_example(heading):
    example(heading)


def test_a_benchmark(tmp_path):
    bench = example("A benchmark")["BENCH"]
    parser = argparse.ArgumentParser()
    options = Options(parser)
    bench.options(options)
    asked = parser.parse_args(["--rounds", "2", "--json", str(tmp_path / "products.json")])
    options.settle(asked)
    bench.command(asked)
    record = load(tmp_path / "products.json", lambda name: bench.kind)
    assert [(entry.size, len(entry.seconds)) for entry in record.entries] == [(64, 2), (256, 2)]


class Scaled(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator, self.weight = operator, torch.nn.Parameter(torch.randn(64, 64) / 8)

    def forward(self, x):
        return self.operator(x * 1, self.weight, 2.0)


def test_a_rule(own_rules):
    operator = example("A rule")["scaled_linear"]
    torch.manual_seed(0)
    model, x = Scaled(operator).train(), torch.randn(256, 64)
    model(x).sum().backward()
    exact = model.weight.grad.clone()
    integrations.compress_model(model, "L1")
    errors = []
    for _ in range(32):
        model.weight.grad = None
        model(x).sum().backward()
        errors.append(model.weight.grad - exact)
    [row] = [row for row in integrations.compression(model).report().rows if row.operator == "mylib::scaled_linear"][:1]
    assert "GroupAffine(bits=4" in row.codec
    spread = torch.stack(errors).norm() / len(errors) ** 0.5
    # Of independent noises without bias, the mean of 32 is 0.18 of one.
    assert 0 < torch.stack(errors).mean(0).norm() < 0.3 * spread


@pytest.mark.parametrize(
    ("operator", "rule", "message"),
    [
        ("mine", Rule(), "operator must be of a library of your own"),
        ("aten::gelu", Rule(), "operator must be of a library of your own"),
        ("mylib::op.default", Rule(), "operator must be of a library of your own"),
        ("integrations::linear_randomized", Rule(), "operator must not have a rule yet"),
        ("mylib::other", Rule(input="LINEAR"), "rule must have a Need for its input"),
        (3, Rule(), "operator must be a string"),
        ("mylib::other", Need.LINEAR, "rule must be a Rule"),
        ("mylib::other", Rule(input=Need.SATURATING), "rule must not have Need.SATURATING for its input"),
        ("mylib::other", Rule(other=Need.INSIDE), "rule must not have Need.INSIDE for its other"),
    ],
)
def test_bad_rules(operator, rule, message, own_rules):
    with pytest.raises((TypeError, ValueError), match=message):
        add_rule(operator, rule)


def test_a_misspelled_rule_is_told(own_rules):
    example("A rule")
    add_rule("mylib::of_another_kind", Rule())  # registered later, perhaps
    with pytest.warns(UserWarning, match=r"no operator 'mylib::scaled_liner' .* did you mean 'mylib::scaled_linear'"):
        add_rule("mylib::scaled_liner", Rule())
