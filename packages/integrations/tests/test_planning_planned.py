"""Plans of stores: what is chosen within memory, time and error, and what a file has of it."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

import integrations
from actcore import simulate
from integrations import checkpoint
from integrations.capture.costs.rates import constant
from integrations.planner.bounds import Bounds
from integrations.planner.choice import Choice, make_mask
from integrations.planner.plan import Plan
from integrations.planner.plan_with_stores import planned
from integrations.planner.problem import training_step
from integrations.policies.levels import LEVELS
from integrations.policies.stores import Store

from .graphs import Block
from .nets import normal

BASE = LEVELS["L0"]


def transformer():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), *(Block() for _ in range(4)), nn.Linear(64, 64)).train()


X = normal(16, 64, 64).reshape(4, 256, 64)


@pytest.fixture(scope="module")
def plan():
    return planned(transformer(), BASE, (X,), {}, Bounds(error=0.1))


@pytest.fixture(scope="module")
def exact():
    return planned(transformer(), BASE, (X,), {})


def test_every_choice_is_what_the_simulation_says(plan):
    """Of either graph, in both states of the gradients."""
    for one in (plan, plan.accumulating):
        for choice in one.front[:: max(1, len(one.front) // 8)]:
            graph, candidates = one.graph_of(choice), one.candidates_for(choice)
            forms = [-1] * len(graph.values)
            for value, store in choice.stores:
                forms[value] = candidates.options[value].index(candidates.option(value, store))
            kept, held = (
                [bool(mask >> value & 1) for value in range(len(forms))] for mask in (choice.mask, choice.held or 0)
            )
            usage = simulate(training_step(graph, candidates), kept, None if choice.held is None else held, forms)
            assert usage.peak - graph.gradients == choice.peak
            assert usage.variance == pytest.approx(choice.variance)


def test_rounding_takes_less_memory_in_the_same_time(plan, exact):
    """And is never worse: what rounds nothing is among its choices."""
    assert plan.front[0].peak < exact.front[0].peak
    assert any(choice.rounded and choice.stores for choice in plan.front)
    for choice in exact.front:
        assert any(one.peak <= choice.peak and one.seconds <= choice.seconds for one in plan.front)
    assert all(choice.variance <= 0.1**2 for choice in plan.front)
    assert all(choice.variance == 0 and not choice.rounded for choice in exact.front)
    assert all(store.exact for choice in exact.front for _, store in choice.stores)


def test_two_calls_give_equal_plans(plan):
    assert planned(transformer(), BASE, (X,), {}, Bounds(error=0.1)) == plan


def test_a_file_has_all_of_it(plan, tmp_path):
    for one in (plan, plan.accumulating, plan.within(0.5), plan.within(time=1.2)):
        one.save(tmp_path / "plan")
        found = Plan.load(tmp_path / "plan")
        if one is plan.accumulating:  # its file has the plan that it belongs to
            assert found == plan
            found = found.accumulating
        assert found == one
        assert (found.candidates, found.rounded_candidates) == (one.candidates, one.rounded_candidates)
        assert found.schedule == one.schedule
    assert Plan.from_json(plan.to_json()).accumulating == plan.accumulating


def _options(content, **changed):
    for row in content["rounded_candidates"]["rows"]:
        for option in row:
            option.update(changed)


DAMAGED = {
    "a way": (lambda content: content.update(stores=["disk"]), "stores must be a sequence of"),
    "a store": (lambda content: content["choice"].update(stores={"1 bits": "1"}), "value 0 has no store 1 bits"),
    "a graph": (lambda content: content.update(rounded=None, rounded_candidates=None), "rounded must be a graph"),
    "a model": (lambda content: content["rounded"].update(fingerprint=""), "rounded must be of the model"),
    "bytes": (lambda content: _options(content, held=-5), "held must not be negative"),
    "noise": (lambda content: _options(content, noise=float("nan")), "numbers must be finite, got NaN"),
    "weights": (lambda content: content["rounded_candidates"]["weights"].__setitem__(0, -1.0), r"weights\[0\] must be"),
    "an event": (
        lambda content: content["rounded_candidates"]["stored_at"].__setitem__(0, 10**9),
        r"stored_at\[0\] must be",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_file_whose_parts_do_not_go_together_is_refused(plan, damage):
    change, message = DAMAGED[damage]
    content = json.loads(plan.to_json())
    change(content)
    with pytest.raises(ValueError, match=message):
        Plan.from_json(json.dumps(content))


def test_plans_of_format_2_are_read():
    made = checkpoint.plan(transformer(), X, budget=0.9)
    content = json.loads(made.to_json())
    for name in (
        "memory",
        "time",
        "error",
        "level",
        "candidates",
        "rounded",
        "rounded_candidates",
        "measured",
        "unmeasured",
    ):
        content.pop(name)
    for choice in (content["choice"], *content["front"]):
        for name in ("stores", "variance", "rounded"):
            choice.pop(name)
    old = {**content, "format": 2, "budget": 0.9, "compressed": False, "stored": None}
    assert Plan.from_json(json.dumps(old)) == made
    with pytest.raises(ValueError, match="a plan for a level of format 2, which did not say how values are stored"):
        Plan.from_json(json.dumps({**old, "compressed": True}))


def test_within_memory_the_time_is_least(plan):
    found = plan.within(0.5)
    assert found.peak <= 0.5 * plan.plain_peak
    assert found.seconds == min(one.seconds for one in plan.front if one.peak <= 0.5 * plan.plain_peak)
    assert found.bounds == Bounds(0.5, None, 0.1)


def test_within_time_the_memory_is_least(plan):
    found = plan.within(time=1.1)
    assert found.overhead <= 0.1
    assert found.peak == min(one.peak for one in plan.front if one.seconds <= 0.1 * plan.plain_seconds)
    assert plan.within(time=1).peak <= plan.plain_peak


def test_within_both_the_error_is_least(plan, exact):
    loose = exact.within(time=1.5)
    found = plan.within(loose.peak, 1.5)
    assert found.choice.variance == 0
    allowed = (plan.front[0].peak + exact.front[0].peak) // 2
    fitting = [one.error for one in plan.front if one.peak <= allowed]
    tight = plan.within(allowed, 5)
    assert 0 < tight.choice.error <= min(fitting) < max(fitting)
    assert tight.peak <= allowed
    assert tight.bounds == Bounds(allowed, 5, 0.1)


def test_a_plan_within_both_still_has_the_whole_front(plan, exact):
    found = plan.within(exact.within(time=1.5).peak, 1.5)
    assert found.front == plan.front
    for asked in ({"memory": exact.front[0].peak - 1}, {"memory": 0.5}, {"time": 1.1}):
        assert found.within(**asked).choice == plan.within(**asked).choice


def test_a_smaller_error_is_another_search(plan, exact):
    assert plan.within(error=0).front == exact.front
    small = plan.within(error=0.03)
    assert all(one.error <= 0.03 * (1 + 1e-9) for one in small.front)
    assert small.within(error=0.1).front == plan.front


def test_what_is_out_of_reach_is_said_with_what_would_lower_it(plan, exact):
    small = plan.within(error=0.004)  # the plan of the least memory rounds by most of it
    least, most = sorted((small.front[0].peak, small.accumulating.front[0].peak))
    found = rf"memory with error=0.004 must be at least {least} bytes .*, or {most} bytes .* larger error"
    with pytest.raises(ValueError, match=found):
        small.within("1B")
    with pytest.raises(ValueError, match=r"time must be at least 1\.\d+, "):
        plan.within(exact.front[0].peak, 1.0)
    with pytest.raises(ValueError, match=r"memory must have a unit as a string"):
        plan.within("8")
    with pytest.raises(ValueError, match=r"time must be at least 1, the plain step's time, got 0.9"):
        plan.within(time=0.9)
    with pytest.raises(ValueError, match="error must be at least 0"):
        plan.within(error=1.5)
    with pytest.raises(ValueError, match="error must be None with a level"):
        planned(transformer(), LEVELS["L1"], (X,), {}).within(error=0.1)


class Words(nn.Module):
    """A language model of one layer, with its loss."""

    def __init__(self, classes):
        super().__init__()
        self.embedding, self.head = nn.Embedding(classes, 64), nn.Linear(64, classes)

    def forward(self, ids):
        return nn.functional.cross_entropy(self.head(self.embedding(ids)).flatten(0, 1), ids.flatten())


class Named(Words):
    """A model that names the layer of its logits, as models of transformers do."""

    def get_output_embeddings(self):
        return self.head


class Tied(Words):
    """A model without a layer that makes its logits."""

    def forward(self, ids):
        logits = nn.functional.linear(self.embedding(ids), self.embedding.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten())


@pytest.mark.parametrize(
    ("kind", "classes", "asked"),
    [(Named, 1000, "chunked"), (Words, 1000, {"head": "head"}), (Tied, 1000, None), (Named, 4, None)],
)
def test_where_logits_take_the_memory_a_loss_in_chunks_is_named(kind, classes, asked):
    """The error named ``loss="chunked"`` for all models, but it raised for those that do not name the layer."""
    ids = torch.zeros(2, 64, dtype=torch.long)
    found = planned(kind(classes), BASE, (ids,), {})
    for plan in (found, found.accumulating):
        with pytest.raises(ValueError, match="memory with error=0 must be at least") as refused:
            plan.within("1B")
        told = str(refused.value).partition("for its logits, which no plan makes smaller: loss=")[2]
        expected = "" if asked is None else f"{json.dumps(asked)} together with memory computes the loss without them"
        assert told == expected
    if asked is not None:
        model = integrations.compress_model(kind(classes), memory=1.0, error=0, loss=asked)
        model(ids).backward()
        assert integrations.compression(model)._plan_manager.plan.plain_peak < found.plain_peak


def test_stores_and_recomputation_can_be_left_out():
    model = transformer()
    found = planned(model, BASE, (X,), {}, Bounds(error=0.1, stores=("4 bits",)))
    assert found.front[0].stores
    assert {store for choice in found.front for _, store in choice.stores} == {Store(4)}
    assert all(one.segments == () for one in (replace(found, choice=choice) for choice in found.front))


def test_a_choice_knows_the_store_of_what_a_memory_holds_in_the_end():
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(inplace=True), nn.Linear(64, 64)).train()
    made = checkpoint.plan(model, X)
    [(before, after)] = [(value.reuses, number) for number, value in enumerate(made.graph.values) if value.reuses >= 0]
    choice = replace(made.choice, mask=make_mask([after]), stores=((after, Store(4)),), variance=0.04)
    found = replace(made, choice=choice)
    assert found.store_of(before) == found.store_of(after) == Store(4)
    assert choice.error == pytest.approx(0.2)
    assert Choice.from_content(json.loads(json.dumps(choice.content())), len(made.graph.values)) == choice
    assert "stores=1 values, error=0.2" in repr(choice)


def test_the_time_of_following_a_plan_is_in_its_seconds():
    """Of every choice that recomputes something. Who only stores needs no tape."""

    def rating(device, dtype):
        rates = constant(device, dtype)
        return replace(rates, host=replace(rates.host, follow=1.0))

    plans = [planned(transformer(), BASE, (X,), {}, Bounds(error=0.1), rating=one) for one in (constant, rating)]
    seconds = len(plans[0].graph.ops)
    again = [bool(choice.schedule(plans[1].graph_of(choice)).recomputed) for choice in plans[1].front]
    storing = again.index(False)
    assert 0 < storing < len(again) - 1
    assert not any(again[storing:])
    assert all(choice.seconds > seconds for choice in plans[1].front[:storing])
    assert all(choice.seconds < seconds for choice in plans[1].front[storing:])
    least = plans[1].front[storing].peak
    assert all(choice.seconds_bound <= choice.seconds for choice in plans[1].front)
    assert plans[1].front[0].seconds_bound > seconds  # with so little memory something has to be recomputed
    assert plans[1].front[-1].seconds == 0
    assert plans[1].front[-1].peak == plans[1].plain_peak
    assert [one.peak for one in plans[1].front[:3]] == [one.peak for one in plans[0].front[:3]]
    with pytest.raises(ValueError, match="time must be at least"):
        plans[1].within(least - 1, 1.5)
    assert plans[1].within(time=1.5).peak < plans[1].plain_peak
