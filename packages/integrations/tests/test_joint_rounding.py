"""Plans that round, of joint graphs under inductor: budgets below what exact plans take, and bounds on the error."""

import copy

import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint
from integrations.runtime.compiled import partition, tagging
from integrations.runtime.compiled.joint_plans import JOINT
from integrations.runtime.compiled.joint_search import JointSearch, make_candidates

from .joint_nets import Attention, Block, convolutions
from .nets import normal

pytestmark = pytest.mark.usefixtures("fresh_compiler")
ERROR = 0.1


class RootMeanSquare(nn.Module):
    """A norm out of several operators, whose ``rsqrt`` would amplify a rounding of what it reads."""

    def __init__(self, width=32):
        super().__init__()
        self.weight, self.up, self.down = nn.Parameter(torch.ones(width)), nn.Linear(width, 64), nn.Linear(64, width)

    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x + self.down(torch.nn.functional.silu(self.up(self.weight * (x * scale))))


NETS = {
    "attention": (lambda: nn.Sequential(*(layer for _ in range(3) for layer in (Attention(), Block()))), (16, 32, 32)),
    "convolutions": (lambda: nn.Sequential(*(convolutions()[place] for place in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9))), 0),
    "root mean square": (lambda: nn.Sequential(*(RootMeanSquare() for _ in range(6))), (16, 32, 32)),
}
IMAGES = (8, 3, 24, 24)


def build(name):
    make, shape = NETS[name]
    torch.manual_seed(0)
    return make().train(), normal(*(shape or IMAGES))


def gradient(model, function, x):
    """All gradients of a step in one vector."""
    model.zero_grad()
    function(x).square().mean().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def compress(model, memory, error=ERROR):
    integrations.compress_model(model, memory=memory, error=error)
    return torch.compile(model)


def find_joint(model):
    """What the graph of the last step has found."""
    plan = checkpoint.plan_of(model)
    return next(one.others[JOINT] for one in (plan.clearing, plan.accumulating, plan) if JOINT in one.others)


def find_exact_least(name):
    """The bytes of the least plan that rounds nothing."""
    model, x = build(name)
    function = compress(model, "least", error=0)
    gradient(model, function, x)
    torch.compiler.reset()
    return find_joint(model).peak


@pytest.fixture
def chosen(monkeypatch):
    """The choices that were searched, in order."""
    found, search = [], JointSearch.search

    def noted(self, gm, most):
        found.append(search(self, gm, most)[0])
        return search(self, gm, most)

    monkeypatch.setattr(JointSearch, "search", noted)
    return found


@pytest.mark.parametrize("name", NETS)
def test_less_than_every_exact_plan_takes_within_the_error(name, chosen):
    budget = int(0.85 * find_exact_least(name))
    model, x = build(name)
    plain = copy.deepcopy(model)
    exact = gradient(plain, plain, x)
    function = compress(model, budget)
    steps = [gradient(model, function, x) for _ in range(4)]
    joint = find_joint(model)
    assert joint.rounded > 0
    assert joint.peak <= budget
    assert joint.variance <= ERROR**2
    errors = [((step - exact).norm() / exact.norm()).item() for step in steps]
    assert 0 < max(errors) < ERROR
    assert (steps[1] - steps[2]).norm() > 0  # each with noise of its own
    # Rounding is at random, and has no bias: the mean of four steps with noise of their own is nearer, at best twice.
    mean = (sum(steps) / len(steps) - exact).norm() / exact.norm()
    assert mean < 0.8 * max(errors)
    exacts = {value for one in chosen for value in one.schedule.stores if one.schedule.graph.values[value].exact}
    assert not exacts


def test_what_fits_exactly_in_less_time_is_not_rounded():
    model, x = build("attention")
    plain = copy.deepcopy(model)
    function = compress(model, 0.99)
    found = gradient(model, function, x)
    assert find_joint(model).rounded == 0
    assert torch.allclose(found, gradient(plain, plain, x), rtol=1e-3, atol=1e-6)


def test_on_another_path_values_take_eight_bits(monkeypatch, chosen):
    monkeypatch.setattr(tagging, "is_same_path", lambda planned, traced: False)
    model, x = build("attention")
    integrations.compress_model(model, memory="least", error=ERROR, fallback="least")
    gradient(model, torch.compile(model), x)
    stores = {store for one in chosen for store in one.schedule.stores.values()}
    assert stores
    assert {store.bits for store in stores} == {8}


def test_what_the_eager_step_does_not_have_is_not_computed_from_rounded_values(monkeypatch):
    """A weight beyond all bounds, as soon as the nodes of a value do not tell which it is."""
    seen = []

    def noted(step, plan, barred):
        before = make_candidates(step, plan, barred)
        value = next(
            number for number, one in enumerate(step.graph.values) if one.saved >= 0 and before.options[number]
        )
        for node in step.nodes[value]:
            node.meta.pop("actcore_value", None)
        after = make_candidates(step, plan, barred)
        seen.append((before.weights[value], after.weights[value], after.options[value]))
        return after

    monkeypatch.setattr("integrations.runtime.compiled.joint_search.make_candidates", noted)
    model, x = build("attention")
    gradient(model, compress(model, 0.9), x)
    before, after, options = seen[0]
    assert before < 1e3
    assert after >= 1e9
    assert options == ()


def test_what_would_be_kept_exactly_is_not_planned_in_bits(monkeypatch):
    """The next search knows it: of a value for which backward has no rule, say."""
    unfit, barred = partition._find_unfit, []

    def first_one(choice, backward, stored):
        found = unfit(choice, backward, stored)
        names = {node.name for value in choice.schedule.stores for node in choice.step.nodes[value]}
        barred.append((set(names), {min(names)} if names and not barred else found))
        return barred[-1][1]

    monkeypatch.setattr(partition, "_find_unfit", first_one)
    model, x = build("attention")
    integrations.compress_model(model, memory="least", error=ERROR, fallback="least")
    gradient(model, torch.compile(model), x)
    (_, first), (second, _) = barred[:2]
    assert first
    assert first.isdisjoint(second)
