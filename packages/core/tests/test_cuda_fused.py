"""The fused operators give on CUDA the bits that they give on the CPU."""

import pytest
import torch

import actcore
from actcore.reference.stepwise import FUNCTIONS

from .fused_samples import POOLS, levels_for
from .samples import BITS, DTYPES, NUMELS, name_of, normal, same_bits

if actcore.build_info()["cuda_missing"]:
    pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}", allow_module_level=True)
if not torch.cuda.is_available():
    pytest.skip("torch finds no GPU", allow_module_level=True)

pytestmark = pytest.mark.cuda

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
LENGTHS = (*NUMELS, 20_000)


def assert_as_on_cpu(operator, *arguments):
    """Calls it on both devices; returns what the CPU gave."""
    expected = getattr(ops, operator)(*arguments)
    got = getattr(ops, operator)(*(one.cuda() if isinstance(one, torch.Tensor) else one for one in arguments))
    several = isinstance(expected, tuple)
    for one, other in zip(got if several else [got], expected if several else [expected], strict=True):
        assert one.is_cuda
        assert same_bits(one.cpu(), other), operator
    return expected


@every_dtype
def test_masked(dtype):
    for numel in LENGTHS:
        x = normal(numel, dtype)
        x[::5], x[1::7] = -0.0, float("nan")
        assert_as_on_cpu("relu_mask", x)
        for draw in (None, torch.tensor([-7])):
            _, mask = assert_as_on_cpu("dropout_mask", x, 0.3, 2**60, -5, draw)
        assert_as_on_cpu("mask_backward", x, mask, 65536 / 45875)


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_codes_and_levels(dtype, bits):
    boundaries, levels = levels_for(bits, dtype)
    for numel in LENGTHS:
        x = normal(numel, dtype)
        x[::11] = float("nan")
        codes = assert_as_on_cpu("stepwise_codes", x, boundaries, bits)
        assert_as_on_cpu("stepwise_backward", x, codes, levels, bits)


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_guards_and_even_tables(dtype, bits):
    boundaries, levels = levels_for(bits, dtype)
    for numel in (*LENGTHS, 1023, 1024, 1025):
        x = normal(numel, dtype)
        x[::3000], x[1500::4000], x[-1:] = float("nan"), float("-inf"), float("inf")
        for guard in ("nan", "nonfinite"):
            codes = assert_as_on_cpu("stepwise_codes", x, boundaries + 2, bits, True, guard)
            assert_as_on_cpu("stepwise_backward", x, codes, levels, bits, True)


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_levels(dtype, bits):
    levels = levels_for(bits, dtype)[1].sort().values
    for numel in (*LENGTHS, 1023, 1025):
        slope, x = normal(numel, dtype), normal(numel, dtype, seed=1)
        slope[::3000], x[1500::4000] = float("nan"), float("inf")
        for draw in (None, torch.tensor([-7])):
            for guard in ("none", "nan", "nonfinite"):
                assert_as_on_cpu("level_codes", slope, x, levels, bits, 2**60, -5, draw, guard)


@every_dtype
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_are_near_torchs(function, dtype):
    """torch contracts products and sums, we do not; the functions have conditions below 4 here, so that some 10
    roundings of half an ulp each, of values up to 4, stay below 32 ulps of 1 (or of the value). Doubles are compared
    with torch's CPU: on CUDA its hardsigmoid and hardswish multiply them by a sixth in float32."""
    x = normal(5000, dtype).clamp(-4, 4).cuda()
    boundaries = levels_for(3, dtype)[0].cuda()
    output, codes = ops.stepwise(x, function, [], boundaries, 3)
    eps = 32 * torch.finfo(dtype).eps
    expected = FUNCTIONS[function](x.cpu() if dtype == torch.float64 else x)
    torch.testing.assert_close(output, expected.cuda(), rtol=eps, atol=eps)
    assert torch.equal(codes.cpu(), ops.stepwise_codes(x.cpu(), boundaries.cpu(), 3))


@every_dtype
@pytest.mark.parametrize("name", POOLS)
def test_pools(name, dtype):
    shape, *options = POOLS[name]
    x = (2 * normal(torch.Size(shape).numel())).round().view(shape).to(dtype)
    x.view(-1)[::13] = float("nan")
    output, packed = assert_as_on_cpu("max_pool", x, *options)
    gradient = normal(output.numel(), dtype, seed=1).view(output.shape)
    assert_as_on_cpu("max_pool_backward", gradient, packed, list(shape), *options)
    indices = assert_as_on_cpu("window_index_unpack", packed, list(shape), *options)
    assert_as_on_cpu("window_index_pack", indices, list(shape), *options)


def test_functions_with_gradients():
    x = normal(2 * 3 * 64).view(2, 3, 8, 8)

    def loss(x):
        y = actcore.max_pool2d(actcore.dropout(actcore.relu(x), 0.5, seed=1), 2)
        y = actcore.round_to_levels(y, "relu", [0.0, 0.5, 1.0], seed=2)
        y = actcore.stepwise(y, torch.abs, [0.7], [1.0, 2.0], even=True, guard="nan")
        return actcore.stepwise(y, "relu", [0.5], [0.0, 1.0]).sum()

    (expected,) = torch.autograd.grad(loss(on_cpu := x.clone().requires_grad_()), on_cpu)
    (got,) = torch.autograd.grad(loss(on_gpu := x.cuda().requires_grad_()), on_gpu)
    assert torch.equal(got.cpu(), expected)


def test_a_graph_advances_dropout():
    """The draw is a tensor, so a replay has new noise."""
    x = torch.ones(1000, device="cuda")
    actcore.dropout(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = actcore.dropout(x)
    graph.replay()
    first = output.clone()
    graph.replay()
    assert not torch.equal(first, output)
