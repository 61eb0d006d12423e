"""Even tables, whose steps are of the magnitude, and guards, which give NaN where there is no derivative."""

import math
import re

import pytest
import torch

import actcore
from actcore import reference
from actcore.fused.guards import GUARDS, STRETCH

from .fused_samples import levels_for
from .samples import BITS, DTYPES, name_of, normal, same_bits

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
# Around a stretch, and so many that threads share them.
LENGTHS = (0, 1, 7, 1023, 1024, 1025, 2049, 70_001)
STRANGE = {"none": (), "nan": (math.nan,), "nonfinite": (math.nan, math.inf, -math.inf)}


def magnitudes_for(bits, dtype=torch.float32, *, missing=0):
    """Boundaries of the magnitude, and levels."""
    boundaries, levels = levels_for(bits, dtype, missing=missing)
    return boundaries + 2, levels


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_codes_and_backward_are_the_reference(dtype, bits):
    for missing in {0, min(1, 2**bits - 2)}:
        boundaries, levels = magnitudes_for(bits, dtype, missing=missing)
        for numel in (0, 9, 1025):
            x = 3 * normal(numel, dtype)
            if numel > 40:
                x[:4] = torch.tensor([math.inf, -math.inf, -0.0, 0.0])
                x[4 : 4 + min(30, len(boundaries))] = -boundaries[:30].to(dtype)
            for guard in GUARDS:
                codes = ops.stepwise_codes(x, boundaries, bits, True, guard)
                assert torch.equal(codes, reference.stepwise_codes(x, boundaries, bits, True, guard))
                gradient = normal(numel, dtype, seed=2)
                got = ops.stepwise_backward(gradient, codes, levels, bits, guard != "none")
                assert same_bits(got, reference.stepwise_backward(gradient, codes, levels, bits, guard != "none"))


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_codes_of_an_even_table_are_those_of_the_magnitude(dtype, bits):
    boundaries, _ = magnitudes_for(bits, dtype)
    x = 3 * normal(1001, dtype)
    x[:3] = torch.tensor([math.nan, -math.inf, -0.0])
    assert torch.equal(ops.stepwise_codes(x, boundaries, bits, True), ops.stepwise_codes(x.abs(), boundaries, bits))
    output, codes = ops.stepwise(x, "tanh", [], boundaries, bits, True)
    assert same_bits(output, ops.stepwise(x, "tanh", [], boundaries, bits)[0])
    assert torch.equal(codes, ops.stepwise_codes(x.abs(), boundaries, bits))


def test_an_even_table_gives_both_signs_one_level():
    x = torch.tensor([-3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0], requires_grad=True)
    actcore.stepwise(x, "tanh", [1.0], [0.8, 0.1], even=True).sum().backward()
    assert x.grad.tolist() == torch.tensor([0.1, 0.1, 0.8, 0.8, 0.8, 0.8, 0.1, 0.1]).tolist()


