"""ReLU and dropout with a mask of one bit an element."""

import math
import re

import pytest
import torch
from torch.nn import functional

import actcore
from actcore import reference
from actcore.fused import dropout_scale

from .samples import DTYPES, NUMELS, name_of, normal, same_bits

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)


def special(dtype):
    """Zeros of both signs, infinities, NaN of both signs, subnormals, among ordinary values."""
    tiny = torch.finfo(dtype).smallest_normal / 2
    values = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, tiny, -tiny, 1.5, -1.5]).to(dtype)
    return torch.cat([values, normal(67, dtype)])


@every_dtype
def test_relu_is_the_reference_and_torch_bit_for_bit(dtype):
    for x in (special(dtype), *(normal(numel, dtype) for numel in NUMELS)):
        output, mask = ops.relu_mask(x)
        expected, expected_mask = reference.relu_mask(x)
        assert same_bits(output, expected)
        assert same_bits(output, torch.relu(x))
        assert torch.equal(mask, expected_mask)


@every_dtype
def test_gradient_of_relu_is_torchs(dtype):
    """NaN lets the gradient pass, zeros of both signs do not."""
    x, gradient = special(dtype), normal(77, dtype, seed=1)
    mine, torchs = x.clone().requires_grad_(), x.clone().requires_grad_()
    actcore.relu(mine).backward(gradient)
    torch.relu(torchs).backward(gradient)
    assert same_bits(mine.grad, torchs.grad)


@every_dtype
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9999999, 1.0])
def test_dropout_is_the_reference_bit_for_bit(dtype, p):
    for numel in NUMELS:
        x = normal(numel, dtype)
        for draw in (None, torch.tensor([2**62 + 5])):
            got = ops.dropout_mask(x, p, -3, 1 << 40, draw)
            for one, other in zip(got, reference.dropout_mask(x, p, -3, 1 << 40, draw), strict=True):
                assert same_bits(one, other)


def test_bits_do_not_depend_on_the_number_of_threads(set_threads):
    x = normal(200_003)
    expected = [*ops.relu_mask(x), *ops.dropout_mask(x, 0.3, 1, 2)]
    set_threads(3)
    for one, other in zip([*ops.relu_mask(x), *ops.dropout_mask(x, 0.3, 1, 2)], expected, strict=True):
        assert same_bits(one, other)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.99])
def test_dropout_is_unbiased(p):
    """The number kept is binomial with the rate that the scale inverts; five standard deviations: 1 in 2 million."""
    numel = 400_000
    output = actcore.dropout(torch.ones(numel), p, seed=9)
    kept = int((output != 0).sum())
    rate = 1 / dropout_scale(p)
    assert abs(rate - (1 - p)) <= 2**-17
    assert abs(kept - rate * numel) < 5 * math.sqrt(numel * rate * (1 - rate))
    assert set(output.tolist()) == {0.0, float(torch.tensor(dropout_scale(p)))}


def test_seeds_and_streams_of_dropout():
    x = torch.ones(1000)
    first = actcore.dropout(x, 0.5, seed=1, stream=2)
    assert torch.equal(first, actcore.dropout(x, 0.5, seed=1, stream=2))
    assert not torch.equal(first, actcore.dropout(x, 0.5, seed=2, stream=2))
    assert not torch.equal(first, actcore.dropout(x, 0.5, seed=1, stream=3))
    assert torch.equal(first, actcore.dropout(x, 0.5, seed=1 + 2**64, stream=2))
    torch.manual_seed(5)
    one, two = actcore.dropout(x), actcore.dropout(x)
    assert not torch.equal(one, two)
    torch.manual_seed(5)
    assert torch.equal(one, actcore.dropout(x))


def test_a_seed_leaves_torchs_generator_alone():
    state = torch.get_rng_state()
    actcore.dropout(torch.ones(10), 0.5, seed=1)
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_off_returns_the_input():
    x = normal(10)
    assert actcore.dropout(x, 0.5, training=False) is x
    assert actcore.dropout(x, 0.0) is x
    assert torch.equal(actcore.dropout(x, 1.0), torch.zeros(10))


