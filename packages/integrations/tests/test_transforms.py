"""torch.func, forward-mode AD, tracing, compiling and custom operators meet a compressed model."""

import warnings

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.policies.rules import operator_name

from .nets import (
    EIGHT_BITS,
    Net,
    assert_nothing_active,
    assert_same,
    gradients,
    mlp,
    normal,
    plain_and_compressed,
    relative_error,
)

X = normal(48, 64)
WEIGHTS = {"w": normal(64, 64, seed=1) / 8, "v": normal(64, 64, seed=2) / 8}


def square_norm(h):
    return h.square().sum()


@pytest.mark.parametrize(
    "transform",
    [
        lambda h: torch.func.grad(square_norm)(h),
        lambda h: torch.func.vjp(torch.sin, h)[1](h)[0],
        lambda h: torch.func.jacrev(torch.sin)(h[0, :3]),
        lambda h: torch.func.vmap(torch.func.grad(square_norm))(h),
    ],
    ids=["grad", "vjp", "jacrev", "vmap(grad)"],
)
@pytest.mark.parametrize("entrance", ["compress_model", "compress"])
def test_torch_func_inside_a_forward_names_the_ways_out(transform, entrance):
    """torch refuses them under any saved-tensor hooks; our note, printed with the error, says what to do."""
    model = Net(lambda self, x: transform(F.linear(x, self.w)).sum(), w=WEIGHTS["w"])
    if entrance == "compress_model":
        integrations.compress_model(model)
        with pytest.raises(RuntimeError, match="saved tensor hooks") as raised:
            model(X)
    else:
        with pytest.raises(RuntimeError, match="saved tensor hooks") as raised, integrations.compress(model):
            model(X)
    [note] = raised.value.__notes__
    for way_out in ("call torch.func outside of the compressed forward", "integrations.restore_model"):
        assert way_out in note
    assert_nothing_active()


def test_torch_func_around_a_model_that_does_not_train():
    model = integrations.compress_model(mlp()).eval()
    slope = torch.func.grad(lambda x: model(x).sum())(X)
    assert torch.equal(slope, torch.func.grad(lambda x: mlp()(x).sum())(X))


def test_vmap_inside_a_forward():
    def forward(self, x):
        return torch.vmap(lambda row: F.linear(F.relu(row), self.v))(F.linear(x, self.w))

    plain, compressed, _ = plain_and_compressed(Net(forward, **WEIGHTS), X, level="L1.1")
    assert torch.equal(plain["w"], compressed["w"])
    assert relative_error(plain, compressed) < EIGHT_BITS


@pytest.mark.parametrize("tangent", [torch.ones_like(X), normal(48, 64, seed=5)], ids=["ones", "normal"])
def test_forward_mode_inside_a_training_step(tangent):
    """Tangents come out exactly; backward runs as ever."""
    found = []
    for level in ("L0", "L1.1"):
        model = integrations.compress_model(mlp(), level)
        with forward_ad.dual_level():
            output = model(forward_ad.make_dual(X, tangent))
            primal, derivative = forward_ad.unpack_dual(output)
            primal.square().mean().backward()
        found.append(({name: p.grad for name, p in model.named_parameters()}, derivative))
    assert torch.equal(found[0][1], found[1][1])
    assert relative_error(found[0][0], found[1][0]) < EIGHT_BITS


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_tracing_sees_the_plain_model():
    model = integrations.compress_model(mlp())
    traced = torch.jit.trace(model, X)
    assert torch.equal(traced(X), mlp()(X))
    assert integrations.compression(model).step == 0
    assert "actcore" not in str(traced.inlined_graph)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_scripted_part():
    """What a scripted module saves is nobody's operator: kept. Around it all is as ever."""
    torch.manual_seed(0)
    part = nn.Sequential(nn.ReLU(), nn.Linear(64, 64))
    model = nn.Sequential(nn.Linear(64, 64), part, nn.Linear(64, 64))
    plain = gradients(model, X)
    model[1] = torch.jit.script(part)
    integrations.compress_model(model, "L1.1")
    model.zero_grad()
    model(X).square().mean().backward()
    assert relative_error(plain, {name: p.grad for name, p in model.named_parameters()}) < EIGHT_BITS


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_scripting_a_compressed_model_says_what_to_do():
    model = integrations.compress_model(mlp())
    with pytest.raises(AttributeError, match="cannot compile the forward of a compressed Sequential: script it after"):
        torch.jit.script(model)
    assert torch.equal(torch.jit.script(integrations.restore_model(model))(X), mlp()(X))


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("options", [{"layers": "q"}, {"linear": 0.5}, {"activations": 3}], ids=str)
@pytest.mark.parametrize("level", ["L0", "L1"])
def test_scripting_exchanged_layers_says_what_to_do(level, options):
    model = integrations.compress_model(mlp(), level, **options)
    with pytest.raises(RuntimeError, match=r"not support \w+\.\w+; .*integrations.restore_model in a compressed one"):
        torch.jit.script(model)
    assert torch.equal(torch.jit.script(integrations.restore_model(model))(X), mlp()(X))


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_exporting_sees_the_plain_model(strict, training):
    model = integrations.compress_model(mlp()).train(training)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported = torch.export.export(model, (X,), strict=strict)
    assert torch.equal(exported.module()(X), mlp()(X))
    assert "actcore" not in str(exported.graph)
    assert set(exported.state_dict) == set(mlp().state_dict())
    assert any("runs uncompressed" in str(found.message) for found in caught) == training
    assert integrations.compression(model).step == 0
    gradients(model.train(), X)
    assert integrations.compression(model).report().ratio > 1


