"""Torch's own database of operators under compression, and that a rule that does not hold is found by it."""

from dataclasses import replace

import pytest
import torch

from bench import cli, records
from bench.errors import DoesNotApply
from bench.markdown import render_record
from bench.operators import bounds
from bench.operators import measure as measuring
from bench.operators.lines import FAILS, NOT_RUN, NOTHING, lines
from bench.operators.measure import measure
from bench.operators.results import EXACT, KEPT, ROUNDED, Operated
from bench.operators.run import LEVEL
from bench.operators.step import Step
from bench.operators.subjects import FUNCTION, subjects
from integrations.rules import policy, rules
from integrations.rules.rules import Need, Rule

pytestmark = pytest.mark.filterwarnings("ignore")  # nothing can be stored of most, of which each forward warns

pytest.importorskip("expecttest", reason="torch's own tests import it, where the database is")

PLANNED = 8  # every so many-th operator


def measured(subject, planned=0):
    try:
        return measure(subject, LEVEL, samples=1, planned=planned, seed=0)
    except DoesNotApply:
        return None


def failing(found):
    return {one.name: one.wrong for one in found if one is not None and one.wrong}


def named(name):
    return next(one for one in subjects() if one.info.name == name)


def test_every_operator_has_its_own_results_and_gradients_within_its_rule():
    """With the database's largest sample of each, of real numbers: L0, and the level twice."""
    found = [measured(one) for one in subjects() if one.dtype in (torch.float32, None)]
    assert failing(found) == {}
    ran = {one.name for one in found if one is not None and one.samples}
    assert len(ran) > 500


def test_every_so_many_th_operator_follows_an_exact_plan():
    chosen = [one for one in subjects() if one.dtype is not None][::PLANNED]
    found = [measured(one, planned=1) for one in chosen]
    assert failing(found) == {}
    assert sum(one.planned for one in found) > len(chosen) // 2
    assert any(one.recomputed for one in found)


@pytest.mark.parametrize(
    ("operator", "need", "bound"),
    [
        ("log", Need.LINEAR, "linear"),
        ("sin", Need.PRODUCT, "linear"),
        ("log1p", Need.NORM, "quadratic"),
        ("sinh", Need.BOUNDED, "slope"),
    ],
)
def test_a_rule_that_does_not_hold_is_found(monkeypatch, operator, need, bound):
    for module in (rules, policy, bounds):
        monkeypatch.setattr(module, "RULES", {**rules.RULES, operator: Rule(need, need, need, need)})
    found = measured(named(operator))
    assert found.rounded == 1
    assert any(repr(bound) in what for what in found.wrong), found


@pytest.mark.parametrize("what", ["results", "gradients"])
def test_what_differs_is_found(monkeypatch, what):
    """In each compressed step they are off by a bit."""
    forward = measuring.step

    def off(model):
        found = forward(model)
        if "forward" not in vars(model):  # it is not compressed
            return found
        ulp = torch.finfo(torch.float32).eps
        return replace(found, **{what: tuple(one * (1 + ulp) for one in getattr(found, what))})

    monkeypatch.setattr(measuring, "step", off)
    found = measured(named("sin"))
    assert found.wrong == {
        f"L0: {what} differ": 1,
        f"{LEVEL}: {what} differ" + (", and nothing is rounded" if what == "gradients" else ""): 2,
    }


def test_bits_are_compared():
    zero, nan = torch.zeros(2), torch.full((2,), float("nan"))
    assert not Step((), (), (zero,)).same_gradients(Step((), (), (-zero,)))
    assert Step((nan,), (), ()).same_results(Step((nan.clone(),), (), ()))
    assert not Step((zero,), (), ()).same_results(Step((zero.double(),), (), ()))
    assert not Step((), (), (zero,)).same_gradients(Step((), (), (None,)))


def test_samples_are_the_largest_and_even():
    subject = named("sort")
    sizes = [one.input.numel() for one in subject.samples(1000, 0)]
    assert sizes == sorted(sizes, reverse=True)
    assert [one.input.numel() for one in subject.samples(3, 0)] == [
        sizes[place * len(sizes) // 3] for place in range(3)
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    file = tmp_path_factory.mktemp("operators") / "operators.json"
    asked = [part for name in ("sigmoid", "sort", "log", "view_as_real", "eq") for part in ("--operator", name)]
    assert cli.main(["operators", *asked, "--samples", "2", "--planned", "1", "--json", str(file)]) == 0
    return file


def test_each_operator_is_in_one_table(recorded):
    record = records.load(recorded)
    verdicts = {line.name: line.verdict for line in lines(record)}
    assert verdicts == {"eq": NOT_RUN, "log": KEPT, "sigmoid": ROUNDED, "sort": EXACT, "view_as_real": NOTHING}
    assert [one.dtype for one in record.of(Operated, name="sigmoid", form=FUNCTION)] == ["float32", "complex64"]
    wrong = replace(record.find(Operated, name="log"), wrong={"L1.1: results differ": 1})
    [failed] = [one for one in lines(record.adding([wrong])) if one.name == "log"]
    assert (failed.verdict, list(failed.wrong)) == (FAILS, ["function, float32: L1.1: results differ (1 samples)"])


def test_a_page_has_the_tables(recorded):
    made = render_record(recorded.name, records.load(recorded))
    assert "| sigmoid, in place too | result, input of sigmoid | slope |" in made
    assert "| exp() and division amplify an error without bound | 1 | log, in place too |" in made
    assert "| no gradient | 1 | eq |" in made


def test_operators_that_are_not_there(capsys):
    assert cli.main(["operators", "--operator", "convolute"]) == 1
    assert "torch's database has none of convolute" in capsys.readouterr().err
