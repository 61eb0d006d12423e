"""Plans: the budget is kept and used, regions are planned once, the plan is explained, saved and refused by others."""

import copy
import itertools
import random
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine
from integrations.planner.sensitivity.bit_plan import BitPlan, plan_of
from integrations.planner.sensitivity.identity import Identity
from integrations.planner.sensitivity.measurement import Measurement, Sensitivity, compute_mean

from .nets import Net, mlp, normal, rows

X = normal(48, 64)


def tensor(place, cost, numel=4096, why=""):
    """A stored copy with ``cost`` at unit step."""
    sizes = tuple(GroupAffine(bits).stored_bytes(numel, torch.float32) for bits in range(1, 9))
    energies = tuple(1 / (2**bits - 1) ** 2 for bits in range(1, 9))
    costs = () if why else tuple(cost * energy for energy in energies)
    return Sensitivity((Identity(f"layers.{place}", "linear", "input", 0),), numel, energies, costs, sizes, why)


def measured(*costs, **options):
    return Measurement(tuple(tensor(place, cost, **options) for place, cost in enumerate(costs)), 100.0)


@pytest.fixture
def adapted():
    model = integrations.compress_model(mlp(depth=4), "L2")
    with torch.no_grad():
        model[6].weight.mul_(100)  # gradients below are as much larger
    handle = integrations.compression(model)
    handle.adapt(lambda: model(X).square().mean().backward())
    return model, handle


# ---- the budget ----


def test_what_matters_more_gets_more_bits():
    plan = plan_of(measured(1.0, 1e4, 1e-4), bits=4, step=0)
    bits = [entry.bits for entry in plan.allotments]
    assert bits[2] < bits[0] < bits[1]
    assert plan.nbytes <= plan.budget == 3 * GroupAffine(4).stored_bytes(4096, torch.float32)


def test_no_plan_takes_more_than_its_budget_or_is_worse_than_its_bound():
    draw = random.Random(0)
    for _ in range(20):
        tensors = [tensor(i, 10 ** draw.uniform(-3, 3), draw.choice([300, 4096, 70_000])) for i in range(5)]
        plan = plan_of(Measurement(tuple(tensors), 1.0), bits=draw.randint(1, 8), step=0)
        assert plan.nbytes <= plan.budget
        least = min(
            sum(one.costs[bits] for one, bits in zip(tensors, chosen, strict=True))
            for chosen in itertools.product(range(8), repeat=5)
            if sum(one.sizes[bits] for one, bits in zip(tensors, chosen, strict=True)) <= plan.budget
        )
        found = sum(entry.error for entry in plan.allotments)
        assert least * (1 - 1e-9) <= found <= least * (1 + plan.gap) * (1 + 1e-9)


def test_equal_tensors_get_the_levels_bits():
    assert [entry.bits for entry in plan_of(measured(1.0, 1.0, 1.0), bits=3, step=0).allotments] == [3, 3, 3]


def test_few_bits_cost_more_where_the_model_bends():
    """At one bit attention does four times the harm that a model linear in the error says, a LayerNorm twice."""
    names = {"linear": "input", "layer_norm": "input", "scaled_dot_product_attention": "recomputed"}
    tensors = [
        replace(tensor(0, 1.0), identities=(Identity("a", operator, role, 0),)) for operator, role in names.items()
    ]
    for bits, expected in ((1, [1, 2, 4]), (2, [1, 1, 1.5]), (3, [1, 1, 1])):
        plans = [plan_of(Measurement((one,), 1.0), bits=bits, step=0) for one in tensors]
        assert [plan.allotments[0].error * (2**bits - 1) ** 2 for plan in plans] == pytest.approx(expected)


def test_a_tensor_that_was_not_measured_is_taken_for_a_usual_one():
    plan = plan_of(Measurement((*measured(1.0, 1.0).tensors, tensor(2, 0, why="it went away")), 1.0), bits=4, step=0)
    assert plan.allotments[2].bits == 4
    assert "it went away" in plan.allotments[2].why


def test_nothing_that_matters_is_no_error():
    assert plan_of(measured(0.0, 0.0), bits=4, step=0).relative_error == 0


def test_the_model_stores_what_the_plan_says(adapted):
    model, handle = adapted
    model(X)
    plan = handle.plan
    assert len({entry.bits for entry in plan.allotments}) > 1
    stored = sum(row.stored_bytes for row in rows(model) if row.codec.startswith("GroupAffine"))
    assert stored == plan.nbytes <= plan.budget
    by_module = {row.module: row.codec for row in rows(model, "linear")}
    for entry in plan.allotments:
        assert f"bits={entry.bits}," in by_module[entry.identities[0].module]


def shared(self, x):
    hidden = x @ self.first
    return (hidden @ self.second) + (hidden @ self.third)


def test_views_of_one_storage_are_planned_once():
    weights = {name: normal(64, 64, seed=seed) for seed, name in enumerate(("first", "second", "third"))}
    model = integrations.compress_model(Net(shared, **weights), "L2")
    plan = integrations.compression(model).adapt(lambda: model(X).square().mean().backward())
    (entry,) = plan.allotments
    assert [identity.occurrence for identity in entry.identities] == [1, 2]  # 0 is the product with the input
    model(X)
    assert sum(row.stored_bytes for row in rows(model)) == entry.nbytes


