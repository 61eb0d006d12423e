"""Torch's own database of operators under compression, and that a rule that does not hold is found by it.

``nox -s bench_operators -- --record FILE`` takes up to 16 samples of each operator, as a function, in place and in
complex numbers, four of them with an exact plan.
"""

from dataclasses import replace

import pytest
import torch

from integrations.policies import policy, rules
from integrations.policies.rules import Need, Rule

from .operator_database import bounds
from .operator_database import measure as measuring
from .operator_database.measure import measure
from .operator_database.step import Step
from .operator_database.subjects import subjects

pytestmark = pytest.mark.filterwarnings("ignore")  # nothing can be stored of most, of which each forward warns

pytest.importorskip("expecttest", reason="torch's own tests import it, where the database is")

LEVEL = "L1.1"  # 8 bits of all that is rounded
SAMPLES, WITH_PLAN = 16, 4  # of an operator, in a record
PLANNED = 8  # every so many-th operator


def sampled(subject, planned=0):
    return measure(subject, LEVEL, samples=1, planned=planned, seed=0)


def failing(found):
    return {one.name: one.wrong for one in found if one.wrong}


def named(name):
    return next(one for one in subjects() if one.info.name == name)


def test_every_operator_has_its_own_results_and_gradients_within_its_rule(measured, asked):
    """With the database's largest sample of each, of real numbers: L0, and the level twice."""
    names = asked("subject")
    chosen = [one for one in subjects() if one.info.name in (names or (one.info.name,))]
    assert chosen, f"torch's database has none of {', '.join(names)}; name them as torch.NAME is named"
    if asked("record") is None:
        chosen = [one for one in chosen if one.dtype in (torch.float32, None)]
        found = [sampled(one) for one in chosen]
    else:
        settings = {"level": LEVEL, "samples": SAMPLES, "planned": WITH_PLAN, "seed": 0}
        found = measured("operators", settings, chosen, lambda one: measure(one, LEVEL, SAMPLES, WITH_PLAN, 0))
    assert failing(found) == {}
    if not names and asked("record") is None:
        assert len({one.name for one in found if one.samples}) > 500


def test_operators_that_round_complex_numbers_keep_their_rule():
    """The parts of what they save enter each gradient linearly; what any other saves is kept, as a record shows."""
    names = ("mul", "addcmul", "matmul", "addr", "vdot", "exp", "var", "square", "abs", "tanh", "div")
    found = [sampled(one) for one in subjects() if one.dtype is torch.complex64 and one.info.name in names]
    assert failing(found) == {}
    rounded = {one.name for one in found if one.rounded}
    assert rounded - {"var (unbiased)"} == set(names) - {"abs", "tanh", "div"}


def test_every_so_many_th_operator_follows_an_exact_plan():
    chosen = [one for one in subjects() if one.dtype is not None][::PLANNED]
    found = [sampled(one, planned=1) for one in chosen]
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
    found = sampled(named(operator))
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
    found = sampled(named("sin"))
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
