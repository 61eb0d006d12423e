"""Norms that save their output: torch's values, gradients within what the output's rounding explains, and the bytes."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from integrations.fewbit.functional import channels, layer_norm, norms
from integrations.fewbit.modules import LayerNorm, RMSNorm

WIDTH = 64
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
PAIRS = [(nn.LayerNorm, LayerNorm), (nn.RMSNorm, RMSNorm)]

every_norm = pytest.mark.parametrize(("torchs", "ours"), PAIRS, ids=lambda kind: kind.__name__)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def trained(kind, dtype=torch.float32, zeros=0, spread=0.9):
    """A norm whose channels have biases up to ``spread`` times what their weights may have, and weights of 0."""
    norm = kind(WIDTH, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(normal(WIDTH, seed=1).sign() * (0.1 + torch.rand(WIDTH, generator=torch.manual_seed(0))))
        if getattr(norm, "bias", None) is not None:
            # in float32, for one, biases up to 0.9 * 4096 times the weight, evenly on a logarithmic scale
            exponent = torch.linspace(-2, math.log10(spread * channels.loss_limit(dtype)), WIDTH)
            norm.bias.copy_(norm.weight * 10**exponent)
        norm.weight[:zeros] = 0
    return norm


def gradients_of(norm, x, gradient):
    x = x.clone().requires_grad_()
    output = norm(x)
    return output, torch.autograd.grad(output, [x, *norm.parameters()], gradient)


def saved_by(output):
    return [saved.data for saved in output.grad_fn._raw_saved_tensors if saved.data is not None]


def saves_output(output):
    return "SharedNorm" in output.grad_fn.name()


@every_dtype
@every_norm
def test_values_are_torchs_bit_for_bit_and_what_is_saved_is_the_output(torchs, ours, dtype):
    plain = trained(torchs, dtype)
    norm = ours.from_module(plain)
    x = normal(5, 7, WIDTH, dtype=dtype).requires_grad_()
    output = norm(x)
    assert torch.equal(output, plain(x))
    storages = [saved.untyped_storage()._cdata for saved in saved_by(output)]
    assert output.untyped_storage()._cdata in storages
    assert x.untyped_storage()._cdata not in storages
    # Beside it the parameters, and a number a row; nothing of the size of the input.
    assert sum(saved.numel() > WIDTH for saved in saved_by(output)) == 1


@pytest.mark.parametrize("zeros", [0, 2])
@every_dtype
@every_norm
def test_gradients_differ_from_the_exact_ones_by_what_rounding_explains(torchs, ours, dtype, zeros):
    """With the unit roundoff u of the dtype and v of the one that backward computes in, n = (y - b) / w is off by

        e = u |y| / |w| + 16 v (|n| + |y / w| + |b / w|) + s,

    where 16 v stands for the few roundings of n in forward and of its reading, and s = 4 u (|n| + |mean| / deviation)
    for the statistics, which the CPU rounds to 16 bits, and for a channel that is kept. To first order the gradients

        dw = sum g n,    dx = rstd (a - mean(a) - n mean(a n)),    a = g w

    are off by sum |g| e, and by rstd (e |mean(a n)| + |n| mean(|a| e)), beside their own rounding: 2 u of the results
    (with that of rstd), and 64 v of the sums of absolute values that they are made of.
    """
    plain = trained(torchs, dtype, zeros)
    norm = ours.from_module(plain)
    x, gradient = normal(40, WIDTH, seed=2, dtype=dtype), normal(40, WIDTH, seed=3, dtype=dtype)
    output, found = gradients_of(norm, x, gradient)
    assert saves_output(output)
    exact = torchs(WIDTH, eps=plain.eps or torch.finfo(torch.promote_types(dtype, torch.float32)).eps).double()
    exact.load_state_dict(plain.state_dict())
    _, expected = gradients_of(exact, x.double(), gradient.double())

    u = torch.finfo(dtype).eps / 2
    v = torch.finfo(torch.promote_types(dtype, torch.float32)).eps / 2
    w, b, g = exact.weight.detach(), getattr(exact, "bias", torch.zeros(WIDTH)).detach(), gradient.double()
    mean = x.double().mean(-1, keepdim=True) if torchs is nn.LayerNorm else torch.zeros(40, 1)
    variance = (x.double() - mean).square().mean(-1, keepdim=True)
    rstd = (variance + exact.eps).rsqrt()
    n = (x.double() - mean) * rstd
    y, safe = output.detach().double(), w.where(w != 0, math.inf)
    e = u * (y / safe).abs() + 16 * v * (n.abs() + (y / safe).abs() + (b / safe).abs())
    e = e + 4 * u * (n.abs() + mean.abs() * rstd)
    a = g * w
    off = e * (a * n).mean(-1, keepdim=True).abs() + n.abs() * (a.abs() * e).mean(-1, keepdim=True)
    sums = a.abs() + a.abs().mean(-1, keepdim=True) + n.abs() * (a * n).abs().mean(-1, keepdim=True)
    bounds = [rstd * (off + 64 * v * sums) + 2 * u * expected[0].abs(), (g.abs() * (e + 64 * v * n.abs())).sum(0)]
    bounds[1] = bounds[1] + 2 * u * expected[1].abs()
    bounds += [2 * u * right.abs() + 64 * v * g.abs().sum(0) for right in expected[2:]]
    for wrong, right, bound in zip(found, expected, bounds, strict=True):
        assert ((wrong.double() - right).abs() / bound).max() <= 1


@every_norm
def test_a_norm_without_parameters_has_its_normalised_input_exactly(torchs, ours):
    plain, norm = torchs(WIDTH, elementwise_affine=False), ours(WIDTH, elementwise_affine=False)
    x, gradient = normal(40, WIDTH), normal(40, WIDTH, seed=1)
    output = norm(x.clone().requires_grad_())
    assert saves_output(output)
    assert len(saved_by(output)) == 2  # the output and the deviations
    _, (found,) = gradients_of(norm, x, gradient)
    _, (expected,) = gradients_of(plain.double(), x.double(), gradient.double())
    # As above with w = 1 and b = 0, where |n| < 8 and |g| < 5, and rstd is nearly 1: 64 v (5 + 5 + 8 * 5).
    assert (found - expected).abs().max() < 64 * 2**-24 * 50


@every_norm
def test_a_weight_that_begins_at_zero_trains(torchs, ours):
    norms_of = [torchs(WIDTH), ours(WIDTH)]
    for norm in norms_of:
        nn.init.zeros_(norm.weight)
        optimizer = torch.optim.SGD(norm.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            (norm(normal(40, WIDTH, seed=step).requires_grad_()) - normal(40, WIDTH, seed=9)).square().mean().backward()
            optimizer.step()
    assert norms_of[1].weight.abs().min() > 0
    # The first step is torch's own (all channels are lost); after it only two more of a thousandth of a unit follow.
    assert (norms_of[0].weight - norms_of[1].weight).abs().max() < 1e-6


def test_lost_channels_are_kept_and_too_many_save_the_input():
    for zeros, expected in ((0, 0), (1, 1), (2, 2), (3, None)):
        norm = trained(nn.LayerNorm, zeros=zeros)
        assert channels.channels_to_keep(norm.weight, norm.bias, torch.float32) == expected
        output = LayerNorm.from_module(norm)(normal(5, WIDTH).requires_grad_())
        assert saves_output(output) is (expected is not None)


def test_the_loss_of_a_channel():
    weight = torch.tensor([1.0, 0.5, 0.0, -0.25, math.nan])
    bias = torch.tensor([0.0, 1.0, 1.0, 2.0, 1.0])
    # float16's smallest normal number is 2**-14, and its unit roundoff 2**-11.
    assert channels.losses(weight, bias, torch.float16)[:4].tolist() == [0.125, 2, math.inf, 8]
    assert channels.losses(weight, None, torch.float16)[:4].tolist() == [0.125, 0.25, math.inf, 0.5]
    assert [channels.loss_limit(dtype) for dtype in (torch.bfloat16, torch.float32)] == [16, 4096]
    divisor = channels.divisor(weight, bias, torch.float32, torch.tensor([3]))
    assert divisor.tolist()[:2] == [1, 0.5]
    assert divisor[3] == 1
    assert divisor[[2, 4]].isnan().all()


@pytest.fixture
def a_device_that_cannot_be_looked_at(monkeypatch):
    """The CPU in its place: the host must not read values, and the channels are chosen without it."""
    for module in ("functional.channels", "modules.norms"):
        monkeypatch.setattr(f"integrations.fewbit.{module}.looking_is_free", lambda tensor: False)


@every_norm
def test_a_device_keeps_the_most_lost_channels_unseen(torchs, ours, a_device_that_cannot_be_looked_at):
    plain = trained(torchs, zeros=2)
    x, gradient = normal(40, WIDTH), normal(40, WIDTH, seed=1)
    norm = ours.from_module(plain)
    norm._look = lambda *args: None
    assert (40, 2) in [tuple(saved.shape) for saved in saved_by(norm(x.clone().requires_grad_()))]
    _, found = gradients_of(norm, x, gradient)
    _, expected = gradients_of(plain, x, gradient)
    for wrong, right in zip(found, expected, strict=True):
        # The biases of these norms take up to 12 of 24 bits: 2**-12 of numbers that add up to less than 40 * 5 * 8.
        assert (wrong - right).abs().max() < 40 * 5 * 8 * 2**-12
    assert (found[1][:2] - expected[1][:2]).abs().max() < 1e-4  # the kept ones: 16 * 2**-24 * sum |g n|


def test_on_a_device_lost_channels_that_are_not_kept_give_nan(a_device_that_cannot_be_looked_at):
    weight, bias = trained(nn.LayerNorm, zeros=5).parameters()
    x = normal(40, WIDTH).requires_grad_()
    output = layer_norm(x, (WIDTH,), weight, bias)
    assert saves_output(output)
    to_x, to_weight, to_bias = torch.autograd.grad(output.square().sum(), [x, weight, bias])
    assert to_x.isnan().all()
    assert to_weight[:5].isnan().sum() == 3
    assert to_weight[5:].isfinite().all()
    assert to_bias.isfinite().all()


def test_a_layer_on_a_device_looks_now_and_then(a_device_that_cannot_be_looked_at, monkeypatch):
    looks = []
    look = channels.too_many_lost

    def noting(*args):
        looks.append(norm._changes)
        return look(*args)

    monkeypatch.setattr("integrations.fewbit.modules.norms.too_many_lost", noting)
    norm = LayerNorm(WIDTH)
    nn.init.zeros_(norm.weight)
    x = normal(3, WIDTH).requires_grad_()
    for _ in range(600):
        saving = saves_output(norm(x))
        assert saves_output(norm(x)) is saving  # the same parameters: what a checkpoint computes again
        with torch.no_grad():
            norm.weight += 0.01
    assert looks == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert saving
    norm.load_state_dict({"weight": torch.zeros(WIDTH), "bias": torch.zeros(WIDTH)})
    assert not saves_output(norm(x))
    assert looks[-1] == 1


@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_first_and_second_derivatives(kind):
    x, weight, bias = (normal(*shape, seed=4, dtype=torch.float64) for shape in ((3, 6), (6,), (6,)))
    weight[2] = 0
    given = [tensor.requires_grad_() for tensor in ((x, weight, bias) if kind == "layer_norm" else (x, weight))]

    def norm(x, weight, bias=None):
        return norms.shared(kind, x, (6,), weight, bias, 1e-5, 1)

    assert torch.autograd.gradcheck(norm, given)
    assert torch.autograd.gradgradcheck(norm, given)


def test_nan_and_infinity_are_torchs():
    x, gradient = normal(4, WIDTH), normal(4, WIDTH, seed=1)
    x[0, 3], x[1, 5] = math.nan, math.inf
    for torchs, ours in PAIRS:
        plain = trained(torchs, spread=0.001)
        output, found = gradients_of(ours.from_module(plain), x, gradient)
        expected_output, expected = gradients_of(plain, x, gradient)
        assert torch.equal(output.isnan(), expected_output.isnan())
        assert torch.equal(found[0].isnan(), expected[0].isnan())


def test_several_dimensions_and_inputs_that_are_not_contiguous():
    plain = nn.LayerNorm((4, 6))
    with torch.no_grad():
        plain.weight.copy_(normal(4, 6, seed=1))
    x, gradient = normal(4, 5, 6).transpose(0, 1), normal(5, 4, 6, seed=2)
    output, found = gradients_of(LayerNorm.from_module(plain), x, gradient)
    assert saves_output(output)
    expected_output, expected = gradients_of(plain, x, gradient)
    assert torch.equal(output, expected_output)
    for wrong, right in zip(found, expected, strict=True):
        # As in the test of rounding, with b = 0 and |w n|, |g| < 5: 64 v of sums of at most five such products.
        torch.testing.assert_close(wrong, right, rtol=0, atol=64 * 2**-24 * 5 * 25)


@every_norm
@pytest.mark.parametrize("again", [False, True])
def test_a_single_sample_without_a_dimension_for_it(torchs, ours, again):
    plain = trained(torchs, dtype=torch.float64, spread=0.001)
    found, expected = [], []
    for norm, gradients in ((ours.from_module(plain), found), (plain, expected)):
        x, y = normal(WIDTH, dtype=torch.float64).requires_grad_(), normal(WIDTH, dtype=torch.float64, seed=1)
        gradients += torch.autograd.grad(norm(x), [x, *norm.parameters()], y, create_graph=again)
        if again:
            gradients += torch.autograd.grad(gradients[0].square().sum(), [x, norm.weight])
    for wrong, right in zip(found, expected, strict=True):
        # Roundings of float64, of sums over 64 channels of products below 1e3: far from the next mistake, of order 1.
        torch.testing.assert_close(wrong, right, rtol=0, atol=64 * 1e3 * 1e2 * 2**-53)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator tells what is alive")
def test_the_bytes_of_a_block_by_the_allocator():
    """Each norm of a pre-norm block keeps its input no more, which is 768 KiB, nor what RMSNorm keeps on the CPU beside
    it, its normalised input. In 2 blocks there are 4 norms."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", Path(__file__).with_name("norms_memory_child.py")],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(child.stdout)
    tensor, rows = 768 * 256 * 4, 768 * 4
    slack = 4 * 2 * 4096  # a page at each end of each block that is gone
    layer, rms = found["LayerNorm"], found["RMSNorm"]
    # A mean less in each row, and of RMSNorm two numbers more that its operators save.
    assert layer["plain"] - layer["shared"] == pytest.approx(4 * (tensor + rows), abs=slack)
    assert rms["plain"] - rms["shared"] == pytest.approx(4 * (2 * tensor + 3 * rows), abs=slack)
