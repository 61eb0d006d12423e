"""A model with a plan trains as without, whatever its inputs; and is as before when the plan is taken out."""

import copy
import pickle

import pytest
import torch
from torch import nn

from integrations.checkpoint import apply, capture, plan, plan_of, restore_model
from integrations.planner import plans

from .nets import assert_nothing_active, mlp, normal
from .recompute_nets import NETS, net
from .recompute_reference import LiveBytes, Ones, outcome


def tall(batch=4096):
    return mlp(width=16, depth=12).train(), normal(batch, 16)


def assert_as_twin(model, twin, *args, **kwargs):
    ours = outcome(model, model, args, kwargs)
    for one, other in zip(ours, outcome(twin, twin, args, kwargs), strict=True):
        assert torch.equal(one, other)


def peak_of(model, x):
    model.zero_grad()
    with LiveBytes() as live:
        Ones.apply(model(x)).backward()
    return live.peak - sum(parameter.grad.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("name", NETS)
def test_gradients_buffers_and_generators_are_the_models_own(name):
    model, args, kwargs = net(name)
    twin = copy.deepcopy(model)
    assert apply(model, plan(model, args, kwargs=kwargs)) is model
    assert plan_of(model).segments
    for _ in range(2):
        assert_as_twin(model, twin, *args, **kwargs)
    assert_nothing_active()


def test_memory_is_what_was_planned():
    model, x = tall()
    made = plan(model, x)
    plain = peak_of(model, x)
    apply(model, made)
    # A plan takes what a node of backward makes to be there all at once, and gradients not before they are summed.
    gradients = sum(parameter.nbytes for parameter in model.parameters())
    assert 0 <= made.plain_peak - plain <= gradients
    assert 0 <= made.peak - peak_of(model, x) <= gradients
    assert gradients < 0.01 * made.peak


def test_restored_it_is_as_before():
    model, x = tall(64)
    before = dict(model.__dict__)
    restore_model(apply(model, plan(model, x)))
    assert model.__dict__.keys() == before.keys()
    assert restore_model(model) is model
    with pytest.raises(ValueError, match="has no plan"):
        plan_of(model)
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got int"):
        restore_model(3)


def test_what_cannot_be_applied_is_refused():
    model, x = tall(64)
    made = plan(model, x)
    with pytest.raises(ValueError, match="plan must be one of this model: it was made for a Sequential whose modules"):
        apply(mlp(width=16, depth=11).train(), made)
    with pytest.raises(ValueError, match="plan must be one of this model"):
        apply(mlp(width=8, depth=12).train(), made)
    with pytest.raises(TypeError, match=r"plan must be a Plan of integrations.checkpoint.plan, got dict"):
        apply(model, {})
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got Plan"):
        apply(made, model)
    with pytest.raises(ValueError, match="shapes must be 'replan' or 'refuse', got 'ignore'"):
        apply(model, made, shapes="ignore")
    apply(model, made)
    with pytest.raises(ValueError, match=r"has a plan already; call integrations.checkpoint.restore_model\(model\)"):
        apply(model, made)


def test_another_of_the_same_modules_takes_the_plan():
    model, x = tall(64)
    made = plan(model, x)
    other, _ = tall(64)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    twin = copy.deepcopy(other)
    assert_as_twin(apply(other.eval(), made).train(), twin, x)


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 200])
def test_a_batch_of_another_size(rows, recwarn):
    model, x = tall(64)
    twin = copy.deepcopy(model)
    made = plan(model, x)
    apply(model, made)
    assert_as_twin(model, twin, normal(rows, 16, seed=1))
    # One that is larger is planned for: its peak would be above the one that was asked for.
    assert (plan_of(model) == made) == (rows <= 64)
    assert not recwarn.list
    assert_as_twin(model, twin, x)
    assert plan_of(model) == made


def test_a_budget_holds_for_larger_batches_or_raises():
    model, x = tall(1024)
    made = plan(model, x, budget=0.8)
    limit = made.peak
    apply(model, made.within(limit))
    assert peak_of(model, normal(1280, 16)) <= limit
    before = model[0].weight.grad.clone()
    with pytest.raises(ValueError, match=rf"8192x16 keeps to memory={limit}: memory must be at least \d+ bytes"):
        model(normal(8192, 16))
    assert torch.equal(model[0].weight.grad, before)
    assert plan_of(model).graph.inputs.shapes == ((1280, 16),)  # the last one that was followed


def test_other_shapes_are_refused_where_that_is_asked_for():
    model, x = tall(64)
    apply(model, plan(model, x), shapes="refuse")
    model(x).sum().backward()
    model(x[:10]).sum().backward()
    with pytest.raises(ValueError, match=r"inputs must be of the shapes .*64x16, or smaller, got 65x16"):
        model(normal(65, 16))