def test_what_dropout_drops_is_zero_even_if_it_was_not_finite():
    x = torch.full((1000,), math.nan)
    output = actcore.dropout(x, 0.5, seed=1)
    assert 0 < int((output == 0).sum()) < 1000
    assert int(output.isnan().sum()) + int((output == 0).sum()) == 1000


@pytest.mark.parametrize("layer", [actcore.relu, lambda x: actcore.dropout(x, 0.4, seed=3)], ids=["relu", "dropout"])
def test_memory_orders(layer):
    """The output has the input's strides, as torch's ReLU, and each gradient meets its own element's bit."""
    x = normal(2 * 3 * 5 * 7).view(2, 3, 5, 7)
    cases = {
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "slice": x[:, :, 1:4, ::2],
        "expanded": normal(7).expand(3, 7),
        "scalar": normal(1).view(()),
        "empty": x[:0],
    }
    for name, case in cases.items():
        case = case.detach().requires_grad_()
        output = layer(case)
        assert output.shape == case.shape, name
        if name not in ("expanded", "empty"):
            assert output.stride() == torch.relu(case).stride(), name
        gradient = normal(case.numel(), seed=4).view(case.shape)
        (got,) = torch.autograd.grad(output, case, gradient)
        ratio = torch.where(case == 0, 0, output.detach() / case.detach())
        torch.testing.assert_close(got, gradient * ratio, msg=name)  # ratio is 0, 1 or a scale, within an ulp
        assert torch.equal(got == 0, ratio == 0), name


def test_only_the_bits_are_saved():
    saved = []

    def pack(tensor):
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        x = normal(1001).requires_grad_()
        actcore.dropout(actcore.relu(x), 0.5, seed=1)
    assert [(tensor.dtype, tensor.numel()) for tensor in saved] == [(torch.uint8, 126)] * 2


@pytest.mark.parametrize("layer", [actcore.relu, lambda x: actcore.dropout(x, 0.4, seed=3)], ids=["relu", "dropout"])
def test_derivatives(layer):
    x = normal(35, torch.float64).view(5, 7).requires_grad_()
    assert torch.autograd.gradcheck(layer, (x,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, (x,))
    total = lambda x: (layer(x) ** 3).sum()  # noqa: E731
    (expected,) = torch.autograd.grad(total(x), x)
    plain = x.detach()
    assert torch.equal(torch.func.grad(total)(plain), expected)
    (second,) = torch.autograd.grad(torch.autograd.grad(total(x), x, create_graph=True)[0].sum(), x)
    assert torch.equal(torch.func.grad(lambda x: torch.func.grad(total)(x).sum())(plain), second)
    assert torch.equal(torch.func.vjp(layer, plain)[1](plain)[0], torch.autograd.grad(layer(x), x, plain)[0])


@pytest.mark.parametrize("width", [7, 16])
def test_vmap(width):
    """Samples whose bits fill whole bytes go through one call, others one by one; both are as without vmap."""
    x = normal(5 * width, torch.float64).view(width, 5)
    rows = x.t()
    gradient = torch.func.vmap(torch.func.grad(lambda x: (actcore.relu(x) ** 2).sum()), in_dims=1)
    assert torch.equal(gradient(x), 2 * torch.relu(rows))
    assert torch.equal(
        torch.func.vmap(torch.ops.actcore.relu_mask, in_dims=1)(x)[1][2], ops.relu_mask(rows[2].contiguous())[1]
    )
    dropped = torch.func.vmap(lambda x: actcore.dropout(x, 0.5, seed=1), in_dims=1)(x)
    assert torch.equal(dropped, torch.stack([actcore.dropout(row.contiguous(), 0.5, seed=1) for row in rows]))
    different = torch.func.vmap(lambda x: actcore.dropout(x, 0.5), randomness="different")(torch.ones(4, 64))
    assert len({tuple(row.tolist()) for row in different}) == 4
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(actcore.dropout)(torch.ones(4, 64))


def test_forward_mode_raises():
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(actcore.relu, (normal(5),), (normal(5),))


def test_compiled():
    def loss(x):
        return actcore.dropout(actcore.relu(x), 0.5, seed=1).square().sum()

    for x in (normal(130).view(13, 10), normal(96).view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)):
        torch.compiler.reset()
        mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
        loss(mine).backward()
        torch.compile(loss, fullgraph=True, backend="aot_eager")(compiled).backward()
        assert torch.equal(mine.grad, compiled.grad)
    drawn = torch.compile(lambda x: actcore.dropout(x, 0.5), fullgraph=True, backend="aot_eager")
    assert not torch.equal(drawn(torch.ones(100)), drawn(torch.ones(100)))


