"""Few-bit activations in what surrounds them: no gradients, dtypes, memory orders, autocast, torch.func, compile."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from integrations import fewbit

from .fewbit_samples import PIECEWISE, SMOOTH, code_bytes, few_bits, get_gradient, normal, same_bits, saved_by

functional = fewbit.functional
PIECES = dict(PIECEWISE)  # one set of parameters each
EVERY = {**PIECES, **dict.fromkeys(SMOOTH, ())}
every_function = pytest.mark.parametrize("name", EVERY)


def torchs(name):
    return fewbit.FUNCTIONS[name].call


@every_function
def test_without_gradients_it_is_torchs_call(name, monkeypatch):
    """Neither operators of actcore nor tables are looked at."""
    import actcore

    for attribute in ("stepwise", "relu", "save_for_backward", "round_to_levels"):
        monkeypatch.delattr(actcore, attribute)
    x, leaf = normal(100), normal(100).requires_grad_()
    for call in (lambda: few_bits(name)(x, *EVERY[name]), torch.no_grad()(lambda: few_bits(name)(leaf, *EVERY[name]))):
        assert same_bits(call(), torchs(name)(x, *EVERY[name]))
    with torch.inference_mode():
        assert few_bits(name)(leaf, *EVERY[name]).is_inference()


@every_function
def test_after_inference_mode_its_tables_can_be_saved(name):
    with torch.inference_mode():
        few_bits(name)(normal(10), *EVERY[name])
        with torch.inference_mode(False):
            few_bits(name)(normal(10).requires_grad_(), *EVERY[name]).sum().backward()
    few_bits(name)(normal(10).requires_grad_(), *EVERY[name]).sum().backward()


def test_a_step_function_that_inference_mode_saw_first_can_be_trained():
    """Its values need the tables there, too."""
    layer = fewbit.Stepwise((0.123,), (0.5, 1.0))
    with torch.inference_mode():
        layer(normal(10))
    layer(normal(10).requires_grad_()).sum().backward()


@pytest.mark.parametrize("name", ["relu", "relu6", "gelu", "tanh", "softplus"])
def test_other_tensors_get_what_torch_gives_them(name):
    def outcome(function, x):
        try:
            return function(x)
        except Exception as error:
            return type(error)

    for x in (torch.arange(-3, 4), torch.zeros(3, dtype=torch.complex64, requires_grad=True), [1.0]):
        mine, expected = outcome(few_bits(name), x), outcome(torchs(name), x)
        assert torch.equal(mine, expected) if isinstance(expected, torch.Tensor) else mine is expected


@every_function
def test_any_memory_order_gives_the_gradients_of_the_contiguous_one(name):
    images, gradient = 2 * normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1)
    function = few_bits(name)
    expected = get_gradient(lambda x: function(x, *EVERY[name]), images, gradient)
    for change in (
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(0, 3).contiguous().transpose(0, 3),
        lambda x: torch.stack([x, x], -1)[..., 0],
    ):
        x = change(images).requires_grad_()
        output = function(x, *EVERY[name])
        output.backward(change(gradient))
        plain = torchs(name)(x, *EVERY[name])
        assert torch.equal(output, plain)
        assert output.stride() == plain.stride()
        assert torch.equal(x.grad, expected[1])


@every_function
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1,)])
def test_small_shapes(name, shape):
    x = normal(*shape)
    output, slope = get_gradient(lambda x: few_bits(name)(x, *EVERY[name]), x, torch.ones_like(x))
    assert torch.equal(output, torchs(name)(x, *EVERY[name]))
    assert slope.shape == shape


@every_function
def test_under_autocast_it_returns_what_torchs_does(name):
    for dtype in (torch.float32, torch.bfloat16):
        x = normal(32, dtype=dtype)
        with torch.autocast("cpu", torch.bfloat16):
            output, slope = get_gradient(
                lambda x: few_bits(name)(x, *EVERY[name]), x, torch.ones(32, dtype=torchs(name)(x, *EVERY[name]).dtype)
            )
            assert same_bits(output, torchs(name)(x, *EVERY[name]))
        assert slope.dtype == dtype


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="autocast knows softplus and pow on CUDA only")
@pytest.mark.parametrize("name", ["softplus", "squared_relu", "gelu"])
def test_under_autocast_on_cuda_it_returns_what_torchs_does(name):
    x = normal(32, dtype=torch.float16).cuda().requires_grad_()
    with torch.autocast("cuda", torch.float16):
        output = few_bits(name)(x)
        assert same_bits(output.detach(), torchs(name)(x.detach()))
    output.sum().backward()
    assert x.grad.dtype == torch.float16


@every_function
def test_functional_transforms(name):
    x = normal(4, 64)

    def loss(x):  # whose gradient depends on the output, and so is differentiable itself
        return few_bits(name)(x, *EVERY[name]).square().sum()

    output, slope = get_gradient(lambda x: few_bits(name)(x, *EVERY[name]), x, torch.ones_like(x))
    expected = torch.autograd.grad(loss(at := x.clone().requires_grad_()), at)[0]
    torch.testing.assert_close(expected, 2 * output * slope, rtol=4 * torch.finfo(torch.float32).eps, atol=0)
    assert torch.equal(torch.func.grad(loss)(x), expected)
    assert torch.equal(torch.func.vmap(torch.func.grad(loss))(x), expected)
    assert torch.equal(torch.func.grad(lambda x: torch.func.vmap(loss)(x).sum())(x), expected)


@every_function
def test_forward_mode_is_torchs(name):
    x, direction = normal(24), normal(24, seed=1)
    mine = torch.func.jvp(lambda x: few_bits(name)(x, *EVERY[name]), (x,), (direction,))
    expected = torch.func.jvp(lambda x: torchs(name)(x, *EVERY[name]), (x,), (direction,))
    for got, value in zip(mine, expected, strict=True):
        assert torch.equal(got, value)


@pytest.mark.parametrize("name", ["gelu", "elu", "tanh", "softplus", "leaky_relu", "relu", "relu6", "hardshrink"])
def test_compiled_in_one_graph(name):
    torch._dynamo.reset()
    parameters = EVERY[name]
    compiled = torch.compile(lambda x: few_bits(name)(2 * x, *parameters), fullgraph=True, backend="aot_eager")
    gradient = normal(300, seed=1)
    for x in (normal(300), normal(300, seed=2)):
        mine = get_gradient(compiled, x, gradient)
        eager = get_gradient(lambda x: few_bits(name)(2 * x, *parameters), x, gradient)
        for got, expected in zip(mine, eager, strict=True):
            assert torch.equal(got, expected)


def test_compiled_parameters_may_change():
    """dynamo makes symbols of numbers that change: each must still get a table of its own."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, alpha: functional.elu(x, alpha), fullgraph=True, backend="aot_eager")
    x = normal(100)
    for alpha in (0.5, 0.75, 1.5):
        mine = get_gradient(lambda x, alpha=alpha: compiled(x, alpha), x, torch.ones_like(x))
        eager = get_gradient(lambda x, alpha=alpha: functional.elu(x, alpha), x, torch.ones_like(x))
        assert torch.equal(mine[1], eager[1])