@every_dtype
@pytest.mark.parametrize("guard", GUARDS)
def test_only_the_stretch_of_what_is_strange_is_nan(dtype, guard):
    boundaries, levels = levels_for(3, dtype)
    for numel in LENGTHS:
        for strange in (math.nan, math.inf, -math.inf):
            for place in {0, numel // 2, numel - 1} if numel else ():
                x = normal(numel, dtype)
                x[place] = strange
                leaf = x.clone().requires_grad_()
                output = actcore.stepwise(leaf, "gelu", boundaries, levels, guard=guard)
                assert same_bits(output.detach(), actcore.stepwise(x, "gelu", boundaries, levels))
                output.backward(torch.ones_like(x))
                expected = torch.zeros(numel, dtype=torch.bool)
                if any(strange == one or strange != strange for one in STRANGE[guard]):
                    begin = place // STRETCH * STRETCH
                    expected[begin : begin + STRETCH] = True
                assert torch.equal(leaf.grad.isnan(), expected)


@every_dtype
def test_the_largest_number_is_finite(dtype):
    x = torch.full((3000,), torch.finfo(dtype).max, dtype=dtype, requires_grad=True)
    boundaries, levels = levels_for(3, dtype)
    actcore.stepwise(x, "relu", boundaries, levels, guard="nonfinite").sum().backward()
    assert torch.equal(x.grad, levels[-1].to(dtype).expand(3000))


def test_a_guard_costs_a_byte_a_stretch_and_none_costs_nothing():
    boundaries, levels = levels_for(3)
    for numel in LENGTHS:
        for guard in GUARDS:
            saved = []
            with torch.autograd.graph.saved_tensors_hooks(lambda tensor, to=saved: to.append(tensor), lambda _: None):
                actcore.stepwise(normal(numel).requires_grad_(), "gelu", boundaries, levels, guard=guard)
            assert saved[0].numel() == (3 * numel + 7) // 8 + (guard != "none") * -(-numel // STRETCH)
    # 0.26 % of codes of three bits
    assert 8 / STRETCH <= 0.005 * 3


@pytest.mark.parametrize("numel", [32_769, 100_003])
def test_threads_change_nothing(set_threads, numel):
    x = normal(numel)
    x[::5000] = math.nan
    boundaries, levels = magnitudes_for(3)

    def results():
        output, codes = ops.stepwise(x, "tanh", [], boundaries, 3, True, "nan")
        return output, codes, ops.stepwise_backward(x.nan_to_num(), codes, levels, 3, True)

    set_threads(1)
    expected = results()
    for threads in (2, 3):
        set_threads(threads)
        for got, one in zip(results(), expected, strict=True):
            assert same_bits(got, one)


def test_memory_orders():
    """Stretches are of elements as they lie in memory, and a gradient comes back to its element."""
    x = normal(4 * 3 * 16 * 16).view(4, 3, 16, 16)
    x[1, 2, 3, 4] = math.nan
    boundaries, levels = magnitudes_for(3)
    for case in (x, x.contiguous(memory_format=torch.channels_last), x.transpose(0, 3)):
        leaf = case.detach().requires_grad_()
        actcore.stepwise(leaf, "tanh", boundaries, levels, even=True, guard="nan").sum().backward()
        in_order = case.detach().permute(sorted(range(4), key=lambda d: -case.stride(d)))
        codes = ops.stepwise_codes(in_order.contiguous(), boundaries, 3, True, "nan")
        expected = ops.stepwise_backward(torch.ones(in_order.shape), codes, levels, 3, True)
        got = leaf.grad.permute(sorted(range(4), key=lambda d: -case.stride(d)))
        assert same_bits(got.contiguous(), expected)
        assert int(leaf.grad.isnan().sum()) == STRETCH


TABLES = {dtype: magnitudes_for(3, dtype) for dtype in (torch.float32, torch.float64)}


def layer(x):
    return actcore.stepwise(x, "tanh", *TABLES[x.dtype], even=True, guard="nonfinite")


def test_derivatives_and_transforms():
    x = normal(2 * 1500, torch.float64).view(2, 1500)
    x[1, 1200] = math.inf
    boundaries, levels = magnitudes_for(3, torch.float64)
    level = levels[torch.bucketize(x.abs(), boundaries, right=True)]
    level[1, STRETCH:] = math.nan  # of its own sample alone
    each = torch.func.vmap(torch.func.grad(lambda x: layer(x).sum()))(x)
    assert same_bits(each, level)
    # Backward is linear in the gradient: the derivative of grad * level is level, by the gradient.
    leaf, gradient = x[1].clone().requires_grad_(), normal(1500, torch.float64).requires_grad_()
    (first,) = torch.autograd.grad(layer(leaf), leaf, gradient, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), gradient)
    assert same_bits(second, level[1])


