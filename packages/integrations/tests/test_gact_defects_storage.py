"""GACT's known defects in what it stored and how, one test each: what its code got wrong, here right.

Those in how it stepped, and what is tested elsewhere: ``test_gact_defects.py``.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import Net, assert_same, gradients, mlp, normal, rows

X = normal(48, 64)
N = X.numel()
W = normal(64, 64, seed=1) / 8


def test_g01_neither_a_gpu_nor_one_version_of_torch_is_needed():
    """Nor private hooks: what is active in the forward is a pair of torch's documented saved-tensor hooks."""
    model = integrations.compress_model(mlp())
    gradients(model, X)
    assert integrations.compression(model).report().ratio > 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.float16])
def test_g02_every_floating_point_dtype_is_compressed(dtype):
    model = integrations.compress_model(mlp().to(dtype))
    gradients(model, X.to(dtype))
    assert {row.codec.partition("(")[0] for row in rows(model)} == {"Positive", "GroupAffine"}


def test_g02_bool_masks_take_a_bit():
    model = integrations.compress_model(Net(lambda self, x: (h := F.linear(x, self.w)).masked_fill(h < 0, 0), w=W))
    gradients(model, X)
    [mask] = [row for row in rows(model) if row.dtype is torch.bool]
    assert (mask.original_bytes, mask.stored_bytes) == (N, N // 8)


@pytest.mark.parametrize("shape", [(3000,), (3, 4, 5, 6, 7)], ids=["1-D", "5-D"])
def test_g02_so_is_any_number_of_dimensions(shape):
    scale, x = normal(*shape, seed=1), normal(*shape)
    model = integrations.compress_model(Net(lambda self, x: (x * self.w) * self.v, w=scale, v=scale))
    gradients(model, x)
    assert ["bits=8" in row.codec for row in rows(model)] == [True]


def test_g03_a_shared_tensor_is_stored_once():
    """Three linear layers of one tensor, which autograd keeps once."""
    heads = {name: normal(64, 64, seed=seed) for seed, name in enumerate("abc")}
    model = Net(lambda self, x: sum(F.linear(x.sin(), getattr(self, name)) for name in "abc"), **heads)
    shared = Net(lambda self, x: sum(map(F.linear, [x.sin() * 1] * 3, (self.a, self.b, self.c))), **heads)
    for net, copies in ((model, 3), (shared, 1)):
        integrations.compress_model(net)
        gradients(net, X.clone().requires_grad_())
        linear = rows(net, "linear")
        assert len(linear) == 3
        assert sum(row.stored_bytes for row in linear) == copies * (N // 2 + 8 * N // 128)


def test_g04_relu_takes_one_exact_bit():
    """Whoever else stores the same tensor in few bits: below the linear layer that does, all gradients are exact."""
    model = integrations.compress_model(mlp(depth=2), "L1.2")
    plain, found = gradients(mlp(depth=2), X), gradients(model, X)
    assert not torch.equal(plain.pop("2.weight"), found.pop("2.weight"))
    assert_same(plain, found)
    assert [(row.codec, row.stored_bytes) for row in rows(model, "relu")] == [("Positive()", N // 8)] * 2


def test_g05_slices_of_a_parameter_are_its_own():
    """Cross-attention saves a part of its packed weight."""
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(64, 2, batch_first=True)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention

        def forward(self, x, y):
            return self.attention(x, y, y, need_weights=False)[0]

    model = integrations.compress_model(Cross())
    gradients(model, normal(2, 24, 64).requires_grad_(), normal(2, 24, 64, seed=1).requires_grad_())
    weights = [row for row in integrations.compression(model).report().rows if row.owner == "parameter"]
    assert (128, 64) in {row.shape for row in weights} | {row.shape[::-1] for row in weights}
    assert {row.codec for row in weights} == {"kept"}


def test_g05_autocast_copies_and_moved_parameters_are_parameters():
    model = integrations.compress_model(mlp(depth=2)).to(torch.float64)
    gradients(model, X.double())
    assert [row.owner for row in rows(model, "linear", owned=True)] == ["input of the model", "parameter"]
    model.float()
    with torch.autocast("cpu", torch.bfloat16):
        model(X).float().sum().backward()
    assert "parameter, cast by autocast" in {row.owner for row in rows(model, owned=True)}


@pytest.mark.parametrize("scale", [6e4, 1e-4, 1e-7])
def test_g12_half_precision_has_no_overflow_in_its_codes(scale):
    """Neither the largest value, whose code left its field, nor ranges so small that their scale was infinite."""
    x = (X / X.abs().max() * scale).half()
    model = integrations.compress_model(Net(lambda self, x: (x * self.v) * self.w, v=torch.ones(64), w=W[0]).half())
    gradients(model, x, loss=lambda output: output.float().sum())
    exact = x.float().sum(0)
    step = (x.max() - x.min()).float() / 255
    # Each of 48 roundings is less than a step off, plus half an ulp of float16 in what is read and in the sum.
    bound = 48 * (step + 2**-11 * scale + 2**-25) + 2**-10 * exact.abs() + 2**-25
    assert ((model.w.grad.float() - exact).abs() <= bound).all()
    assert ["bits=8" in row.codec for row in rows(model)] == [True]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_g12_what_is_not_finite_is_not_made_finite(value):
    x = X.clone()
    x[3, 5] = value
    model = integrations.compress_model(Net(lambda self, x: F.linear(x * self.v, self.w), w=W, v=torch.ones(64)))
    gradients(model, x)
    assert not model.w.grad[:, 5].isfinite().any()


def test_g13_all_that_is_stored_is_offloaded_and_fetched_ahead(lane):
    """Its bounds stayed on the device, and every fetch was waited for."""
    model = integrations.compress_model(mlp(), "L4bit-swap")
    gradients(model, X)
    report = integrations.compression(model).report()
    assert report.host_bytes == report.stored_bytes == sum(lane.sent)
    assert lane.fetched[::-1] == lane.sent  # the last one first, each once


def test_g20_swap_takes_activations_only(lane):
    model = integrations.compress_model(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Sigmoid()), "swap")
    gradients(model, X)
    assert sorted(lane.sent) == [4 * N, 4 * N]  # the norm's input and sigmoid's result; no weight, buffer or input


@pytest.mark.filterwarnings("ignore:Sequential at swap")
def test_g20_tensors_of_the_cpu_stay():
    model = integrations.compress_model(mlp(), "swap")
    assert_same(gradients(mlp(), X), gradients(model, X))
    assert {row.codec for row in rows(model)} == {"kept"}


def test_g22_what_must_not_be_rounded_is_not_and_bits_can_be_chosen():
    """Two-dimensional tensors hurt where an exponential or a norm reads them; GACT had no knob to leave them out."""
    model = mlp()
    with integrations.compress(model, "L1", bits=6, norm_bits=7, min_bytes=0) as handle:
        loss = F.cross_entropy(F.layer_norm(model(X), (64,)), torch.arange(48))
    loss.backward()
    codecs = {row.operator: row.codec for row in handle.report().rows if not row.owner and row.role == "input"}
    assert "bits=6" in codecs["linear"]
    assert "bits=7" in codecs["layer_norm"]
    assert {row.codec for row in handle.report().rows if row.operator == "cross_entropy"} == {"kept"}
