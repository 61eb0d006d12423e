"""Checkpointed forwards among hooks, torch's own checkpoint, casts, and optimizers that step in backward."""

import contextlib
import gc

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.checkpoint import apply, capture, plan, restore_model

from .nets import Net, assert_same, gradients, mlp, normal
from .recompute_nets import net
from .recompute_run import run
from .recompute_twins import assert_like_twin, left_by


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.4), nn.Linear(6, 6)).train()


def square_sum(forward, model):
    forward(normal(4, 6)).square().sum().backward()


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")  # the input has no gradient
def test_hooks_on_modules_run_once_a_step():
    model = layers()
    calls = []
    for module in model:
        module.register_forward_pre_hook(lambda module, args: calls.append("before"))
        module.register_forward_hook(lambda module, args, output: output * 1.5)
        module.register_full_backward_pre_hook(lambda module, gradient: (gradient[0] * 2,))
        module.register_full_backward_hook(lambda module, inputs, outputs: calls.append("backward"))

    def step(forward, model):
        calls.clear()
        square_sum(forward, model)
        assert sorted(calls) == ["backward"] * 5 + ["before"] * 5

    assert_like_twin(model, (normal(4, 6),), step)


@pytest.mark.parametrize("way", ["fake", "real", "L1"])
def test_operators_in_hooks_of_the_model_itself_send_no_step_astray(way, recwarn):
    """What stands in the model's forward sees neither what is done to its inputs before nor to its output after."""
    plain, model, seen = mlp(), mlp(), torch.zeros(64)

    def look(module, args, output):
        seen.add_(output.detach().mean(0))

    handles = [
        model.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        model.register_forward_hook(look),
        model.register_forward_hook(lambda module, args, output: output * 3),
    ]
    if way == "L1":
        integrations.compress_model(model, checkpoint="optimal")
    else:
        apply(model, plan(model, (normal(48, 64),), real=way == "real"))
        assert not seen.any()
    expected = 0
    for rows in (48, 96):
        found = gradients(model, normal(rows, 64))
        x = normal(rows, 64)
        expected = expected + plain(x * 2).detach().mean(0)
        if way != "L1":
            assert_same(found, gradients(plain, x * 2, loss=lambda output: (output * 3).square().mean()))
    assert torch.equal(seen, expected)  # a capture has added nothing
    assert not [one for one in recwarn if "not the one that was captured" in str(one.message)]
    assert [*model._forward_pre_hooks, *model._forward_hooks] == [handle.id for handle in handles]


def test_hooks_on_tensors_and_retained_gradients():
    def forward(model, x):
        y = (x * model.weight).exp()
        y.register_hook(lambda gradient: gradient * 2)
        model.z = y.sin()
        model.z.retain_grad()
        return model.z.exp()

    model = Net(forward, weight=normal(6)).train()

    def step(forward, model):
        square_sum(forward, model)
        return [model.z.grad]

    assert_like_twin(model, (normal(4, 6),), step)


@pytest.mark.parametrize("reentrant", [True, False])
def test_torchs_checkpoint_inside(reentrant):
    model = Net(
        lambda model, x: checkpoint(model.inner, (x * model.weight).exp(), use_reentrant=reentrant).sin(),
        weight=normal(6),
    )
    model.inner = layers()
    assert_like_twin(model.train(), (normal(4, 6),), square_sum)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("real", [False, True])
def test_a_capture_leaves_what_torchs_checkpoint_recomputes_untouched(reentrant, real):
    model = Net(
        lambda model, x: checkpoint(model.inner, (x * model.weight).exp(), use_reentrant=reentrant),
        weight=normal(6),
    )
    model.inner = layers()
    model.train()
    before = [tensor.clone() for tensor in left_by(model)]
    graph = capture(model, normal(4, 6), real=real)
    assert all(torch.equal(*pair) for pair in zip(before, left_by(model), strict=True))  # with no gradients
    assert graph.gradients == sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("reentrant", [True, False])
def test_inside_torchs_checkpoint(reentrant):
    model = layers()
    model[1] = nn.LayerNorm(6)  # torch's checkpoint updates the statistics of BatchNorm twice

    def step(forward, model):
        x = normal(4, 6).requires_grad_()
        checkpoint(lambda x: forward(x.sin()).exp(), x, use_reentrant=reentrant).square().sum().backward()
        return [x.grad]

    assert_like_twin(model, (normal(4, 6),), step)


