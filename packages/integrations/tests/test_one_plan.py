"""``integrations.plan``, ``apply`` and ``compress_model(memory=...)``: what they may be asked, and that it is kept."""

import copy
import json
import pickle
import re
from dataclasses import replace

import pytest
from torch import nn

import integrations
from integrations import checkpoint
from integrations._measuring import bounded
from integrations._planning import alternatives
from integrations._planning.bounds import WAYS, Bounds
from integrations._planning.plans import Plans
from integrations._step.costs.calibrating import calibrated
from integrations.rules.stores import Store

from .nets import assert_same, gradients, normal
from .recompute_levels import deep, deep_net, flat


@pytest.fixture(autouse=True)
def python_takes_no_time(monkeypatch):
    """That of a forward which follows a plan, several times a step of models so small."""

    def rating(device, dtype):
        rates = calibrated(device, dtype)
        return replace(rates, host=replace(rates.host, follow=0.0))

    monkeypatch.setattr(bounded, "calibrated", rating)


def exact_of(model, args):
    """Of a copy of the model, without any plan."""
    return gradients(copy.deepcopy(model), *args)


# ---- what may be asked ----

WRONG = [
    ({"memory": True}, TypeError, "memory must be bytes as an int, a string such as '4GiB', or a fraction, got True"),
    ({"memory": "much"}, ValueError, "memory must be a number with a unit such as '4GiB'.*got 'much'"),
    ({"memory": "8"}, ValueError, "memory must have a unit as a string, such as '4GiB', or '8B' for bytes"),
    ({"memory": 1.5}, ValueError, r"memory must be in \(0, 1\] as a fraction.*bytes are an int"),
    ({"memory": -1}, ValueError, "memory must not be negative, got -1"),
    ({"time": "1.1"}, TypeError, "time must be"),
    ({"time": 0.9}, ValueError, "time must be .*got 0.9"),
    ({"error": "none"}, TypeError, "error must be"),
    ({"error": 1.0}, ValueError, "error must be .*got 1.0"),
    ({"error": float("nan")}, ValueError, "error must be .*got nan"),
    (
        {"stores": "bits"},
        TypeError,
        r"stores must be several of 'recompute'.*got the string 'bits'; for one, \('bits',\)",
    ),
    ({"stores": [3]}, TypeError, "stores must be several of .*got 3 among them"),
    ({"stores": ["disk"]}, ValueError, "stores must be several of .*or of forms such as '8 bits', got 'disk'"),
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
        ({"memory": 0.5, "checkpoint": "optimal"}, "checkpoint must be None beside memory, time, error and stores"),
        ({"memory": 0.5, "level": "L1", "error": 0.2}, "error must be None beside level L1,.*leave out the level"),
        ({"memory": 0.9, "bits": 4, "error": 0}, "error must be None beside level L0 with bits=4,.*got 0; leave out"),
        ({"memory": 0.9, "level": "L0", "bits": 2, "error": 0.001}, "error must be None beside level L0 with bits=2"),
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
    with pytest.raises(TypeError, match=r"plan must be a Plan of integrations\.plan, got str"):
        integrations.apply(model, "optimal")


def test_the_stores_that_are_allowed():
    allowed = {
        ("recompute",): [],
        ("exact",): [Store()],
        ("bits",): [Store(4), Store(8)],
        ("8 bits",): [Store(8)],
        ("host",): [Store(host=True)],
        ("bits", "host"): [Store(4), Store(8), Store(host=True), Store(4, host=True)],
        ("slopes",): [Store(slope_bits=3)],
        WAYS: [Store(), Store(4), Store(8), Store(host=True), Store(4, host=True), Store(slope_bits=3)],
    }
    for ways, wanted in allowed.items():
        bounds = Bounds(stores=ways)
        assert [store for store in allowed[WAYS] if bounds.allows(store)] == wanted
        assert bounds.recomputes == ("recompute" in ways)
        exact = Bounds(error=0, stores=ways)
        assert [store for store in allowed[WAYS] if exact.allows(store)] == [store for store in wanted if store.exact]
    assert Bounds(stores=["8 bits", "exact", "8 bits", "recompute"]).stores == ("recompute", "exact", "8 bits")


# ---- what comes of it ----


@pytest.mark.parametrize("asked", [{"memory": 0.5}, {"time": 1.15}, {}, {"memory": 0.6, "time": 1.3}], ids=str)
def test_exact_plans_are_kept_and_change_no_gradient(asked):
    model, args = deep()
    plain = exact_of(model, args)
    plan = integrations.plan(model, args, **asked, error=0)
    if "memory" in asked:
        assert plan.peak <= asked["memory"] * plan.plain_peak
    if "time" in asked:
        assert 1 + plan.overhead <= asked["time"]
    assert plan.segments
    assert plan.choice.error == 0
    assert_same(gradients(integrations.apply(model, plan), *args), plain)
    assert checkpoint.plan_of(model) in (plan, plan.accumulating)
    assert integrations.compression(model).report().recomputed_bytes > 0
    integrations.restore_model(model)
    assert "forward" not in model.__dict__


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("budget", [0.5, 1.0])
def test_a_budget_is_planned_for_at_the_first_forward(budget):
    model, args = deep()
    plain = exact_of(model, args)
    integrations.compress_model(model, memory=budget, error=0, strict=True)
    handle = integrations.compression(model)
    assert handle.recomputing.plan is None
    assert_same(gradients(model, *args), plain)
    plan = handle.recomputing.plan
    assert plan.peak <= budget * plan.plain_peak
    assert handle.name == f"{type(model).__name__} at plan(memory={budget}, error=0)"
    assert f"plan(memory={budget}, error=0)" in handle.report().title


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
    with pytest.raises(ValueError, match="in steps that add to gradients") as raised:
        integrations.plan(model, args, memory=1, error=0)
    message = str(raised.value)
    assert "a fraction is a float" in message
    assert not raised.value.__suppress_context__
    assert raised.value.__context__ is None  # one message, not one on top of another
    least = max(int(number) for number in re.findall(r"(\d+) bytes", message))
    plan = integrations.plan(model, args, memory=least, error=0)
    assert max(plan.peak, plan.accumulating.peak) <= least


def test_a_plan_that_rounds_nothing_is_searched_for_once(monkeypatch):
    """The one for gradients that are there already is not asked for."""
    model, args = deep()
    searched = []
    found = alternatives._searched
    monkeypatch.setattr(alternatives, "_searched", lambda *given: searched.append(given) or found(*given))
    plan = integrations.plan(model, args, memory=0.9, error=0)
    assert not searched
    assert plan.accumulating is not plan
    assert len(searched) == 1


def test_nothing_is_recomputed_where_it_may_not_be():
    model, args = deep()
    plan = integrations.plan(model, args, error=0, stores=("exact",))
    assert plan.stores == ("exact",)
    assert plan.segments == ()


def test_the_state_is_taken_over():
    model, args = deep()
    twin = copy.deepcopy(model)
    integrations.compress_model(model, memory="600 KiB", time=1.5, error=0, stores=("recompute", "exact"))
    gradients(model, *args)
    state = json.loads(json.dumps(integrations.compression(model).state_dict()))
    integrations.compress_model(twin, memory=0.9)
    integrations.compression(twin).load_state_dict(state)
    recomputing = integrations.compression(twin).recomputing
    assert recomputing.asked == Bounds("600 KiB", 1.5, 0, ("recompute", "exact"))
    assert recomputing.plan == integrations.compression(model).recomputing.plan
    assert_same(gradients(model, *args), gradients(twin, *args))
    for damaged in ({"memory": 2.0}, {"disk": 1}):
        before = integrations.compression(twin).state_dict()
        wrong = {
            **state,
            "recomputing": {**state["recomputing"], "asked": {**state["recomputing"]["asked"], **damaged}},
        }
        with pytest.raises(ValueError, match=r"memory must be in|bounds must have memory, time, error and stores"):
            integrations.compression(twin).load_state_dict(wrong)
        assert integrations.compression(twin).state_dict() == before


def test_what_cannot_be_met_by_what_is_measured_takes_the_least_memory(monkeypatch):
    """Of inputs that come later; they do not run without a plan."""
    model, (x,) = deep()
    integrations.compress_model(model, memory=0.2, error=0.1)
    gradients(model, x)
    monkeypatch.setattr(bounded, "measured_error", lambda *given: 1e6)  # so that no rounding fits
    with pytest.warns(UserWarning, match=r"fits the budget 0\.2: the least activation peak, .* is taken"):
        gradients(model, normal(2 * len(x), x.shape[1]))
    plan = integrations.compression(model).recomputing.plan
    assert plan.graph.inputs.shapes == ((2 * len(x), x.shape[1]),)
    assert not plan.is_bounded


def test_what_does_not_fit_is_said_in_the_bounds_that_were_asked_for():
    model, (x,) = deep()
    followed = integrations.plan(model, (x,), time=1.2, error=0)
    plans = Plans(followed, "replan")
    with pytest.warns(UserWarning, match=r"fits time=1\.2: the least"):
        plans._tell_of_excess(followed)


def test_a_plan_beside_another_level_is_refused_before_anything_changes():
    model, args = deep()
    at_level, other = (copy.deepcopy(model) for _ in range(2))
    integrations.compress_model(at_level, "L1", memory=0.9)
    stored = gradients(at_level, *args)
    leveled = integrations.compression(at_level).recomputing.plan
    by_value = integrations.plan(model, args, error=0)
    refused = [
        (
            lambda: integrations.apply(other, leveled),
            r"for this level, got one for L1.*level='L1', and checkpoint=plan",
        ),
        (lambda: integrations.compress_model(other, "L1.1", checkpoint=leveled), "for this level, got one for L1"),
        (
            lambda: integrations.compress_model(other, "L1", checkpoint=by_value),
            r"leave out the level: integrations\.apply",
        ),
    ]
    for call, message in refused:
        with pytest.raises(ValueError, match=message):
            call()
        assert "forward" not in other.__dict__
    integrations.compress_model(other, "L1", checkpoint=leveled)
    assert_same(gradients(other, *args), stored)


def test_copies_have_the_plan():
    model, args = deep()
    integrations.compress_model(model, memory=0.5, error=0)
    found = gradients(model, *args)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert integrations.compression(twin).recomputing.plan == integrations.compression(model).recomputing.plan
        assert_same(gradients(twin, *args), found)


# ---- with an error ----


@pytest.mark.filterwarnings("error::UserWarning")
def test_an_error_buys_memory_and_is_kept():
    """Below the least that is exact; and the measured error is within the bound, since the plan was made with it."""
    model, args = deep()
    plain = flat(exact_of(model, args))
    exact = integrations.plan(model, args, error=0)
    budget = exact.peak * 4 // 5
    integrations.compress_model(model, memory=budget, error=0.2)
    found = flat(gradients(model, *args))
    handle = integrations.compression(model)
    plan = handle.recomputing.plan
    assert plan.peak <= budget < exact.peak
    assert 0 < plan.measured <= 0.2
    assert handle.gradient_error() == integrations.GradientError(plan.measured, measured=True)
    assert 0 < (found - plain).norm() / plain.norm() < 0.4  # of another loss, and one draw of the noise
    assert "as measured" in str(plan)


def test_both_bounds_leave_the_least_error():
    model, args = deep()
    least = integrations.plan(model, args, error=0).peak
    loose = integrations.plan(model, args, memory=least, error=0.2, measure=False)
    tight = integrations.plan(model, args, memory=least, time=1 + 2 * loose.overhead, error=0.2, measure=False)
    assert tight.choice.error <= loose.choice.error
    assert tight.error == 0.2
    assert tight.stores == WAYS
    assert tight.measured is None


def test_a_level_is_the_only_store_that_rounds():
    model, args = deep()
    integrations.compress_model(model, level="L1", memory=0.26, min_bytes=0)
    gradients(model, *args)
    found = integrations.compression(model)
    assert found.recomputing.plan.level == found.level
    assert "as the level says" in str(found.recomputing.plan)
    assert {row.codec.split("(")[0] for row in found.report().rows} <= {"GroupAffine", "recomputed", "kept", "Raw", "-"}
    integrations.restore_model(model)
    integrations.compress_model(model, level="L1", memory="1KiB")
    with pytest.raises(ValueError, match=r"memory must be a budget of at least \d+ bytes .* at this level"):
        model(*args)


def test_other_inputs_are_planned_for_within_the_same_bounds():
    model, args = deep()
    integrations.compress_model(model, memory=0.3, error=0.2, stores=("recompute", "bits"))
    gradients(model, *args)
    recomputing = integrations.compression(model).recomputing
    gradients(model, normal(512, 64))
    plan = recomputing.plans.last
    assert plan.graph.inputs.shapes == ((512, 64),)
    assert (plan.memory, plan.error, plan.stores) == (0.3, 0.2, ("recompute", "bits"))
    assert 0 < plan.measured <= 0.2


# ---- several inputs ----


def test_one_plan_for_several_inputs(tmp_path):
    """Two of which neither is within the other, and one that is within both."""
    layers = [nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*layers).train()
    wide, high, small = normal(2, 8, 16, 64), normal(2, 8, 48, 16), normal(1, 8, 16, 16)
    alone = [integrations.plan(model, one, memory=0.7, error=0) for one in (wide, high)]
    plan = integrations.plan(model, [small, (high,), wide, wide], memory=0.7, error=0)
    assert [plan.graph.inputs, *(other.graph.inputs for other in plan.also)] == [one.graph.inputs for one in alone]
    allowed = 0.7 * alone[0].plain_peak  # of the larger step, which is the wide one's
    assert max(plan.peak, *(other.peak for other in plan.also)) <= allowed
    assert plan.also[0].seconds <= alone[1].seconds  # has more memory than by itself
    less = plan.within(0.6)
    assert max(less.peak, *(other.peak for other in less.also)) <= 0.6 * plan.plain_peak
    path = tmp_path / "plan.json"
    plan.save(path)
    loaded = integrations.checkpoint.Plan.load(path)
    assert (loaded, loaded.also) == (plan, plan.also)
    integrations.apply(model, loaded)
    for one, planned in ((wide, plan), (high, plan.also[0]), (small, plan.also[0])):
        gradients(model, one)
        assert checkpoint.plan_of(model).graph.inputs == planned.graph.inputs


def test_what_was_measured_goes_with_a_plan_for_several_inputs():
    """Of either, for steps that make gradients and for such as add to them."""
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU()))).train()
    plan = integrations.plan(model, [normal(256, 64), normal(16, 16, 64)], error=0.1, stores=("bits",))
    carried = integrations.checkpoint.Plan.from_json(plan.to_json())
    wider = plan.within(memory=1.0)
    assert len(plan.also) == 1
    for one in (plan, *plan.also):
        assert one.measured is not None
        assert one.accumulating.measured is not None
    for one, other in zip((plan, *plan.also), (carried, *carried.also), strict=True):
        assert other.accumulating == one.accumulating
    assert wider.within().accumulating.measured == plan.accumulating.measured


# ---- what a plan says ----


def test_a_plan_explains_itself(tmp_path):
    model = deep_net()
    _, args = deep()
    plan = integrations.plan(model, args, memory=0.5, error=0)
    text = str(plan)
    page = tmp_path / "plan.html"
    plan.page(page)
    html = page.read_text(encoding="utf-8")
    for words in ("recomputed", "kept"):
        assert words in text
        assert words in html
    assert "$" not in html.split("<script>")[0]
    assert "src=" not in html  # it needs nothing else
    assert "href" not in html


def test_a_forward_that_nothing_need_be_done_for_runs_by_itself():
    """A memory that the plain step keeps to: the first forward is looked at, for the report, and no other."""
    model, args = deep()
    integrations.compress_model(model, memory="1GiB")
    handle = integrations.compression(model)
    for _ in range(3):
        model.zero_grad()
        model(*args).sum().backward()
    assert handle.step == 1
    assert {row.codec for row in handle.report().rows if not row.owner} == {"kept"}
    copied = copy.deepcopy(model)
    copied(*args).sum().backward()
    assert integrations.compression(copied).step == 2
