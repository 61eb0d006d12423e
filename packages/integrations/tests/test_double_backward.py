"""Differentiated gradients (``create_graph=True``): levels warn, plans round nothing, and piecewise linear networks
cause no warning."""

import copy
import warnings

import pytest
import torch
from torch import nn

import integrations
from actcore.double_backward import builds_graph
from integrations.checkpoint import plan_of
from integrations.tracing.double_backward import is_read

from .nets import normal


def net(activation=nn.SiLU, width=64):
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Linear(8, width), activation(), nn.Linear(width, width), activation()),
        *(nn.Linear(width, width), activation(), nn.Linear(width, 1)),
    )


X, FORCES = normal(256, 8, seed=1), normal(256, 8, seed=2)


def forces(model):
    """Return the loss of energies and forces, as for interatomic potentials."""
    x = X.clone().requires_grad_()
    energy = model(x)
    [slope] = torch.autograd.grad(energy.sum(), x, create_graph=True)
    return energy.square().mean() + (slope - FORCES).square().mean()


def penalty(model):
    """Return the loss of a Wasserstein critic: two plain forwards, and one with a gradient penalty."""
    x = X.lerp(FORCES, 0.3).requires_grad_()
    [slope] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return model(FORCES).mean() - model(X).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()


def equation(model):
    """Return the loss of a PINN: the Laplacian of the output at points that are stacked from several inputs."""
    left, right = (part.clone().requires_grad_() for part in X.split(4, 1))
    u = model(torch.cat([left, right], 1))
    [first] = torch.autograd.grad(u.sum(), left, create_graph=True)
    [second] = torch.autograd.grad(first.sum(), left, create_graph=True)
    return (second.sum(1) + u.sin().squeeze(1)).square().mean()


def hessian_product(model):
    """Return a Hessian product of the parameters. No input requires a gradient."""
    gradients = torch.autograd.grad(model(X).square().mean(), list(model.parameters()), create_graph=True)
    return sum(gradient.square().sum() for gradient in gradients)


LOSSES = [forces, penalty, equation]


def trained(model, loss, steps=4):
    """Return the gradients of each step."""
    found, optimizer = [], torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        found.append([None if p.grad is None else p.grad.clone() for p in model.parameters()])
        optimizer.step()
    return found


def equal(one, other):
    return all(
        a is b is None or torch.equal(a, b)
        for step, plain in zip(one, other, strict=True)
        for a, b in zip(step, plain, strict=True)
    )


def warned(function, *args):
    """Return the result of a call, and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [str(one.message) for one in found]


@pytest.mark.parametrize("replays", [True, False], ids=["in C", "in Python"])
@pytest.mark.parametrize("level", ["L1", "L1.2", "lean"])
def test_a_level_warns_once_with_ways_out(level, replays, monkeypatch):
    if not replays:
        monkeypatch.setattr("integrations.runtime.replay.FORCED_OFF", True)
    model = integrations.compress_model(net(), level=level, min_bytes=0)
    _, messages = warned(trained, model, forces)
    assert len(messages) == 1
    for word in ("create_graph=True", "keep=", "error=0", 'level="L0"'):
        assert word in messages[0]


def test_the_warning_comes_although_the_first_steps_differentiate_once():
    """By then, the C code stores each tensor."""
    model = integrations.compress_model(net(), level="L1", min_bytes=0)
    _, messages = warned(trained, model, lambda model: model(X).square().mean(), 3)
    assert not messages
    _, messages = warned(trained, model, forces)
    assert len(messages) == 1


@pytest.mark.parametrize("activation", [nn.ReLU, nn.LeakyReLU])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_networks_that_are_linear_in_pieces_stay_silent(level, activation):
    """Their gradients read only weights and exact masks, though backward unpacks each layer's rounded input. This also
    holds if the batch size equals the width of the layers."""
    for width in (64, 256):
        model = integrations.compress_model(net(activation, width), level=level, min_bytes=0)

        def slopes(model):
            x = X.clone().requires_grad_()
            [slope] = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            return slope.square().mean()

        plain = net(activation, width)
        slopes(plain).backward()
        _, messages = warned(lambda model: slopes(model).backward(), model)
        assert not messages
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.equal(one.grad, other.grad)


def test_a_product_that_is_differentiated_by_its_weight_reads_its_rounded_input():
    model = integrations.compress_model(net(nn.ReLU), level="L1", min_bytes=0)
    _, messages = warned(trained, model, hessian_product)
    assert len(messages) == 1


def backward_with_a_hook(model):
    x = X.clone().requires_grad_()
    output = model(x)
    output.register_hook(lambda gradient: gradient * (x.detach() * 2).mean())
    output.square().mean().backward(retain_graph=True)
    output.sum().backward()


def checkpointed(model):
    x = X.clone().requires_grad_()
    torch.utils.checkpoint.checkpoint_sequential(model, 2, x, use_reentrant=False).square().mean().backward()


def looked_at(model):
    """Unpack saved tensors outside of a backward, with gradients enabled."""
    output = model(X)
    assert output.grad_fn._saved_mat1 is not None
    output.mean().backward()


class Again(torch.autograd.Function):
    """The hyperbolic tangent. Its backward reads what was saved where gradients are enabled, and computes it again."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.tanh()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            output = x.tanh()
        return torch.autograd.grad(output, x, gradient)


