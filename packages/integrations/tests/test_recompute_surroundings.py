"""Checkpointed forwards amid what training does: several at once, retained graphs, autocast, errors, other inputs."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from integrations.checkpoint import capture, plan

from .nets import Net, assert_nothing_active, mlp, normal
from .recompute_nets import net
from .recompute_reference import random_kept
from .recompute_run import run


@pytest.fixture
def checkpointed():
    """A model, its twin, and a checkpointed forward of the first that keeps nothing it need not keep."""
    model, args, _ = net("resnet")
    twin = copy.deepcopy(model)
    return model, twin, run(model, capture(model, args), []), args[0]


def grads(model):
    return [parameter.grad for parameter in model.parameters()]


def same(ours, plain):
    return all(torch.equal(*pair) for pair in zip(ours, plain, strict=True))


def test_two_forwards_before_one_backward(checkpointed):
    model, twin, forward, x = checkpointed
    for call in (forward, twin):
        torch.manual_seed(0)
        loss = call(x).square().sum() + call(x * 2).sum()
        torch.rand(5)  # the generator has moved on when dropout is repeated
        loss.backward()
        call(x).sum().backward()
    assert same(grads(model), grads(twin))
    assert same(model.buffers(), twin.buffers())


def test_a_retained_graph(checkpointed):
    model, twin, forward, x = checkpointed
    for call in (forward, twin):
        torch.manual_seed(0)
        loss = call(x).square().sum()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
    assert same(grads(model), grads(twin))
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


def test_two_parts_of_a_graph_one_after_the_other():
    model = Net(lambda model, x: ((y := (x * model.weight).exp()).sin(), y.cos()), weight=normal(4)).train()
    forward = run(model, capture(model, normal(3, 4)), [])
    one, other = forward(normal(3, 4))
    one.sum().backward(retain_graph=True)
    other.sum().backward(retain_graph=True)
    other.sum().backward()
    ours, model.weight.grad = model.weight.grad, None
    one, other = model(normal(3, 4))
    one.sum().backward(retain_graph=True)
    other.sum().backward(retain_graph=True)
    other.sum().backward()
    assert torch.equal(ours, model.weight.grad)


def test_double_backward():
    model = mlp(width=8).train()
    model[1] = nn.Tanh()
    forward = run(model, capture(model, normal(4, 8).requires_grad_()), [])
    found = []
    for call in (forward, model):
        model.zero_grad()
        x = normal(4, 8).requires_grad_()
        (gradient,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()
        found.append([*grads(model), x.grad])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True) if a is not None)


@pytest.mark.parametrize("calm", ["eval", "no_grad", "inference_mode"])
def test_without_training_it_is_the_model_itself(checkpointed, calm):
    model, _, forward, x = checkpointed
    if calm == "eval":
        model.eval()
        output = forward(x)
        assert output.grad_fn._saved_mat1 is not None  # no hook packed it
    else:
        with getattr(torch, calm)():
            assert forward(x).grad_fn is None
    assert_nothing_active()


def test_an_exception_in_forward_leaves_nothing_active():
    def forward(model, x):
        y = (x * model.weight).exp()
        if x.shape[0] == 3:
            raise KeyError("three rows")
        return y.sin()

    model = Net(forward, weight=normal(4)).train()
    call = run(model, capture(model, normal(2, 4)), [])
    with pytest.raises(KeyError, match="three rows"):
        call(normal(3, 4))
    assert torch._C._len_torch_dispatch_stack() == 0
    assert_nothing_active()
    call(normal(2, 4)).sum().backward()


def test_another_forward_than_the_one_captured_is_right_and_says_where():
    def forward(model, x):
        y = (x * model.weight).mul_(2)
        if model.turns:
            y = y.tan()
        z = y.sin()
        return z.cos().add_(y) if model.turns else z.cos()

    model = Net(forward, weight=normal(4)).train()
    model.turns = False
    call = run(model, capture(model, normal(5, 4)), [])
    model.turns = True
    with pytest.warns(UserWarning, match=r"Net's forward .* at operator 2 the plan has aten.sin.default .* aten.tan"):
        call(normal(5, 4)).sum().backward()
    ours, model.weight.grad = model.weight.grad, None
    model(normal(5, 4)).sum().backward()
    assert torch.equal(ours, model.weight.grad)


def test_an_input_of_another_shape(checkpointed):
    model, twin, forward, x = checkpointed
    x = torch.cat([x, x])
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match=r"at operator 0 .*with results \(\(8, 8, 12, 12\),\)"):
        forward(x).sum().backward()
    torch.manual_seed(0)
    twin(x).sum().backward()
    assert same(grads(model), grads(twin))


def test_a_forward_that_ends_early():
    def forward(model, x):
        y = (x * model.weight).exp()
        return y if model.short else y.sin()

    model = Net(forward, weight=normal(4)).train()
    model.short = False
    call = run(model, capture(model, normal(5, 4)), [])
    model.short = True
    with pytest.warns(UserWarning, match="the forward ran nothing"):
        call(normal(5, 4)).sum().backward()


def test_what_is_changed_in_place_after_it_was_saved_raises_as_in_torch():
    def forward(model, x):
        y = (x * model.weight).exp()  # saves its result
        z = y.sin()
        y.add_(1)
        return z

    model = Net(forward, weight=normal(4)).train()
    graph = capture(model, normal(5, 4))
    for kept in ([], range(len(graph.values))):
        output = run(model, graph, kept)(normal(5, 4))
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            output.sum().backward()


def test_parameters_that_change_before_backward_raise_as_in_torch():
    model = Net(lambda model, x: (x + model.weight).exp().sin(), weight=normal(4)).train()
    output = run(model, capture(model, normal(5, 4)), [])(normal(5, 4))
    with torch.no_grad():
        model.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.filterwarnings("error::UserWarning")
def test_autocast():
    model, args, _ = net("transformer")
    twin = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, args)
    assert any(op.name == "aten._to_copy.default" for op in graph.ops)
    for share in (0.0, 0.5):
        for current, call in ((model, run(model, graph, random_kept(graph, share))), (twin, twin)):
            current.zero_grad()
            torch.manual_seed(0)
            for within in (False, True):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = call(*args).float().square().mean()
                with torch.autocast("cpu", torch.bfloat16, enabled=within):
                    loss.backward()
        assert same(grads(model), grads(twin))


def assert_gradient_is_plain(model):
    """With nothing kept, of the model's one weight."""
    graph = capture(model, normal(5, 4))
    found = []
    for call in (run(model, graph, []), model):
        model.zero_grad()
        call(normal(5, 4)).sum().backward()
        found.append(model.weight.grad)
    assert torch.equal(*found)


