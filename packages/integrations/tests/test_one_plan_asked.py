"""What may be asked of ``integrations.plan``, ``apply`` and ``compress_model(memory=...)``, and what they say of bounds
that cannot be met."""

import copy
import re

import pytest

import integrations
from integrations.api.error_control.error_model import ErrorModel
from integrations.planner.bounds import WAYS, Bounds
from integrations.planner.plans import Plans
from integrations.policies.stores import Store

from .nets import assert_same, gradients, normal
from .recompute_levels import deep

pytestmark = pytest.mark.usefixtures("following_takes_no_time")


# ---- what may be asked ----

WRONG = [
    ({"memory": True}, TypeError, "memory must be bytes as an int, a string such as '4GiB', or a fraction, got True"),
    ({"memory": "much"}, ValueError, "memory must be a number with a unit such as '4GiB'.*got 'much'"),
    ({"memory": "8"}, ValueError, "memory must have a unit as a string, such as '4GiB', or '8B' for bytes"),
    ({"memory": 1.5}, ValueError, r"memory must be in \(0, 1\] as a fraction.*bytes are an int"),
    ({"memory": -1}, ValueError, "memory must be above 0, got -1"),
    ({"time": "1.1"}, TypeError, "time must be"),
    ({"time": 0.9}, ValueError, "time must be .*got 0.9"),
    ({"error": "none"}, TypeError, "error must be"),
    ({"error": 1.0}, ValueError, "error must be .*got 1.0"),
    ({"error": float("nan")}, ValueError, "error must be .*got nan"),
    (
        {"stores": "bits"},
        TypeError,
        r"stores must be a sequence of 'recompute'.*got the string 'bits'; .* pass \('bits',\)",
    ),
    ({"stores": [3]}, TypeError, "stores must be a sequence of .*got 3 in it"),
    ({"stores": ["disk"]}, ValueError, "stores must be a sequence of .*or of forms such as '8 bits', got 'disk'"),
]


@pytest.mark.parametrize(
    ("asked", "error", "message"), WRONG, ids=lambda one: str(one) if isinstance(one, dict) else ""
)
def test_wrong_arguments_are_refused_before_anything_changes(asked, error, message):
    model, args = deep()
    for call in (
        lambda: integrations.compress_model(model, **asked),
        lambda: integrations.plan(model, args, **asked),
    ):
        with pytest.raises(error, match=message):
            call()
        assert "forward" not in model.__dict__


def test_what_does_not_go_together_is_refused():
    model, args = deep()
    for asked, message in (
        ({"memory": 0.5, "checkpoint": "optimal"}, "checkpoint= cannot be combined with memory="),
        ({"memory": 0.5, "level": "L1", "error": 0.2}, "error must be None with level L1,.*leave out the level"),
        ({"memory": 0.9, "bits": 4, "error": 0}, "error must be None with level L0 with bits=4,.*got 0; leave out"),
        ({"memory": 0.9, "level": "L0", "bits": 2, "error": 0.001}, "error must be None with level L0 with bits=2"),
        ({"memory": 0.9, "level": "L1", "bits": 9}, "bits must be from 1 to 8, got 9"),
        ({"memory": 0.5, "level": "L9"}, "level must be one of"),
    ):
        with pytest.raises(ValueError, match=message):
            integrations.compress_model(model, **asked)
        assert "forward" not in model.__dict__
    with (
        pytest.raises(ValueError, match="memory must be left out of a block"),
        integrations.compress(model, memory=0.5),
    ):
        pass
    with pytest.raises(ValueError, match="args must be one input, or several in a list, got an empty list"):
        integrations.plan(model, [])
    with pytest.raises(ValueError, match="kwargs must be None where args is a mapping"):
        integrations.plan(model, {"x": args[0]}, {})
    with pytest.raises(TypeError, match=r"plan must be a Plan of integrations\.plan .*, got float"):
        integrations.apply(model, 0.5)


def test_the_stores_that_are_allowed():
    allowed = {
        ("recompute",): [],
        ("exact",): [Store()],
        ("bits",): [Store(4), Store(8)],
        ("8 bits",): [Store(8)],
        ("host",): [Store(host=True)],
        ("bits", "host"): [Store(4), Store(8), Store(host=True), Store(4, host=True)],
        ("slopes",): [Store(slope_bits=6)],
        ("slopes", "exact, 3-bit derivative"): [Store(slope_bits=6), Store(slope_bits=3)],
        WAYS: [Store(), Store(4), Store(8), Store(host=True), Store(4, host=True), Store(slope_bits=6)],
    }
    every = [*allowed[WAYS], Store(slope_bits=3)]
    for ways, wanted in allowed.items():
        bounds = Bounds(error=0.1, stores=ways)
        assert [store for store in every if bounds.allows(store)] == wanted
        assert bounds.recomputes == ("recompute" in ways)
        exact = Bounds(error=0, stores=ways)
        assert [store for store in every if exact.allows(store)] == [store for store in wanted if store.exact]
    assert Bounds(stores=["8 bits", "exact", "8 bits", "recompute"]).stores == ("recompute", "exact", "8 bits")


