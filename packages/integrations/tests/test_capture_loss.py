"""What backward starts from: the model's own loss, what the user says, or all that is returned."""

import pickle
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from integrations import checkpoint, compress_model
from integrations.checkpoint import Plan
from integrations.planner.plan_with_stores import planned
from integrations.policies.levels import resolve_level

from .nets import mlp, normal
from .recompute_reference import LiveBytes

CLASSES = 500
X, Y = normal(64, 16), torch.arange(64)


class Classifier(nn.Module):
    """Returns its loss and its logits, in one of the ways that people do."""

    def __init__(self, returned):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(16, CLASSES, bias=False)
        self.returned = returned

    def forward(self, x, y):
        logits = self.linear(x)
        return self.returned(F.cross_entropy(logits, y), logits)


RETURNED = {
    "mapping": (lambda loss, logits: {"logits": logits, "loss": loss}, lambda out: out["loss"]),
    "attribute": (lambda loss, logits: SimpleNamespace(loss=loss, logits=logits), lambda out: out.loss),
    "loss first": (lambda loss, logits: (loss, logits), lambda out: out[0]),
    "loss last": (lambda loss, logits: (logits, loss), lambda out: out[1]),
    "loss alone": (lambda loss, logits: loss, lambda out: out),
}


def counted(model, step):
    model.zero_grad()
    with LiveBytes() as live:
        step()
    return live.peak - sum(parameter.numel() * 4 for parameter in model.parameters())


@pytest.mark.parametrize("returned", RETURNED)
@pytest.mark.parametrize("measure", [False, True], ids=["modelled", "measured"])
def test_the_peak_is_that_of_a_step_on_the_models_own_loss(returned, measure, measured_once):
    made, read_loss = RETURNED[returned]
    model = Classifier(made).train()
    plan = checkpoint.plan(model, (X, Y), budget=1.0, measure=measure)
    found = counted(model, lambda: read_loss(model(X, Y)).backward())
    if measure:  # kernels have memory of their own, which is counted in the plan and not here
        assert plan.peak >= found
    else:
        assert plan.peak == found
    assert not plan.graph.holds_outputs
    assert "no other output stays" in str(plan)


def test_the_peak_of_a_step_that_holds_the_output():
    made, read_loss = RETURNED["mapping"]
    model = Classifier(made).train()
    plan = checkpoint.plan(model, (X, Y), budget=1.0, holds_outputs=True)

    def step():
        out = model(X, Y)
        read_loss(out).backward()

    assert plan.peak == counted(model, step)
    assert "all outputs stay" in str(plan)


def test_a_loss_of_the_loop():
    model = nn.Sequential(nn.Linear(16, CLASSES, bias=False)).train()
    plan = checkpoint.plan(model, X, budget=1.0, loss=lambda out: F.cross_entropy(out, Y))

    def step():
        out = model(X)
        F.cross_entropy(out, Y).backward()

    assert plan.peak == counted(model, step)
    assert "the tensors that criterion returned" in str(plan)


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_a_chosen_output(real):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(16, 8), nn.Linear(16, CLASSES)

        def forward(self, x):
            return self.one(x), self.other(x)

    model = Two().train()
    both = checkpoint.plan(model, X, budget=1.0, real=real)
    first = checkpoint.plan(model, X, budget=1.0, real=real, loss=lambda out: out[0])
    assert both.graph.differentiated == "every output that requires a gradient"
    assert len(first.graph.steps) < len(both.graph.steps)


class Routed(nn.Module):
    """Mixtures of experts return a loss of their router's beside what they compute."""

    def __init__(self, returned):
        super().__init__()
        self.router, self.linear, self.returned = nn.Linear(16, 4), nn.Linear(16, 16), returned

    def forward(self, x):
        return self.returned(self.linear(x), self.router(x).logsumexp(-1).mean())


@pytest.mark.parametrize(
    "returned",
    [
        lambda made, scalar: (made, scalar),
        lambda made, scalar: (scalar, made),  # a divergence and the reconstruction; a scale and features
        lambda made, scalar: {"aux_loss": scalar, "out": made},
    ],
    ids=["last", "first", "entry"],
)
def test_a_scalar_that_does_not_follow_from_the_others_is_not_the_loss(returned):
    plan = checkpoint.plan(Routed(returned).train(), X)
    assert plan.graph.differentiated == "every output that requires a gradient"
    assert plan.graph.holds_outputs


def test_the_call_of_the_paper_takes_a_loss():
    model = Routed(lambda made, scalar: (scalar, made))
    chosen = checkpoint.optimal_grad_checkpointing(model, X, loss=lambda out: out[1], holds_outputs=False)
    assert checkpoint.plan_of(chosen).graph.differentiated == "the tensors that criterion returned"
    assert not checkpoint.plan_of(chosen).graph.holds_outputs


def test_plans_for_other_inputs_start_from_the_same():
    model = nn.Sequential(nn.Linear(16, CLASSES, bias=False)).train()
    made = checkpoint.plan(model, X, loss=lambda out: out.logsumexp(-1).sum())
    checkpoint.apply(model, made)
    model(normal(128, 16)).logsumexp(-1).sum().backward()
    assert checkpoint.plan_of(model).graph.differentiated == "the tensors that criterion returned"


def test_a_plan_with_a_loss_is_saved_without_it():
    model = nn.Sequential(nn.Linear(16, CLASSES, bias=False)).train()
    made = checkpoint.plan(model, X, loss=lambda out: out.sum())
    assert Plan.from_json(made.to_json()) == made
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_saved_plan_says_that_it_has_forgotten_its_loss():
    model = nn.Sequential(nn.Linear(16, CLASSES, bias=False)).train()
    made = checkpoint.plan(model, X, loss=lambda out: out.logsumexp(-1).sum())
    checkpoint.apply(model, Plan.from_json(made.to_json()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X).logsumexp(-1).sum().backward()
    with pytest.warns(UserWarning, match="is not saved with a plan: for inputs 128x16, .* every output") as seen:
        [model(normal(rows, 16)).logsumexp(-1).sum().backward() for rows in (128, 256)]
    assert len(seen) == 1


@pytest.mark.parametrize("of_level", [False, True])
def test_plans_at_a_level_start_from_the_same(of_level):
    """A plan that is given to a level may have a loss, and those for other inputs then have it, too."""
    model, x, level = mlp().train(), normal(48, 64), resolve_level("L1", {})

    def loss(out):
        return out.logsumexp(-1).sum()

    first = planned(model, level, (x,), {}, loss=loss) if of_level else checkpoint.plan(model, x, loss=loss)
    compress_model(model, checkpoint=first)
    for rows in (48, 96):
        model(normal(rows, 64)).logsumexp(-1).sum().backward()
        assert checkpoint.plan_of(model).graph.differentiated == "the tensors that criterion returned"
        assert checkpoint.plan_of(model).loss is first.loss


def test_what_is_no_loss_is_refused():
    model = nn.Sequential(nn.Linear(16, 4)).train()
    with pytest.raises(TypeError, match="criterion must be a function"):
        checkpoint.plan(model, X, loss="mean")
    with pytest.raises(TypeError, match="criterion must return one or more tensors"):
        checkpoint.plan(model, X, loss=lambda out: None)