def test_a_backward_within_the_forward():
    def forward(model, x):
        y = (x * model.weight).exp().sin()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(y.sum(), model.weight, retain_graph=True)
        return y.cos() * slope + (x * model.weight).tanh().exp()

    model = Net(forward, weight=normal(4)).train()
    assert_gradient_is_plain(model)


def test_torchs_own_checkpoint_inside():
    inner = mlp(width=4)
    model = Net(
        lambda model, x: checkpoint(inner, (x * model.weight).exp(), use_reentrant=False).sin(), weight=normal(4)
    )
    assert_gradient_is_plain(model.train())


def test_sparse_tensors_are_kept():
    def forward(model, x):
        y = (x * model.weight).exp()
        return torch.sparse.mm(model.adjacency, y).sin()

    model = Net(forward, weight=normal(4)).train()
    model.adjacency = torch.eye(5).to_sparse()
    assert_gradient_is_plain(model)


def test_sparse_gradients_are_counted_as_dense_ones():
    """Nobody knows before a step how many rows they have."""
    peaks = []
    for sparse in (True, False):
        model = nn.Sequential(nn.Embedding(50, 8, sparse=sparse), nn.Tanh(), nn.Linear(8, 8)).train()
        peaks.append(plan(model, torch.arange(6)).graph.gradients)
    assert peaks == [(50 * 8 + 8 * 8 + 8) * 4] * 2


def test_nothing_warns_in_training(checkpointed):
    _, _, forward, x = checkpointed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward(x).sum().backward()