def test_a_tensor_that_the_plan_does_not_know_gets_the_levels_bits():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.wide = mlp(depth=2), mlp(depth=2), False

        def forward(self, x):
            return self.two(self.one(x)) if self.wide else self.one(x)

    model = integrations.compress_model(Branching(), "L2", bits=5)
    integrations.compression(model).adapt(lambda: model(X).square().mean().backward())
    model.wide = True
    model(X).square().mean().backward()
    assert [row.codec for row in rows(model, "linear") if row.module == "two.2"] == [str(GroupAffine(5))]


# ---- the mean of measurements ----


def test_the_mean_of_measurements_is_over_those_that_saw_the_tensor():
    mean = compute_mean([measured(1.0, 4.0), measured(3.0)])
    assert [tensor.costs[0] for tensor in mean.tensors] == [2.0, 4.0]


def test_a_measurement_with_an_overflow_is_no_measurement():
    assert not measured(1.0, float("inf")).finite
    assert measured(1.0).finite


def test_a_step_that_overflows_leaves_the_plan_to_the_next():
    model = integrations.compress_model(mlp(), "L2")
    handle = integrations.compression(model)
    for scale in (1.0, float("inf")):
        (model(X).square().mean() * scale).backward()
    assert handle.plan is None
    model(X).square().mean().backward()
    assert handle.plan.step == 2


# ---- for people, and for files ----


def test_a_plan_explains_itself(adapted):
    _, handle = adapted
    text = str(handle.plan)
    assert "2: linear input" in text
    assert "bits an element" in text
    assert "least error of the gradient" in text


def test_the_report_says_where_the_bits_come_from(adapted):
    model, handle = adapted
    assert "Bits by the plan that was made in step 0" in str(handle.report())
    model(X)
    assert all("bits by the plan" in row.why for row in rows(model, "linear"))
    for level, said in (("L2", True), ("L1", False)):
        fresh = integrations.compress_model(mlp(), level)
        fresh(X)
        assert ("No plan yet" in str(integrations.compression(fresh).report())) == said


def test_a_plan_survives_as_plain_values(adapted):
    plan = adapted[1].plan
    assert BitPlan.of(copy.deepcopy(plan.plain())) == plan


@pytest.mark.parametrize(
    "damage",
    [
        lambda plain: plain.pop("budget"),
        lambda plain: plain["allotments"][0].pop("bits"),
        lambda plain: plain["allotments"][0].update(bits=9),
        lambda plain: plain["allotments"][0].update(bits=True),
        lambda plain: plain["allotments"][0].update(identities=[["one", "linear"]]),
        lambda plain: plain.update(allotments=3),
    ],
)
def test_a_damaged_plan_is_refused(adapted, damage):
    plain = copy.deepcopy(adapted[1].plan.plain())
    damage(plain)
    with pytest.raises(ValueError, match="plan"):
        BitPlan.of(plain)


def test_a_plan_of_another_model_names_what_is_not_there(adapted):
    other = integrations.compression(integrations.compress_model(mlp(depth=2), "L2"))
    with pytest.raises(ValueError, match=r"Sequential has no modules for 2 of its tensors: 4: linear input, 6: linear"):
        other.load_state_dict(adapted[1].state_dict())
    assert other.plan is None


def sized(width):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64))
    return model, integrations.compression(integrations.compress_model(model, "L2"))


def test_a_plan_of_a_model_of_other_sizes_is_refused():
    """Whose modules have the same names; not so where the batch is another."""
    model, handle = sized(256)
    for _ in range(2):
        model(X).sum().backward()
    state = copy.deepcopy(handle.state_dict())
    _, other = sized(512)
    message = (
        r"0\.weight of Sequential has shape \[512, 64\], and \[256, 64\] in the plan's model \(parameters that "
        r"differ: 3\)"
    )
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(state)
    assert (other.plan, other.step) == (None, 0)
    same, resumed = sized(256)
    resumed.load_state_dict(state)
    same(X[:24]).sum().backward()
    assert resumed.plan == handle.plan


def test_a_measurement_that_is_not_planned_yet_is_refused_by_a_model_of_other_sizes():
    model, handle = sized(256)
    for _ in range(2):
        model(X).sum().backward()
    adapter = handle._adapter
    adapter._settle_alone = lambda level: adapter._collect()  # as where ranks settle it in their next forward
    state = handle.state_dict()
    assert state["adaptive"]["found"] is not None
    with pytest.raises(ValueError, match=r"0\.weight of Sequential has shape"):
        sized(512)[1].load_state_dict(state)


def test_a_plan_that_is_no_mapping_is_refused_in_words(adapted):
    state = adapted[1].state_dict()
    with pytest.raises(ValueError, match=r"plan must be what state_dict returned, of another form than 'x'"):
        adapted[1].load_state_dict({**state, "adaptive": {**state["adaptive"], "plan": "x"}})


@pytest.mark.parametrize("damage", [{"adaptive": None}, {"adaptive": 3}, {"adaptive": {"plan": None}}])
def test_an_adaptive_state_without_its_parts_is_refused(adapted, damage):
    before = adapted[1].state_dict()
    with pytest.raises(ValueError, match="state"):
        adapted[1].load_state_dict({**before, **damage})
    assert adapted[1].state_dict() == before


def test_levels_of_fixed_bits_have_no_plan():
    model = integrations.compress_model(mlp(), "L1")
    handle = integrations.compression(model)
    for _ in range(3):
        model(X).sum().backward()
    assert handle.plan is None
    with pytest.raises(ValueError, match="level must be adaptive"):
        handle.adapt(lambda: F.mse_loss(model(X), X).backward())