class ComputesAgain(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.last = net(), nn.Linear(1, 1)

    def forward(self, x):
        x = self.net[:-1](x)
        return self.last(self.net[-1](Again.apply(x)) + x.mean(1, keepdim=True))


def test_a_function_that_computes_its_forward_again_is_no_second_derivative():
    """Neither in the capture, after which a plan would round nothing, nor in a step."""
    for x in (X, X.clone().requires_grad_()):
        torch.manual_seed(0)
        model = integrations.compress_model(ComputesAgain(), memory=0.6, error=0.1)

        def step(model, x=x):
            model(x).square().mean().backward()

        assert [warned(step, model)[1] for _ in range(3)] == [[], [], []]
        assert plan_of(model).choice.rounds


@pytest.mark.parametrize("step", [backward_with_a_hook, checkpointed, looked_at])
def test_one_derivative_stays_silent(step):
    model = integrations.compress_model(net(), level="L1", min_bytes=0)
    for _ in range(2):
        assert warned(step, model)[1] == []


class Checkpointed(nn.Module):
    """A checkpoint between linear layers. Only its input is rounded and read by the gradient by the model's input."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(8, 64), nn.Linear(64, 64), nn.Linear(64, 1)

    def segment(self, h):
        return self.second(nn.functional.silu(h)).tanh()

    def forward(self, x):
        return self.last(torch.utils.checkpoint.checkpoint(self.segment, self.first(x), use_reentrant=False))


def test_the_rounded_input_of_a_checkpoint_is_read():
    model = integrations.compress_model(Checkpointed(), level="L1", min_bytes=0)
    assert len(warned(trained, model, forces)[1]) == 1
    model = integrations.compress_model(Checkpointed(), level="L1", min_bytes=0, keep=("*",))
    assert not [message for message in warned(trained, model, forces)[1] if "create_graph" in message]


@pytest.mark.parametrize("ways_out", [{"level": "L1", "keep": ("*",)}, {"level": "L0"}, {"memory": 0.7, "error": 0}])
def test_the_ways_out_are_exact_and_silent(ways_out):
    found, messages = warned(trained, integrations.compress_model(net(), **ways_out), forces)
    assert equal(found, trained(net(), forces))
    assert [message for message in messages if "create_graph" in message] == []


def test_blocks_warn_once():
    model = net()

    def train():
        for _ in range(3):
            with integrations.compress(model, level="L1", min_bytes=0):
                forces(model).backward()

    assert len(warned(train)[1]) == 1


@pytest.mark.parametrize("loss", LOSSES)
def test_a_plan_is_exact_in_every_step_of_a_training(loss):
    model = integrations.compress_model(net(), memory=0.7, error=0.1)
    found, messages = warned(trained, model, loss)
    assert equal(found, trained(net(), loss))
    assert ["rounds nothing" in message for message in messages] == [True]
    assert plan_of(model).error == 0
    assert not plan_of(model).within(0.7, error=0.1).choice.rounds
    assert "create_graph=True" in str(plan_of(model))
    assert "create_graph=True" in str(integrations.compression(model).report())


def test_a_plan_stays_silent_where_a_network_is_linear_in_pieces():
    model = integrations.compress_model(net(nn.LeakyReLU), memory=0.7, error=0.1)
    found, messages = warned(trained, model, forces)
    assert not messages
    assert plan_of(model).choice.rounds
    assert equal(found[:1], trained(net(nn.LeakyReLU), forces, 1))


LINEAR_IN_PIECES = {
    "leaky_relu": nn.LeakyReLU(),
    "hardtanh": nn.Hardtanh(),
    "threshold": nn.Threshold(0.1, 0),
    "softshrink": nn.Softshrink(),
    "max_pool2d": nn.MaxPool2d(2),
    "max_pool3d": nn.MaxPool3d(2),
    "avg_pool2d": nn.AvgPool2d(2),
    "avg_pool3d": nn.AvgPool3d(2),
    "adaptive_max_pool2d": nn.AdaptiveMaxPool2d(2),
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d(2),
    "adaptive_avg_pool3d": nn.AdaptiveAvgPool3d(2),
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "maximum": lambda x: x.maximum(-x),
}


@pytest.mark.parametrize("name", LINEAR_IN_PIECES)
def test_functions_that_are_linear_in_pieces_read_no_elements(name):
    unpacked = []

    def unpack(saved):
        if builds_graph() and saved[0].is_floating_point():
            unpacked.append(is_read(saved, exactly=True))
        return saved[0]

    x = normal(2, 4, 4, 4, seed=1).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: [tensor], unpack):
        output = LINEAR_IN_PIECES[name](x).sum()
    torch.autograd.grad(output, x, create_graph=True)
    assert not any(unpacked)


def test_a_plan_notices_in_a_later_step():
    """No input requires a gradient, so the plan cannot foresee double backward."""
    model, plain = integrations.compress_model(net(), memory=0.7, error=0.1, stores=("recompute", "bits")), net()
    (_, *found), messages = warned(trained, model, hessian_product)
    assert ["from the next forward on" in message for message in messages] == [True]
    plain.load_state_dict({key: value.detach().clone() for key, value in net().state_dict().items()})
    assert plan_of(model).error == 0
    assert len(found) == 3
    copied = copy.deepcopy(model)
    plain.load_state_dict(model.state_dict())
    assert equal(trained(copied, hessian_product, 2), trained(plain, hessian_product, 2))


def test_slopes_raise_once_and_are_chosen_no_more():
    model = integrations.compress_model(net(), memory=0.8, error=0.1, stores=("slopes", "recompute"))
    with pytest.raises(RuntimeError, match=r"no second derivative.*error=0"):
        trained(model, hessian_product)
    assert equal(trained(model, hessian_product), trained(net(), hessian_product))


class Forces(nn.Module):
    """A model whose forward differentiates its energy."""

    def __init__(self, activation=nn.SiLU):
        super().__init__()
        self.energy = net(activation)

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = self.energy(x)
        [slope] = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, slope


def of_forces(model):
    energy, slope = model(X)
    return energy.square().mean() + (slope - FORCES).square().mean()


def test_the_capture_sees_a_forward_that_differentiates():
    plan, messages = warned(lambda: integrations.plan(Forces(), X, memory=0.8, error=0.1))
    assert ["rounds nothing" in message for message in messages] == [True]
    assert plan.error == 0
    assert plan.graph.double_backward
    assert type(plan).from_json(plan.to_json()).graph.double_backward
    model = integrations.compress_model(Forces(), memory=0.8, error=0.1)
    found, messages = warned(trained, model, of_forces)
    assert equal(found, trained(Forces(), of_forces))
    assert ["rounds nothing" in message for message in messages] == [True]


def test_a_plan_that_was_applied_becomes_exact():
    model = net()
    plan = integrations.plan(model, X.clone().requires_grad_(), memory=0.7, error=0.1)
    integrations.apply(model, plan)
    found, messages = warned(trained, model, forces)
    assert equal(found, trained(net(), forces))
    assert len(messages) == 1


def test_a_plan_that_becomes_exact_refuses_the_shapes_that_it_refused():
    model = net()
    plan = integrations.plan(model, X, memory=0.7, error=0.1)
    integrations.checkpoint.apply(model, plan, shapes="refuse")
    _, messages = warned(hessian_product, model)
    assert len(messages) == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="inputs must be of the shapes"):
            model(torch.cat([X, X]))
        assert equal(trained(copy.deepcopy(model), hessian_product, 1), trained(net(), hessian_product, 1))


def test_no_forward_is_exact_where_that_takes_more_than_the_memory():
    """Beside gradients that are there already, an exact plan may need more than beside none."""
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))
    x = normal(256, 64).requires_grad_()
    model(x).sum().backward()
    integrations.compress_model(model, memory=0.6, error=0.1)
    _, messages = warned(lambda model: model(x).sum().backward(), model)
    assert not messages
    assert plan_of(model).choice.rounds


def test_memory_that_only_rounding_meets_raises_once_gradients_are_differentiated():
    model = integrations.compress_model(net(), memory=0.5, error=0.1)
    with pytest.warns(UserWarning, match="from the next forward on the plan rounds nothing"):
        forces(model).backward()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"differentiates its gradients \(create_graph=True\).*must be at least"):
            forces(model)