def test_many_shapes_are_not_planned_for_without_end():
    model, x = tall(2)
    twin = copy.deepcopy(model)
    apply(model, plan(model, x))
    found = set()
    for rows in range(3, 20):
        assert_as_twin(model, twin, normal(rows, 16, seed=rows))
        found.add(plan_of(model).graph.inputs)
    assert len(found) == 7


def test_autocast_in_training_alone():
    model, x = tall(64)
    twin = copy.deepcopy(model)
    apply(model, plan(model, x))
    with torch.autocast("cpu", torch.bfloat16):
        assert_as_twin(model, twin, x)
    assert "autocast" in plan_of(model).graph.inputs.structure
    assert plan_of(model).segments
    assert_as_twin(model, twin, x)


class Moody(nn.Module):
    """A forward that depends on what its input holds, and on an attribute."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.deep = True

    def forward(self, x):
        for layer in self.layers if self.deep else self.layers[:3]:
            x = layer(x).tanh()
        return x.sin() if x.mean() > 0 else x


def test_a_forward_that_has_changed_is_captured_again():
    model, x = Moody().train(), normal(64, 16)
    twin = copy.deepcopy(model)
    apply(model, plan(model, x))
    model.deep = twin.deep = False
    with pytest.warns(
        UserWarning, match=r"not the one that was captured.* gets a new plan.*The difference: at operator "
    ):
        assert_as_twin(model, twin, x)
    assert_as_twin(model, twin, x)
    assert len(plan_of(model).graph.ops) < 12


class LooksAtItsInput(nn.Module):
    """A forward that takes another way with tensors that have no elements."""

    def __init__(self):
        super().__init__()
        self.layers = mlp(16, depth=4)

    def forward(self, x):
        y = self.layers(x)
        return y.sigmoid().sin() if type(x) is torch.Tensor else y


def test_a_capture_that_comes_to_the_same_wrong_plan_is_not_made_for_ever(monkeypatch):
    model, x = LooksAtItsInput().train(), normal(64, 16)
    apply(model, plan(model, x))
    captures = []

    def noted(*args, real=False, **options):
        captures.append(real)
        return capture(*args, real=real, **options)

    monkeypatch.setattr(plans, "capture", noted)
    for _ in range(2):
        with pytest.warns(UserWarning, match="not the one that was captured"):
            model(x).sum().backward()
    for _ in range(3):
        model(x).sum().backward()
    assert captures == [False, True]  # the first of which is equal to the plan that was wrong
    assert plan_of(model).graph.ops[-1].name == "aten.sin.default"


def test_a_forward_that_depends_on_its_inputs_contents(recwarn):
    model, x = Moody().train(), normal(64, 16)
    twin = copy.deepcopy(model)
    made = plan(model, x)
    assert "captured on real tensors: on fake ones it raised" in made.graph.note
    assert "captured on real tensors" in str(made)
    apply(model, made)
    for sign in (1, -1, 1, -1):
        for layers in (model.layers, twin.layers):
            layers[-1].bias.data.fill_(5.0 * sign)
        assert_as_twin(model, twin, x)
    told = [str(warning.message) for warning in recwarn.list]
    # Once for each capture, of which there are two more.
    assert sum("memory is not saved" in message for message in told) <= 3


def test_without_a_gradient_it_is_the_model_itself():
    model, x = tall(64)
    apply(model, plan(model, x))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert not model(x).requires_grad
    with LiveBytes() as live:
        kept = model.eval()(x)
    assert kept.requires_grad
    assert live.now > 8 * x.nbytes


def test_copies_have_a_plan_of_their_own():
    model, x = tall(64)
    apply(model, plan(model, x))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert plan_of(other) == plan_of(model)
        restore_model(other)
        assert_as_twin(model, other, x)
    with pytest.warns(UserWarning, match="shallow copy of the compressed Sequential"):
        copy.copy(model)(x)


def test_a_plan_for_a_model_that_has_one():
    model, x = tall(64)
    made = plan(model, x)
    assert plan(apply(model, made), x) == made


def test_state_dict_hooks_and_optimizers_do_not_notice():
    model, x = tall(64)
    names = list(model.state_dict())
    calls = []
    model.register_forward_hook(lambda module, args, output: calls.append(output))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    apply(model, plan(model, x))
    calls.clear()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model(x).square().mean().backward()
    optimizer.step()
    assert list(model.state_dict()) == names
    assert len(calls) == 1
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_tracing_and_export_see_the_model_itself():
    model, x = tall(8)
    plain = model(x)
    apply(model, plan(model, x))
    assert torch.allclose(torch.jit.trace(model, x)(x), plain)
    assert torch.allclose(torch.export.export(model.eval(), (x,)).module()(x), plain)