@pytest.mark.parametrize("inner_first", [True, False])
def test_a_part_with_a_plan_of_its_own_inside(inner_first):
    model, args, _ = net("resnet")
    parts = [(model, args), (model[3], (normal(4, 8, 6, 6).requires_grad_(),))]
    plans = [plan(part, inputs) for part, inputs in parts]
    if inner_first:
        apply(parts[1][0], plans[1])
        with pytest.raises(ValueError, match=r"its module '3' is compressed: call"):
            apply(parts[0][0], plans[0])
        return
    for (part, _), made in zip(parts, plans, strict=True):
        apply(part, made)
    with pytest.raises(RuntimeError, match="must not run inside of a forward that follows a plan"):
        model(*args)
    restore_model(parts[1][0])
    model(*args).sum().backward()


def test_what_a_plan_keeps_is_out_of_reach_of_hooks_around_the_model():
    """As with torch's checkpoint: the innermost hooks are the ones that autograd asks."""
    model = layers()

    def step(forward, model):
        packed = []
        with saved_tensors_hooks(packed.append, lambda _: None) if forward is not model else contextlib.nullcontext():
            output = forward(normal(4, 6))
        assert not packed
        with save_on_cpu():
            output = output.square() + forward(normal(4, 6))
        output.sum().backward()

    assert_like_twin(model, (normal(4, 6),), step)


def test_hooks_inside_the_model():
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor * 2  # an operator of the forward, as far as the plan can tell

    def forward(model, x):
        y = (x * model.weight).exp()
        with saved_tensors_hooks(pack, lambda tensor: tensor / 2):
            y = y.sin().exp()
        with save_on_cpu():
            y = y.sin().cos()
        return y.cos()

    model = Net(forward, weight=normal(6)).train()

    def step(forward, model):
        packed.clear()
        square_sum(forward, model)
        assert len(packed) == 2

    assert_like_twin(model, (normal(4, 6),), step)


def test_weights_that_are_computed_in_the_forward():
    """Spectral normalisation updates its vectors in place in each of them, once."""
    parts = [parametrizations.spectral_norm(nn.Linear(6, 6)), nn.Tanh(), parametrizations.weight_norm(nn.Linear(6, 6))]

    def step(forward, model):
        for _ in range(2):
            square_sum(forward, model)

    assert_like_twin(nn.Sequential(*parts, nn.Tanh()).train(), (normal(4, 6),), step)


def test_an_optimizer_that_steps_in_backward():
    model, args, _ = net("transformer")

    def step(forward, model):
        optimizers = {parameter: torch.optim.SGD([parameter], 1e-3) for parameter in model.parameters()}

        def descend(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(descend)
        for _ in range(3):
            forward(*args).square().mean().backward()

    assert_like_twin(model, args, step)


@pytest.mark.parametrize("cache", [True, False])
def test_autocast_with_scaled_gradients(cache):
    model, args, _ = net("resnet")

    def autocast():
        return torch.autocast("cpu", torch.bfloat16, cache_enabled=cache)

    def step(forward, model):
        scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(3):
            with autocast():
                loss = forward(*args).square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    assert_like_twin(model, args, step, around=autocast)


def test_each_forward_makes_the_casts_of_autocast_anew():
    """So two forwards under one autocast are what they are with the cache cleared between them: each casts the
    gradients of the weights back to float32 before they are added."""
    model = mlp(8).train()

    def plain(x):
        torch.clear_autocast_cache()
        return model(x)

    def step(forward):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = forward(normal(4, 8)).float().square().sum() + forward(normal(4, 8, seed=1)).sum()
        loss.backward()
        return left_by(model)

    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, normal(4, 8))
    assert all(torch.equal(*pair) for pair in zip(step(run(model, graph, [])), step(plain), strict=True))


def test_garbage_is_collected_while_a_segment_is_repeated():
    """Saved tensors in a cycle of references go at any moment, and with them what the repetition counts."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            x, others = self.linear(x), []
            for number in range(6):
                x = torch.tanh(x + 0.1 * number)
                others.append((x * 2).sin())
            return x.sum(), others

    model, x = Branches().train(), normal(4, 8)
    (expected,) = torch.autograd.grad(model(x)[0], model.linear.weight)
    forward = run(model, capture(model, x), [])
    threshold = gc.get_threshold()
    gc.freeze()  # what other tests have left is not looked through sixty times
    try:
        for later in range(1, 60):
            gc.collect()
            gc.disable()
            total, others = forward(x)
            for other in others:
                cycle = [other]
                cycle.append(cycle)
            del others, other, cycle
            gc.set_threshold(gc.get_count()[0] + later)
            gc.enable()
            (found,) = torch.autograd.grad(total, model.linear.weight)
            assert torch.equal(found, expected)
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        gc.enable()
