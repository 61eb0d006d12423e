"""Plans of ``integrations.plan``, ``apply`` and ``compress_model(memory=...)`` keep to what was asked."""

import copy
import json
import pickle
import re

import pytest
from torch import nn

import integrations
from integrations import checkpoint
from integrations.planner import alternatives
from integrations.planner.bounds import WAYS, Bounds

from .nets import assert_same, gradients, normal
from .recompute_levels import deep, deep_net, flat

pytestmark = pytest.mark.usefixtures("following_takes_no_time")


def exact_of(model, args):
    """Of a copy of the model, without any plan."""
    return gradients(copy.deepcopy(model), *args)


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
    assert handle._plan_manager.plan is None
    assert_same(gradients(model, *args), plain)
    plan = handle._plan_manager.plan
    assert plan.peak <= budget * plan.plain_peak
    assert handle.name == f"{type(model).__name__} at plan(memory={budget}, error=0)"
    assert f"plan(memory={budget}, error=0)" in handle.report().title


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
    recomputing = integrations.compression(twin)._plan_manager
    assert recomputing.asked == Bounds("600 KiB", 1.5, 0, ("recompute", "exact"))
    assert recomputing.plan == integrations.compression(model)._plan_manager.plan
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


def test_copies_have_the_plan():
    model, args = deep()
    integrations.compress_model(model, memory=0.5, error=0)
    found = gradients(model, *args)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert integrations.compression(twin)._plan_manager.plan == integrations.compression(model)._plan_manager.plan
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
    plan = handle._plan_manager.plan
    assert plan.peak <= budget < exact.peak
    assert "not measured yet" in handle.report().recomputed
    gradients(model, *args)
    assert 0 < handle.measured.relative <= 0.2
    assert handle.gradient_error() == handle.measured
    assert 0 < (found - plain).norm() / plain.norm() < 0.4  # of another loss, and one draw of the noise
    planned = integrations.plan(deep()[0], args, memory=budget, error=0.2)
    assert 0 < planned.measured <= 0.2
    assert "as measured" in str(planned)


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
    assert found._plan_manager.plan.level == found.level
    assert "as the level says" in str(found._plan_manager.plan)
    assert {row.codec.split("(")[0] for row in found.report().rows} <= {"GroupAffine", "recomputed", "kept", "Raw", "-"}
    integrations.restore_model(model)
    integrations.compress_model(model, level="L1", memory="1KiB")
    with pytest.raises(ValueError, match=r"memory must be a budget of at least \d+ bytes .* at this level"):
        model(*args)


def test_other_inputs_are_planned_for_within_the_same_bounds():
    model, args = deep()
    integrations.compress_model(model, memory=0.3, error=0.2, stores=("recompute", "bits"))
    gradients(model, *args)
    recomputing = integrations.compression(model)._plan_manager
    gradients(model, normal(512, 64))
    plan = recomputing.plans.last
    assert plan.graph.inputs.shapes == ((512, 64),)
    assert (plan.memory, plan.error, plan.stores) == (0.3, 0.2, ("recompute", "bits"))
    assert 0 < plan.choice.error <= 0.2


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
    assert len(plan.also) == 1
    for one in (plan, *plan.also):
        assert one.measured is not None
        assert one.accumulating.choice.rounds
    for one, other in zip((plan, *plan.also), (carried, *carried.also), strict=True):
        assert other.accumulating == one.accumulating


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
    assert not re.search(r'href=(?!"#)', html)


def test_a_forward_that_nothing_need_be_done_for_runs_by_itself():
    """A memory that the plain step keeps to: the first three forwards are watched, for the report and in case memory
    runs out, and no other."""
    model, args = deep()
    integrations.compress_model(model, memory="1GiB")
    handle = integrations.compression(model)
    for _ in range(5):
        model.zero_grad()
        model(*args).sum().backward()
    assert handle.step == 3
    assert {row.codec for row in handle.report().rows if not row.owner} == {"kept"}
    copied = copy.deepcopy(model)
    copied(*args).sum().backward()
    assert integrations.compression(copied).step == 4