# ---- operators of others ----


@torch.library.custom_op("integrations_tests::relu", mutates_args=())
def foreign_relu(x: torch.Tensor) -> torch.Tensor:
    """Named like torch's, and something else: its gradient needs the result's very values."""
    return x.exp()


foreign_relu.register_autograd(
    lambda ctx, grad: grad * ctx.saved_tensors[0],
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


class Exponential(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(x, result)
        return result

    @staticmethod
    def backward(ctx, grad):
        x, result = ctx.saved_tensors
        return grad * x.exp() / 2 + grad * result / 2


def mul(x):
    """A function of another library that torch function modes see, named like torch's."""
    if torch.overrides.has_torch_function_unary(x):
        return torch.overrides.handle_torch_function(mul, (x,), x)
    return x.exp()


@pytest.mark.parametrize(
    "operator",
    [
        foreign_relu,
        torch.ops.integrations_tests.relu,
        torch.ops.integrations_tests.relu.default,
        Exponential.apply,
        mul,
    ],
    ids=["custom_op", "packet", "overload", "Function", "python"],
)
def test_an_operator_of_another_library_is_exact_whatever_its_name(operator):
    net = Net(lambda self, x: operator(F.linear(x, self.w)), w=WEIGHTS["w"])
    plain, compressed, _ = plain_and_compressed(net, X, level="L1.2")
    assert_same(plain, compressed)


def test_what_a_custom_function_saves_shares_what_is_kept():
    """Its input is nobody's, so kept; the linear layer that saves the same tensor uses it at no cost."""
    net = Net(lambda self, x: Exponential.apply(h := F.linear(x, self.w)) + F.linear(h, self.v), **WEIGHTS)
    plain, compressed, model = plain_and_compressed(net, X)
    assert_same(plain, compressed)
    assert integrations.compression(model).report().stored_bytes == 2 * 4 * X.numel()


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.relu, "relu"),
        (torch.relu_, "relu"),
        (torch.Tensor.relu, "relu"),
        (torch.nn.functional.relu, "relu"),
        (torch.ops.aten.relu.default, "relu"),
        (torch.ops.aten.mul, "mul"),
        (torch.Tensor.__mul__, "mul"),
        (torch.Tensor.__rmul__, "mul"),
        (torch.Tensor.__imul__, "mul"),
        (torch.Tensor.mul_, "mul"),
        (torch.Tensor.__matmul__, "matmul"),
        (torch.Tensor.__rmatmul__, "matmul"),
        (torch.Tensor.__getitem__, "getitem"),
        (torch.Tensor.__truediv__, "truediv"),
        (torch.Tensor.__index__, "index"),
        (torch.sparse.mm, "sparse_mm"),
        (torch.nn.functional.conv2d, "conv2d"),
        (torch.ops.integrations_tests.relu, "integrations_tests::relu"),
        (torch.ops.integrations_tests.relu.default, "integrations_tests::relu"),
        (len, "len"),
    ],
)
def test_names_of_operators(function, name):
    assert operator_name(function) == name
