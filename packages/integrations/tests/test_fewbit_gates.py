"""Gates: exact with two tensors of three, or few bits an element."""

import pytest
import torch
import torch.nn.functional as F

from integrations import fewbit

from .fewbit_samples import DTYPES, name_of, normal, saved_by

functional = fewbit.functional
GATES = {
    "glu": (functional.glu, torch.sigmoid, False),
    "swiglu": (functional.swiglu, F.silu, True),
    "geglu": (functional.geglu, F.gelu, True),
    "geglu_tanh": (
        lambda *inputs, **options: functional.geglu(*inputs, approximate="tanh", **options),
        lambda x: F.gelu(x, approximate="tanh"),
        True,
    ),
    "reglu": (functional.reglu, F.relu, True),
}
every_gate = pytest.mark.parametrize("name", GATES)


def plain(name, a, b):
    _, act, gate_first = GATES[name]
    return act(a) * b if gate_first else a * act(b)


def gradients(function, *inputs, gradient):
    leaves = [x.clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    return output.detach(), *torch.autograd.grad(output, leaves, gradient)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@every_gate
def test_values_and_gradients_are_torchs(name, dtype):
    """The gate's own gradient multiplies in torch's order, so that there is no other rounding either."""
    a, b, gradient = (2 * normal(40, 64, seed=seed, dtype=dtype) for seed in range(3))
    mine = gradients(GATES[name][0], a, b, gradient=gradient)
    torchs = gradients(lambda a, b: plain(name, a, b), a, b, gradient=gradient)
    for got, expected in zip(mine, torchs, strict=True):
        assert torch.equal(got, expected)


@every_gate
def test_one_tensor_is_split_in_half(name):
    gate = GATES[name][0]
    x, gradient = normal(6, 10, 3), normal(6, 5, 3, seed=1)
    mine = gradients(lambda x: gate(x, dim=1), x, gradient=gradient)
    torchs = gradients(lambda x: plain(name, *x.chunk(2, 1)), x, gradient=gradient)
    for got, expected in zip(mine, torchs, strict=True):
        torch.testing.assert_close(got, expected, rtol=4 * torch.finfo(torch.float32).eps, atol=1e-6)
    assert torch.equal(mine[0], torchs[0]) or name == "glu"


@pytest.mark.parametrize("options", [{}, {"bits": 8}])
def test_glu_takes_torchs_arguments(options):
    x = normal(6, 10, 3)
    for dim in (1, -2, 0):
        assert torch.equal(functional.glu(x, dim, **options), F.glu(x, dim))
    assert torch.equal(functional.glu(x, dim=1, **options), F.glu(x, dim=1))


def test_the_gate_may_be_the_second():
    a, b = normal(5), normal(5, seed=1)
    assert torch.equal(functional.swiglu(a, b, gate_first=False), a * F.silu(b))
    assert torch.equal(functional.swiglu(torch.cat([a, b]), gate_first=False), a * F.silu(b))


def test_glu_without_bits_is_torchs():
    x = normal(4, 6)
    assert torch.equal(functional.glu(x), F.glu(x))
    assert [tensor.numel() for tensor in saved_by(functional.glu, x)] == [24]


@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_two_tensors_are_kept_where_pytorch_keeps_three(name):
    a, b = normal(100), normal(100, seed=1)
    assert len(saved_by(lambda a, b: plain(name, a, b), a, b)) == 3
    assert [tensor.numel() for tensor in saved_by(GATES[name][0], a, b)] == [100, 100]


def test_two_halves_of_one_tensor_are_one_storage():
    saved = saved_by(functional.swiglu, normal(4, 100))
    assert len({tensor.untyped_storage().data_ptr() for tensor in saved}) == 1
    assert saved[0].untyped_storage().nbytes() == 1600


@every_gate
def test_bits_keep_three_times_their_number(name):
    """Codes of 4 bits three times, or twice and one bit for ReLU; guards, and the bounds of groups of 256."""
    n = 8192
    saved = saved_by(lambda a, b: GATES[name][0](a, b, bits=4), normal(n), normal(n, seed=1))
    derivative = n // 8 if name == "reglu" else n // 2 + 8
    assert sum(tensor.nbytes for tensor in saved if tensor.dtype == torch.uint8) == derivative + 2 * n // 2
    assert sum(tensor.nbytes for tensor in saved if tensor.numel() == 2 * n // 256) == 2 * (2 * n // 256) * 4


def test_the_values_gradient_is_unbiased():
    """1024 roundings of one value: each is off by half a step at most in standard deviation, their mean by a 32nd."""
    a, b = normal(256), normal(256, seed=1)  # one of the groups that bounds belong to
    many = (x.expand(1024, 256).contiguous() for x in (a, b))
    slopes = gradients(lambda a, b: functional.swiglu(a, b, bits=3), *many, gradient=torch.ones(1024, 256))[2]
    step = (F.silu(a).max() - F.silu(a).min()) / 7
    # 256 means of nearly normal errors: 5 standard deviations are passed once in 7,000 such tests.
    assert (slopes.mean(0) - F.silu(a)).abs().max() < 5 * step / 2 / 32
    assert not torch.equal(slopes[0], slopes[1])


@every_gate
def test_second_derivatives(name):
    a, b = (normal(12, seed=seed, dtype=torch.float64).requires_grad_() for seed in (3, 4))
    assert torch.autograd.gradgradcheck(GATES[name][0], (a, b))


@every_gate
def test_transforms(name):
    a, b = normal(3, 8), normal(3, 8, seed=1)

    def loss(function):
        return lambda a, b: function(a, b).square().sum()

    mine = torch.func.vmap(torch.func.grad(loss(GATES[name][0]), argnums=(0, 1)))(a, b)
    torchs = torch.func.vmap(torch.func.grad(loss(lambda a, b: plain(name, a, b)), argnums=(0, 1)))(a, b)
    for got, expected in zip(mine, torchs, strict=True):
        assert torch.equal(got, expected)


def test_one_input_may_need_no_gradient():
    a, b = normal(10), normal(10, seed=1)
    for bits in (None, 8):
        at = a.clone().requires_grad_()
        functional.swiglu(at, b, bits=bits).sum().backward()
        other = b.clone().requires_grad_()
        functional.swiglu(a, other, bits=bits).sum().backward()
        assert at.grad is not None
        assert other.grad is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: functional.swiglu(torch.ones(3)), "even size along dim -1, to be split in half, got shape"),
        (lambda: functional.swiglu(torch.ones(())), "even size"),
        (lambda: functional.swiglu(torch.ones(3), torch.ones(4)), "must have the same shape"),
        (lambda: functional.swiglu(torch.ones(4), bits=9), "bits must be from 1 to 8"),
        (lambda: functional.geglu(torch.ones(4), approximate="erf"), "approximate must be 'none' or 'tanh'"),
        (lambda: fewbit.SwiGLU(bits=0), "bits must be from 1 to 8"),
        (lambda: fewbit.GEGLU(approximate="erf"), "approximate must be 'none' or 'tanh'"),
    ],
)
def test_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_layers():
    a, b = normal(4), normal(4, seed=1)
    both = torch.cat([a, b])
    assert torch.equal(fewbit.SwiGLU()(a, b), F.silu(a) * b)
    assert torch.equal(fewbit.GEGLU(approximate="tanh")(both), F.gelu(a, approximate="tanh") * b)
    assert torch.equal(fewbit.ReGLU(gate_first=False)(both), a * F.relu(b))
    assert torch.equal(fewbit.GLU()(both), F.glu(both))
    assert isinstance(fewbit.GLU(bits=3), torch.nn.GLU)
    assert repr(fewbit.SwiGLU(bits=3)) == "SwiGLU(dim=-1, bits=3)"
    assert repr(fewbit.GLU(1, bits=3)) == "GLU(dim=1, bits=3)"
    assert repr(fewbit.GEGLU(approximate="tanh", gate_first=False)) == (
        "GEGLU(dim=-1, gate_first=False, approximate='tanh')"
    )
    quiet = fewbit.SwiGLU(bits=3).eval()
    assert [tensor.numel() for tensor in saved_by(quiet, a, b)] == [4, 4]