@pytest.mark.parametrize("order", [(0, 2, 3, 1), (3, 0, 1, 2)], ids=["channels last", "permuted"])
def test_compiled_with_sizes_that_change(order):
    """Of functions that have the same last digits in any memory order, which GELU has not."""
    b7, l8 = torch.linspace(-1, 1, 7), torch.linspace(0, 1, 8)
    layers = (
        actcore.relu,
        lambda x: actcore.dropout(x, 0.5, seed=1),
        lambda x: actcore.stepwise(x, "hardtanh", b7, l8),
    )
    inverse = [order.index(d) for d in range(4)]
    for layer in layers:
        torch.compiler.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        for size in (2, 3, 4):
            x = normal(size * 5 * 3 * 7).view(size, 5, 7, 3).permute(inverse)
            assert torch.equal(compiled(x), layer(x))
            assert compiled(x).stride() == layer(x).stride() == x.stride()


def test_autocast_leaves_the_dtype_alone():
    with torch.autocast("cpu", torch.bfloat16):
        assert actcore.relu(normal(5)).dtype == functional.relu(normal(5)).dtype == torch.float32
        assert actcore.dropout(normal(5, torch.bfloat16)).dtype == torch.bfloat16


@every_dtype
def test_opcheck(dtype):
    x = normal(35, dtype).view(5, 7)
    _, mask = ops.relu_mask(x)
    for operator, arguments in (
        ("relu_mask", (x,)),
        ("dropout_mask", (x, 0.3, 1, 2)),
        ("dropout_mask", (x, 0.3, 1, 2, torch.tensor([7]))),
        ("mask_backward", (x, mask, 2.0)),
    ):
        torch.library.opcheck(getattr(ops, operator).default, arguments)
        asking = (x.clone().requires_grad_(), *arguments[1:])
        torch.library.opcheck(getattr(ops, operator).default, asking)


F32 = torch.zeros(100)
WRONG = [
    ("relu_mask", (F32[::2],), "input must be contiguous; call .contiguous() first"),
    ("relu_mask", (F32.int(),), "input must be float32, float64, float16 or bfloat16"),
    ("dropout_mask", (F32, 1.5, 0, 0), "p must be a probability from 0 to 1, got 1.5"),
    ("dropout_mask", (F32, math.nan, 0, 0), "p must be a probability from 0 to 1, got nan"),
    ("dropout_mask", (F32, 0.5, 0, 0, torch.zeros(2, dtype=torch.int64)), "draw must be one int64, got 2 elements"),
    ("dropout_mask", (F32, 0.5, 0, 0, torch.zeros(1)), "draw must be one int64"),
    ("mask_backward", (F32, torch.zeros(12, dtype=torch.uint8), 1.0), "mask must hold 13 bytes, got 12"),
    ("mask_backward", (F32[::2], torch.zeros(7, dtype=torch.uint8), 1.0), "gradient must be contiguous"),
]


@pytest.mark.parametrize(("operator", "arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(*arguments)


def test_wrong_arguments_of_the_functions():
    with pytest.raises(TypeError, match=r"x must be a float32, .* tensor, got torch.int64; cast it"):
        actcore.relu(torch.arange(3))
    with pytest.raises(TypeError, match="got list"):
        actcore.dropout([1.0])
    with pytest.raises(ValueError, match="p must be a probability from 0 to 1, got -1"):
        actcore.dropout(F32, -1)
    with pytest.raises(TypeError, match="p must be a number, got None"):
        actcore.dropout(F32, None)
    with pytest.raises(TypeError, match=r"seed must be an int or None, got 1.5"):
        actcore.dropout(F32, 0.5, seed=1.5)