def test_vmap_of_the_raw_operators():
    x = normal(3 * 1032).view(3, 1032)
    x[1, 5] = math.nan
    boundaries, levels = magnitudes_for(3)
    codes = torch.func.vmap(lambda x: ops.stepwise_codes(x, boundaries, 3, True, "nan"))(x)
    outputs, same = torch.func.vmap(lambda x: ops.stepwise(x, "tanh", [], boundaries, 3, True, "nan"))(x)
    assert torch.equal(codes, torch.stack([ops.stepwise_codes(one, boundaries, 3, True, "nan") for one in x]))
    assert torch.equal(codes, same)
    assert same_bits(outputs, torch.tanh(x))
    gradients = torch.func.vmap(lambda g, c: ops.stepwise_backward(g, c, levels, 3, True))(torch.ones(3, 1032), codes)
    assert gradients[1, :STRETCH].isnan().all()
    assert int(gradients.isnan().sum()) == STRETCH


def test_compiled():
    x = normal(3000).view(30, 100)
    x[0, 0] = math.nan
    mine, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    layer(mine).square().sum().backward()
    torch.compiler.reset()
    torch.compile(lambda x: layer(x).square().sum(), fullgraph=True, backend="aot_eager")(compiled).backward()
    assert same_bits(mine.grad, compiled.grad)


@every_dtype
@pytest.mark.parametrize("guard", GUARDS)
def test_opcheck(dtype, guard):
    x = normal(1035, dtype).view(5, 207)
    boundaries, levels = magnitudes_for(3, dtype)
    codes = ops.stepwise_codes(x, boundaries, 3, True, guard)
    torch.library.opcheck(ops.stepwise.default, (x, "elu", [0.5], boundaries, 3, True, guard))
    torch.library.opcheck(ops.stepwise_codes.default, (x, boundaries, 3, True, guard))
    arguments = (codes, levels, 3, guard != "none")
    torch.library.opcheck(ops.stepwise_backward.default, (x, *arguments))
    torch.library.opcheck(ops.stepwise_backward.default, (x.clone().requires_grad_(), *arguments))


def test_a_damaged_guard_is_refused_or_nan():
    """Whatever its bytes are, nothing is read beyond them; every byte but 0 is NaN."""
    x, (boundaries, levels) = normal(3000), magnitudes_for(3)
    codes = ops.stepwise_codes(x, boundaries, 3, True, "nan")
    for wrong in (codes[:-1], torch.cat([codes, codes[:1]]), codes[:-3]):
        with pytest.raises(RuntimeError, match=r"codes must hold 1128 bytes, got .*; the stored form is damaged"):
            ops.stepwise_backward(x, wrong.clone(), levels, 3, True)
    for byte in (1, 2, 128, 255):
        damaged = codes.clone()
        damaged[-2] = byte
        lost = ops.stepwise_backward(x, damaged, levels, 3, True).isnan()
        assert lost[STRETCH : 2 * STRETCH].all()
        assert int(lost.sum()) == STRETCH


@pytest.mark.parametrize(
    ("operator", "arguments", "text"),
    [
        ("stepwise", ("tanh", [], torch.arange(7.0), 3, False, "inf"), "guard must be 'none', 'nan' or 'nonfinite'"),
        ("stepwise_codes", (torch.arange(7.0), 3, False, ""), "guard must be 'none', 'nan' or 'nonfinite', got ''"),
        ("stepwise_codes", (torch.arange(7.0) - 1, 3, True), "boundaries of an even table are of |x| and must be at"),
    ],
)
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(torch.zeros(100), *arguments)


def test_wrong_arguments_of_the_function():
    x, boundaries, levels = torch.zeros(100), torch.arange(7.0), torch.zeros(8)
    with pytest.raises(ValueError, match="guard must be one of 'none', 'nan', 'nonfinite', got 'inf'"):
        actcore.stepwise(x, "gelu", boundaries, levels, guard="inf")
    with pytest.raises(ValueError, match=re.escape("boundaries of an even table are of |x| and must be at least 0")):
        actcore.stepwise(x, "gelu", boundaries - 1, levels, even=True)
