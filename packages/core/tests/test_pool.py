"""Max pooling with window indices in few bits."""

import math
import re

import pytest
import torch
from torch.nn import functional

import actcore
from actcore import reference
from actcore.pooling import window_bits

from .fused_samples import POOLS
from .samples import DTYPES, name_of, normal, same_bits

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_pool = pytest.mark.parametrize("name", POOLS)
MINE = {1: actcore.max_pool1d, 2: actcore.max_pool2d, 3: actcore.max_pool3d}
TORCHS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}


def ties(shape, dtype=torch.float32):
    """Few distinct values, so that windows have ties, and some NaN and infinities."""
    x = (2 * normal(torch.Size(shape).numel())).round().view(shape)
    flat = x.view(-1)
    flat[3::17], flat[5::41], flat[7::13] = math.nan, math.inf, -math.inf
    return x.to(dtype)


@every_dtype
@every_pool
def test_values_and_indices_are_torchs(name, dtype):
    shape, *options = POOLS[name]
    dims = len(options[0])
    x = ties(shape, dtype)
    output, packed = ops.max_pool(x, *options)
    expected, indices = TORCHS[dims](x, *options, return_indices=True)
    assert same_bits(output, expected)
    assert torch.equal(ops.window_index_unpack(packed, shape, *options), indices)
    again, misfit = ops.window_index_pack(indices, shape, *options)
    assert torch.equal(again, packed)
    assert misfit.item() == 0
    assert packed.numel() == (output.numel() * window_bits(options[0]) + 7) // 8


@every_pool
def test_operators_are_the_reference(name):
    shape, *options = POOLS[name]
    x = ties(shape)
    output, packed = ops.max_pool(x, *options)
    for got, expected in zip((output, packed), reference.max_pool(x, *options), strict=True):
        assert same_bits(got, expected)
    for dtype in (torch.float32, torch.bfloat16):
        gradient = normal(output.numel(), dtype, seed=1).view(output.shape)
        got = ops.max_pool_backward(gradient, packed, shape, *options)
        assert same_bits(got, reference.max_pool_backward(gradient, packed, shape, *options))


@every_pool
def test_gradient_is_torchs(name):
    """Float64 and integer gradients, whose sums are exact in any order."""
    shape, *options = POOLS[name]
    dims = len(options[0])
    mine, torchs = (ties(shape, torch.float64).requires_grad_() for _ in range(2))
    output = MINE[dims](mine, *options)
    gradient = (8 * normal(output.numel(), torch.float64)).round().view(output.shape)
    output.backward(gradient)
    TORCHS[dims](torchs, *options).backward(gradient)
    assert torch.equal(mine.grad, torchs.grad)


def test_threads_change_nothing(set_threads):
    x = normal(3 * 5 * 90 * 91).view(3, 5, 90, 91)
    options = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    results = []
    for threads in (1, 3):
        set_threads(threads)
        output, packed = ops.max_pool(x, *options)
        results.append([output, packed, ops.max_pool_backward(output, packed, x.shape, *options)])
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