def test_compiled_bounds_may_change():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, high: functional.hardtanh(x, -1.0, high), fullgraph=True, backend="aot_eager")
    x = normal(100)
    for high in (0.5, 0.75, 1.5):
        mine = get_gradient(lambda x, high=high: compiled(x, high), x, torch.ones_like(x))
        torchs_own = get_gradient(lambda x, high=high: F.hardtanh(x, -1.0, high), x, torch.ones_like(x))
        assert torch.equal(mine[1], torchs_own[1])


def test_compiled_layers():
    torch._dynamo.reset()
    model = torch.nn.Sequential(
        fewbit.GELU(bits=4),
        fewbit.SiLU(inplace=True),
        fewbit.ReLU6(inplace=True),
        fewbit.SwiGLU(),
        fewbit.Activation(torch.sin),
        fewbit.Stepwise((0.0,), (0.5, 1.0)),
    )
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x, gradient = normal(8, 64), normal(8, 32, seed=1)
    for got, expected in zip(get_gradient(compiled, x, gradient), get_gradient(model, x, gradient), strict=True):
        assert torch.equal(got, expected)


@every_function
def test_graphs_can_be_kept(name):
    x = normal(50).requires_grad_()
    output = few_bits(name)(x, *EVERY[name])
    [first] = torch.autograd.grad(output.square().sum(), x, retain_graph=True)
    [again] = torch.autograd.grad(output.square().sum(), x)
    assert torch.equal(first, again)


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_functions_refuse_to_be_differentiated_twice(name):
    """Second derivatives are lost with the input; those of piecewise linear functions are in test_fewbit_piecewise."""
    x = normal(50).requires_grad_()
    output = few_bits(name)(x)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(output.square().sum(), x, create_graph=True)


def test_checkpointed():
    x = normal(64)
    for function in (functional.gelu, lambda x: functional.gelu(x, rounding="stochastic")):
        torch.manual_seed(0)
        plain = get_gradient(function, x, torch.ones_like(x))[1]
        torch.manual_seed(0)
        again = get_gradient(
            lambda x, function=function: checkpoint(function, x, use_reentrant=False), x, torch.ones_like(x)
        )[1]
        assert torch.equal(plain, again)


def test_layers_are_copied_and_pickled():
    layer = fewbit.GELU("tanh", bits=5, rounding="stochastic")
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert repr(twin) == repr(layer) == "GELU(approximate='tanh', bits=5, rounding='stochastic')"
        assert twin(normal(4)).shape == (4,)


def test_saved_tensor_hooks_see_codes():
    """Other packages' hooks, such as those that move saved tensors to the host, get the codes."""
    with torch.autograd.graph.save_on_cpu():
        get_gradient(functional.gelu, normal(100), torch.ones(100))
    assert code_bytes(functional.gelu, normal(2048)) == 3 * 256 + 2


def test_subclasses_are_torchs_affair():
    class Mine(torch.Tensor):
        pass

    x = normal(10).as_subclass(Mine).requires_grad_()
    assert type(functional.gelu(x)) is Mine
    assert [tensor.numel() for tensor in saved_by(F.gelu, normal(10))] == [10]
