"""Checkpointed forwards under other ways of differentiating, on tensors without elements, copied and sent."""

import copy
import dataclasses
import pickle
import sys
import threading

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from integrations.checkpoint import apply, capture, plan, restore_model

from .nets import Net, mlp, normal
from .recompute_nets import net
from .recompute_run import run
from .recompute_twins import assert_like_twin, left_by


def checkpointed_mlp():
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh()).train()
    return model, run(model, capture(model, normal(4, 8)), [])


def by_grad(call):
    return grad(lambda x: call(x).sum())(normal(4, 8))


def by_vmap(call):
    return vmap(call)(normal(3, 4, 8))


def by_forward_mode(call):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(call(forward_ad.make_dual(normal(4, 8), normal(4, 8, seed=1)))).tangent


def by_jvp(call):
    return jvp(call, (normal(4, 8),), (normal(4, 8, seed=1),))[1]


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of forward mode's own rules
@pytest.mark.parametrize("transformed", [by_grad, by_vmap, by_forward_mode, by_jvp])
def test_under_torch_func_it_keeps_everything_and_says_so(transformed):
    model, forward = checkpointed_mlp()
    with pytest.warns(UserWarning, match=r"under torch.func .* all saved tensors are kept"):
        ours = transformed(forward)
    assert torch.equal(ours, transformed(model))


def test_per_sample_gradients_of_a_model_with_a_plan():
    model, _ = checkpointed_mlp()
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def per_sample():
        def loss(parameters, x):
            return functional_call(model, parameters, (x,)).square().sum()

        return vmap(grad(loss), (None, 0))(parameters, normal(5, 8))

    plain = per_sample()
    apply(model, nothing_kept(plan(model, normal(4, 8))))
    with pytest.warns(UserWarning, match=r"under torch.func"):
        ours = per_sample()
    assert all(torch.equal(ours[name], plain[name]) for name in plain)


def nothing_kept(made):
    """A plan that keeps only what it has to."""
    return dataclasses.replace(made, choice=dataclasses.replace(made.choice, mask=0))


@pytest.mark.parametrize("name", ["resnet", "transformer", "odd"])
def test_double_backward(name):
    model, args, _ = net(name)

    def step(forward, model):
        parameters = list(model.parameters())
        first = torch.autograd.grad(forward(*args).square().sum(), parameters, create_graph=True, allow_unused=True)
        sum(gradient.square().sum() for gradient in first if gradient is not None).backward()

    assert_like_twin(model, args, step, repeated=30)


def test_autograd_grad_of_some_parameters():
    model, args, _ = net("transformer")

    def step(forward, model):
        parameters = list(model.parameters())
        some = torch.autograd.grad(forward(*args).square().sum(), parameters[2:4])
        return [*some, *torch.autograd.grad(forward(*args).square().sum(), parameters)]

    assert_like_twin(model, args, step)


@pytest.mark.parametrize("which", [0, 1])
def test_backward_from_one_of_two_outputs(which):
    model = Net(lambda model, x: ((y := (x * model.weight).exp()).sin(), (y * 2).cos().exp()), weight=normal(4)).train()

    def step(forward, model):
        forward(normal(3, 4))[which].square().sum().backward()

    assert_like_twin(model, (normal(3, 4),), step)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_and_their_backwards_in_either_order(order):
    model, args, _ = net("resnet")

    def step(forward, model):
        outputs = [forward(args[0]), forward(args[0] * 2)]
        for number in order:
            outputs[number].square().sum().backward()

    assert_like_twin(model, args, step)


def test_forwards_in_several_threads():
    model = mlp(16, depth=6).train()
    forward = run(model, capture(model, normal(4, 16)), [])
    expected = torch.autograd.grad(model(normal(4, 16)).sum(), list(model.parameters()))
    wrong = []

    def work():
        for _ in range(10):
            found = torch.autograd.grad(forward(normal(4, 16)).sum(), list(model.parameters()))
            wrong.extend(one for one, other in zip(found, expected, strict=True) if not torch.equal(one, other))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_that_draw_repeat_what_they_drew():
    """They share torch's generator: what one draws must not come between another's noted state and its draw."""
    x = torch.ones(256)
    model = nn.Sequential(nn.Dropout(0.5)).train()
    forward = run(model, capture(model, x.clone().requires_grad_()), [])
    wrong = []

    def work():
        for _ in range(100):
            given = x.clone().requires_grad_()
            result = forward(given)
            result.sum().backward()
            wrong.extend([1] if not torch.equal(given.grad, result) else [])  # both are the mask

    interval = sys.getswitchinterval()
    threads = [threading.Thread(target=work) for _ in range(4)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_backward_in_another_thread():
    model = mlp(16).train()

    def step(forward, model):
        thread = threading.Thread(target=forward(normal(4, 16)).sum().backward)
        thread.start()
        thread.join()

    assert_like_twin(model, (normal(4, 16),), step)


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8)).train()


def test_a_model_on_the_meta_device_is_planned_as_on_a_real_one():
    with torch.device("meta"):
        model = small()
        x = torch.empty(4, 8)
    graph, real = capture(model, x), capture(small(), normal(4, 8))
    assert [(op.name, op.repeatable) for op in graph.ops] == [(op.name, op.repeatable) for op in real.ops]
    assert graph.values == real.values
    assert graph.fingerprint == real.fingerprint
    run(model, graph, [])(x).sum().backward()
    assert all(parameter.grad.is_meta for parameter in model.parameters())
    assert_like_twin(small(), (normal(4, 8),), lambda forward, model: forward(normal(4, 8)).sum().backward())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_follows_the_plan_on_its_own(copied):
    model, plain = small(), small()
    apply(model, nothing_kept(plan(model, normal(4, 8))))
    twin = copied(model)
    before = [parameter.clone() for parameter in model.parameters()]
    for _ in range(2):
        for current in (twin, plain):
            torch.manual_seed(1)
            output = current(normal(4, 8))
            output.sum().backward()
    assert all(torch.equal(*pair) for pair in zip(left_by(twin), left_by(plain), strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))
    restore_model(twin)
    assert "forward" not in twin.__dict__
    assert "forward" in model.__dict__
