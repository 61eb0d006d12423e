"""Compression costs nothing where there is no backward, and two models in one process do not feel each other."""

import copy

import pytest
import torch
from torch import nn

import integrations
from integrations.runtime import session as session_module
from integrations.tracing.hook_stack import OnStack

from .nets import EIGHT_BITS, Net, assert_nothing_active, assert_same, gradients, mlp, normal, relative_error, rows

X = normal(48, 64)


def saves_itself(model):
    """Whether the forward's last ReLU saved its very result."""
    output = model(X)
    return output.grad_fn is None or output.grad_fn._saved_result.data_ptr() == output.data_ptr()


@pytest.fixture
def opened(monkeypatch):
    """Counts the times that saved-tensor hooks are opened by integrations."""
    made = []

    class Counted(OnStack):
        def __init__(self, *given):
            made.append(given)
            super().__init__(*given)

    monkeypatch.setattr(session_module, "OnStack", Counted)
    return made


def test_a_training_forward_opens_hooks_once(opened):
    """The other tests of this file mean something only if this one holds."""
    assert not saves_itself(integrations.compress_model(mlp()))
    assert len(opened) == 1


@pytest.mark.parametrize("entrance", ["compress_model", "compress"])
@pytest.mark.parametrize(
    "calm",
    [
        lambda model: (model.eval(), torch.enable_grad())[1],
        lambda model: torch.no_grad(),
        lambda model: torch.inference_mode(),
        lambda model: torch.set_grad_enabled(False),
    ],
    ids=["eval", "no_grad", "inference_mode", "set_grad_enabled"],
)
def test_without_a_backward_nothing_is_packed(calm, entrance, opened):
    model = mlp()
    if entrance == "compress_model":
        integrations.compress_model(model)
        with calm(model):
            assert saves_itself(model)
        assert integrations.compression(model).step == 0
    else:
        with calm(model), integrations.compress(model) as handle:
            assert saves_itself(model)
        assert handle.step == 0
    assert opened == []


def test_eval_between_training_steps():
    """Evaluation with gradients enabled is exact, and does not move the noise on."""
    found = []
    for evaluates in (False, True):
        model = integrations.compress_model(mlp(), "L1.2")
        gradients(model, X)
        if evaluates:
            model.eval()
            assert_same(gradients(mlp(), X), gradients(model, X))
            model.train()
        found.append(gradients(model, X))
    assert_same(*found)


def test_no_grad_inside_a_training_forward():
    """Parts without gradients, such as a teacher's, save nothing; what follows is compressed."""

    class Distils(nn.Module):
        def __init__(self):
            super().__init__()
            self.teacher, self.student = mlp(), mlp()

        def forward(self, x):
            with torch.no_grad():
                target = self.teacher(x)
            return self.student(x) - target

    model = integrations.compress_model(Distils())
    model(X).square().sum().backward()
    assert {row.module.split(".")[0] for row in rows(model)} == {"student"}


def test_level_0_is_the_untouched_model(opened):
    """Bit for bit, with dropout and an optimizer, and without a hook in the forward."""
    losses = []
    for level in (None, "L0"):
        torch.manual_seed(0)
        model = nn.Sequential(mlp(), nn.Dropout(0.3), nn.LayerNorm(64), nn.Linear(64, 64))
        if level:
            integrations.compress_model(model, level)
            assert saves_itself(model[0])
        torch.manual_seed(2)
        optimizer = torch.optim.Adam(model.parameters())
        losses.append([])
        for _ in range(5):
            optimizer.zero_grad()
            loss = model(X).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1]
    assert opened == []


@pytest.mark.parametrize("level", ["L1", "L1.1", "L1.2"])
def test_torchs_generators_are_not_touched(level):
    model = integrations.compress_model(mlp(), level)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model(X).sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


def test_two_models_at_two_levels():
    """Each has its own gradients, whether the other one runs in between or not."""

    def two_steps(model, other=None):
        found = []
        for _ in range(2):
            model.zero_grad()
            loss = model(X).square().mean()
            if other is not None:
                other(X).sum().backward()
            loss.backward()
            found.append({name: p.grad.clone() for name, p in model.named_parameters()})
        return found

    alone = two_steps(integrations.compress_model(mlp(), "L1.2"))
    other = integrations.compress_model(mlp(), "L1.1", seed=7)
    together = two_steps(integrations.compress_model(mlp(), "L1.2"), other)
    for expected, found in zip(alone, together, strict=True):
        assert_same(expected, found)
    assert {row.codec[:18] for row in rows(other, "linear")} == {"GroupAffine(bits=8"}


def test_an_untouched_model_beside_a_compressed_one():
    model, untouched = integrations.compress_model(mlp()), mlp()
    loss = model(X).sum()
    assert saves_itself(untouched)
    loss.backward()
    assert saves_itself(untouched)


@pytest.mark.parametrize("outer", ["L1", "L0"])
@pytest.mark.parametrize("inner", ["L1.2", "L0"])
def test_a_compressed_model_inside_another(outer, inner):
    """The inner model's level is for its own forward, its input included, which only autograd keeps alive; the outer
    one's for the rest; inner L0 leaves it to the outer."""

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(64, 64), mlp(), nn.Linear(64, 64)

        def forward(self, x):
            return self.last(self.inner(self.first(x)))

    model = Outer()
    integrations.compress_model(model.inner, inner)
    integrations.compress_model(model, outer)
    model(X).square().sum().backward()
    bits = {row.module: row.codec[12:18] for row in rows(model, "linear")}
    own = {row.module: row.codec[12:18] for row in rows(model.inner, "linear")}
    assert own == ({"0": "bits=2", "2": "bits=2", "4": "bits=2"} if inner != "L0" else {})
    left = {"inner.0": "bits=4", "inner.2": "bits=4", "inner.4": "bits=4"} if inner == "L0" else {}
    assert bits == ({"last": "bits=4"} | left if outer != "L0" else {})
    assert_nothing_active()


def test_a_model_that_calls_itself():
    def forward(self, x):
        h = torch.nn.functional.linear(x, self.w).tanh()
        return self(h * 2) if self.depth.pop() else torch.nn.functional.linear(h, self.w)

    model = Net(forward, w=normal(64, 64) / 8)
    model.depth = [False, True, True] * 2
    plain = gradients(copy.deepcopy(model), X)
    integrations.compress_model(model, "L1.1")
    assert relative_error(plain, gradients(model, X)) < EIGHT_BITS
    assert integrations.compression(model).step == 1


def test_a_model_without_parameters():
    model = integrations.compress_model(nn.Sequential(nn.ReLU(), nn.Dropout()))
    x = X.clone().requires_grad_()
    torch.manual_seed(0)
    model(x * 1).sum().backward()
    torch.manual_seed(0)
    expected = X.clone().requires_grad_()
    nn.Sequential(nn.ReLU(), nn.Dropout())(expected).sum().backward()
    assert torch.equal(x.grad, expected.grad)
    assert [row.operator for row in rows(model)] == ["relu", "dropout"]
    with integrations.compress(nn.Identity()) as handle:
        (x * 1).relu().sum().backward()
    assert handle.report().rows[0].operator == "relu"