def test_only_the_window_indices_are_saved():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        actcore.max_pool2d(normal(2 * 3 * 64).view(2, 3, 8, 8).requires_grad_(), 3, 2, 1)
    assert [(tensor.dtype, tensor.numel()) for tensor in saved] == [(torch.uint8, 2 * 3 * 16 * 4 // 8)]


def test_channels_last():
    x = ties((2, 3, 9, 8)).contiguous(memory_format=torch.channels_last).requires_grad_()
    output = actcore.max_pool2d(x, 3, 2, 1)
    expected = functional.max_pool2d(x, 3, 2, 1)
    assert same_bits(output.detach(), expected.detach())
    assert output.stride() == expected.stride()
    (got,) = torch.autograd.grad(output, x, torch.ones_like(output))
    assert torch.equal(got, torch.autograd.grad(expected, x, torch.ones_like(expected))[0])
    volume = normal(2 * 3 * 4 * 5 * 6).view(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    assert actcore.max_pool3d(volume, 2).is_contiguous(memory_format=torch.channels_last_3d)
    for x in (normal(60).view(1, 1, 60)[..., ::2], normal(8).expand(1, 2, 8)):
        assert torch.equal(actcore.max_pool1d(x, 2), functional.max_pool1d(x, 2))


def test_empty_batch_and_empty_windows():
    assert actcore.max_pool2d(torch.zeros(0, 3, 8, 8), 2).shape == (0, 3, 4, 4)
    x = torch.ones(1, 1, 1, requires_grad=True)
    output = actcore.max_pool1d(x, 2, 1, 3, 5)  # covers places -3 and 2, then -2 and 3: nothing of the input
    assert (output == -math.inf).all()
    output.sum().backward()
    assert x.grad.item() == 0
    _, packed = ops.max_pool(x.detach(), [2], [1], [3], [5], False)
    assert (ops.window_index_unpack(packed, [1, 1, 1], [2], [1], [3], [5], False) == -1).all()


def test_derivatives_and_transforms():
    x = torch.randperm(2 * 49, generator=torch.Generator().manual_seed(0)).double().view(1, 2, 7, 7).requires_grad_()

    def layer(x):
        return actcore.max_pool2d(x, 3, 2, 1)

    assert torch.autograd.gradcheck(layer, (x,), check_batched_grad=True)
    assert torch.autograd.gradgradcheck(layer, (x,))
    total = lambda x: (layer(x) ** 2).sum()  # noqa: E731
    (expected,) = torch.autograd.grad((functional.max_pool2d(x, 3, 2, 1) ** 2).sum(), x)
    assert torch.equal(torch.func.grad(total)(x.detach()), expected)
    for height in (7, 8):  # 32 and 48 codes a sample; and below, 3
        batch = normal(4 * 3 * height * 7, torch.float64).view(4, 3, height, 7)
        got = torch.func.vmap(torch.func.grad(total))(batch)
        assert torch.equal(got, torch.stack([torch.func.grad(total)(one) for one in batch]))
    batch = normal(4 * 9, torch.float64).view(9, 4)
    got = torch.func.vmap(torch.func.grad(lambda x: (actcore.max_pool1d(x[None], 3) ** 2).sum()), in_dims=1)(batch)
    assert torch.equal(got[2], torch.func.grad(lambda x: (actcore.max_pool1d(x[None], 3) ** 2).sum())(batch[:, 2]))


def test_compiled():
    torch.compiler.reset()
    for x in (
        normal(2 * 63).view(2, 1, 9, 7),
        normal(96).view(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    ):
        mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
        loss = lambda x: actcore.max_pool2d(x, 2).square().sum()  # noqa: E731
        loss(mine).backward()
        torch.compile(loss, fullgraph=True, backend="aot_eager")(compiled).backward()
        assert torch.equal(mine.grad, compiled.grad)


@every_pool
def test_opcheck(name):
    shape, *options = POOLS[name]
    x = normal(torch.Size(shape).numel()).view(shape)
    output, packed = ops.max_pool(x, *options)
    torch.library.opcheck(ops.max_pool.default, (x, *options))
    torch.library.opcheck(ops.max_pool_backward.default, (output, packed, list(shape), *options))
    indices = ops.window_index_unpack(packed, list(shape), *options)
    torch.library.opcheck(ops.window_index_pack.default, (indices, list(shape), *options))
    torch.library.opcheck(ops.window_index_unpack.default, (packed, list(shape), *options))


@every_pool
def test_any_indices_are_packed_as_by_the_reference(name):
    """Most are of other windows, and some would be in theirs if rows had no ends."""
    shape, *options = POOLS[name]
    output, _ = ops.max_pool(ties(shape), *options)
    plane = math.prod(shape[-len(options[0]) :])
    for seed in range(4):
        indices = torch.randint(-2, plane + 2, output.shape, generator=torch.Generator().manual_seed(seed))
        got, expected = (made.window_index_pack(indices, shape, *options) for made in (ops, reference))
        assert torch.equal(got[0], expected[0])
        assert torch.equal(got[1], expected[1])


@every_pool
def test_any_places_are_unpacked_as_by_the_reference(name):
    """Those of the padding, too, which no maximum has."""
    shape, *options = POOLS[name]
    output, _ = ops.max_pool(ties(shape), *options)
    places = torch.randint(
        0, math.prod(options[0]), (output.numel(),), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    packed = actcore.pack_bits(places, window_bits(options[0]))
    expected = reference.window_index_unpack(packed, shape, *options)
    assert torch.equal(ops.window_index_unpack(packed, shape, *options), expected)


def test_a_damaged_place_names_an_element_of_its_plane_and_changes_no_other():
    shape, *options = POOLS["tiles that end in a row"]
    output, packed = ops.max_pool(ties(shape), *options)
    indices = ops.window_index_unpack(packed, shape, *options).flatten()
    for output_number in (0, 255, 300, output.numel() - 1):
        for place in range(9, 16):
            codes = actcore.unpack_bits(packed, 4, output.numel())
            codes[output_number] = place
            got = ops.window_index_unpack(actcore.pack_bits(codes, 4), shape, *options).flatten()
            assert -1 <= got[output_number] < 41 * 39
            got[output_number] = indices[output_number]
            assert torch.equal(got, indices)


def test_an_index_outside_of_its_window_is_reported():
    options = ([1, 32], [2], [2], [0], [1], False)
    for number in (0, 7, 15):
        for place in (-1, (2 * number + 5) % 32, 64, 2**62):
            indices = 2 * torch.arange(16).view(1, 16)
            assert ops.window_index_pack(indices, *options)[1].item() == 0
            indices[0, number] = place
            assert ops.window_index_pack(indices, *options)[1].item() == 1


X = torch.zeros(1, 8, 8)
U8 = torch.zeros(4, dtype=torch.uint8)
WRONG = [
    ("max_pool", (X[..., ::2], [2], [2], [0], [1], False), "input must be contiguous"),
    ("max_pool", (X.int(), [2], [2], [0], [1], False), "input must be float32, float64, float16 or bfloat16"),
    ("max_pool", (X, [2, 2], [2], [0, 0], [1, 1], False), "stride must have 2 numbers like kernel, got 1"),
    ("max_pool", (X, [], [], [], [], False), "kernel must have 1 to 3 numbers, got 0"),
    ("max_pool", (X, [0], [1], [0], [1], False), "kernel must be positive, got 0"),
    ("max_pool", (X, [2], [0], [0], [1], False), "stride must be positive, got 0"),
    ("max_pool", (X, [2], [1], [0], [-1], False), "dilation must be positive, got -1"),
    ("max_pool", (X, [2], [1], [2], [1], False), "padding must be from 0 to half of"),
    (
        "max_pool",
        (X, [9], [1], [0], [1], False),
        "kernel 9 with dilation 1 does not fit into 8 elements with padding 0",
    ),
    ("max_pool", (X, [17, 16], [1, 1], [8, 8], [1, 1], False), "a window must have at most 256"),
    ("max_pool", (X[0, 0], [2, 2], [1, 1], [0, 0], [1, 1], False), "the input must have at least the 2 dimensions"),
    ("max_pool", (X[..., :0], [1], [1], [0], [1], False), "pooled dimensions must not be empty, got 0"),
    (
        "max_pool_backward",
        (X, U8, [1, 8, 8], [2], [2], [0], [1], False),
        "gradient must have the shape of the pooling's",
    ),
    (
        "max_pool_backward",
        (torch.zeros(1, 8, 4), U8[1:], [1, 8, 8], [2], [2], [0], [1], False),
        "packed must hold 4 bytes, got 3",
    ),
    ("window_index_pack", (X, [1, 8, 8], [2], [2], [0], [1], False), "indices must be int64"),
    ("window_index_unpack", (U8, [1, 8, 80], [2], [2], [0], [1], False), "packed must hold 40 bytes, got 4"),
]


@pytest.mark.parametrize(("operator", "arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(*arguments)


def test_wrong_arguments_of_the_functions():
    with pytest.raises(ValueError, match="x must have 3 or 4 dimensions for max_pool2d, got 2"):
        actcore.max_pool2d(torch.zeros(4, 4), 2)
    with pytest.raises(ValueError, match=r"at most 256 elements.* got 289 .*use torch.nn.functional.max_pool2d"):
        actcore.max_pool2d(torch.zeros(1, 32, 32), 17)
    with pytest.raises(ValueError, match="padding must be at most half of the kernel, 1, got 2"):
        actcore.max_pool1d(X, 2, padding=2)
    with pytest.raises(ValueError, match=r"stride must be an int or a sequence of 1 ints, got \(1, 2\)"):
        actcore.max_pool1d(X, 2, (1, 2))
    with pytest.raises(ValueError, match="kernel_size must be at least 1, got 0"):
        actcore.max_pool1d(X, 0)
    with pytest.raises(
        ValueError, match=r"kernel_size \[9\] with dilation \[1\] does not fit into the shape \(1, 8, 8\)"
    ):
        actcore.max_pool1d(X, 9)
    with pytest.raises(TypeError, match=r"got torch.int64; cast it with .to\(\)"):
        actcore.max_pool1d(X.long(), 2)