def test_a_plan_beside_another_level_is_refused_before_anything_changes():
    model, args = deep()
    at_level, other = (copy.deepcopy(model) for _ in range(2))
    integrations.compress_model(at_level, "L1", memory=0.9)
    stored = gradients(at_level, *args)
    leveled = integrations.compression(at_level)._plan_manager.plan
    by_value = integrations.plan(model, args, error=0)
    refused = [
        (
            lambda: integrations.compress_model(other, "L0", checkpoint=leveled),
            r"for this level, got a plan for L1.*level='L1', and checkpoint=plan",
        ),
        (lambda: integrations.compress_model(other, "L1.1", checkpoint=leveled), "for this level, got a plan for L1"),
        (
            lambda: integrations.compress_model(other, "L1", checkpoint=by_value),
            r"Leave the level out: integrations\.apply",
        ),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
        assert "forward" not in other.__dict__
    integrations.compress_model(other, "L1", checkpoint=leveled)
    assert_same(gradients(other, *args), stored)


# ---- what cannot be met ----


def test_what_cannot_be_met_says_what_can():
    model, args = deep()
    with pytest.raises(
        ValueError, match=r"memory .*must be at least \d+ bytes .*got '1KiB'; .*smaller batch"
    ) as raised:
        integrations.plan(model, args, memory="1KiB", error=0)
    words = str(raised.value)
    for budget in (
        int(words.split("at least ")[1].split()[0]),
        float(words.split(", ")[1].split(" of the plain step's")[0]),
    ):
        assert integrations.plan(model, args, memory=budget, error=0).peak <= int(
            words.split("at least ")[1].split()[0]
        )
    with pytest.raises(ValueError, match=r"time must be at least 1\.\d+, .*memory=0\.5.*got 1"):
        integrations.plan(model, args, memory=0.5, time=1, error=0)
    integrations.compress_model(model, memory="1KiB", error=0)
    with pytest.raises(ValueError, match=r"memory .*must be at least") as raised:
        model(*args)
    assert "integrations.restore_model(model) first" in raised.value.__notes__[0]
    assert integrations.compression(model).step == 0


def test_the_least_of_both_states_is_named_once():
    """Steps that add to gradients find these there, and have no room in their place."""
    model, args = deep()
    with pytest.raises(ValueError, match=r"or \d+ bytes \(.*\) if steps accumulate gradients") as raised:
        integrations.plan(model, args, memory="1B", error=0)
    message = str(raised.value)
    assert not raised.value.__suppress_context__
    assert raised.value.__context__ is None  # one message, not one on top of another
    least = max(int(number) for number in re.findall(r"(\d+) bytes", message))
    plan = integrations.plan(model, args, memory=least, error=0)
    assert max(plan.peak, plan.accumulating.peak) <= least


def no_rounding(errors, graph, candidates, least=None):
    """Weights by which no rounding is within the bound."""
    return candidates.weighted((1e6,) * len(graph.values))


@pytest.mark.parametrize("fallback", ["error", "least"])
def test_what_cannot_be_met_by_what_is_measured_takes_the_least_memory(fallback, monkeypatch):
    """Of inputs that come later; they do not run without a plan."""
    model, (x,) = deep()
    integrations.compress_model(model, memory=0.25, error=0.1, fallback=fallback)
    gradients(model, x)
    monkeypatch.setattr(ErrorModel, "least_shares", lambda *given, **more: {})
    monkeypatch.setattr(ErrorModel, "weigh", no_rounding)
    larger = normal(2 * len(x), x.shape[1])
    if fallback == "error":
        found = (
            r"inputs 512x64 keeps to memory=0\.25: .*error=0\.1 must be at least .*Pass fallback='least' to continue"
        )
        with pytest.raises(ValueError, match=found):
            model(larger)
        return
    with pytest.warns(UserWarning, match=r"keeps to memory=0\.25: the plan with the least activation peak, .* is used"):
        gradients(model, normal(2 * len(x), x.shape[1]))
    plan = integrations.compression(model)._plan_manager.plan
    assert plan.graph.inputs.shapes == ((2 * len(x), x.shape[1]),)
    assert not plan.is_bounded


def test_what_does_not_fit_is_said_in_the_bounds_that_were_asked_for():
    model, (x,) = deep()
    followed = integrations.plan(model, (x,), time=1.2, error=0)
    asked = Bounds(time=1.2, fallback="least")
    with pytest.warns(UserWarning, match=r"keeps to time=1\.2: the plan with the least"):
        Plans(followed, "replan", asked)._exceed_bounds(followed, followed.graph.inputs)
