"""Plans count the bytes that a CPU's kernels of attention, layer norms and matrix exponentials take while they run."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import integrations
from integrations.capture.costs.operator_costs import count_scratch

from .nets import profiled_bytes

aten = torch.ops.aten
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def count_running(function, args, kwargs):
    """Return the bytes that a call allocates and frees while it runs, and its result."""
    found = []
    most, left = profiled_bytes(lambda: found.append(function(*args, **kwargs)))
    return most - left, found[0]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(4, 2, 32, 32, 16), (2, 2, 200, 190, 8), (1, 2, 800, 600, 16), (2, 1, 33, 1025, 24)])
def test_attention(sizes, threads, dtype):
    batch, heads, queries, keys, width = sizes
    lengths = queries, keys, keys
    query, key, value = (torch.randn(batch, one, heads, width, dtype=dtype).transpose(1, 2) for one in lengths)
    mask = {"attn_mask": torch.zeros(queries, keys, dtype=dtype)}
    function = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    torch.set_num_threads(threads)
    try:
        for kwargs in ({}, mask):
            args = query, key, value, 0.0, False
            real, (out, logsumexp) = count_running(function, args, kwargs)
            assert count_scratch(function, args, ()) == real
            alike = torch.randn_like(out)
            for gradient in (alike, alike.contiguous(), torch.ones((), dtype=dtype).expand(out.shape)):
                args = gradient, query, key, value, out, logsumexp, 0.0, False
                real, _ = count_running(backward, args, kwargs)
                # The sums of a thread that has had no rows yet are not there.
                most = count_scratch(backward, args, ())
                assert real <= most <= real + (threads - 1) * 256 * 8
                assert threads > 1 or real == most
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("asked", [(True, True, True), (True, False, False), (False, True, False)])
def test_the_backward_of_a_layer_norm(asked, threads, dtype):
    x, (weight, bias) = torch.randn(6, 3, 40, dtype=dtype), torch.randn(2, 3, 40, dtype=dtype)
    out, mean, deviation = aten.native_layer_norm(x, [3, 40], weight, bias, 1e-5)
    args = torch.randn_like(out), x, [3, 40], mean, deviation, weight, bias, asked
    function = aten.native_layer_norm_backward.default
    torch.set_num_threads(threads)
    try:
        assert count_scratch(function, args, ()) == count_running(function, args, {})[0]
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("factor", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("shape", [(64, 32, 32), (2, 4, 33, 33), (5, 1, 1)])
def test_matrix_exponentials(shape, factor, dtype):
    matrices = factor * torch.randn(shape, dtype=dtype) / shape[-1]
    function = aten.linalg_matrix_exp.default
    assert count_scratch(function, (matrices,), ()) == count_running(function, (matrices,), {})[0]


@pytest.mark.parametrize("factor", [0.01, 1.0, 10.0])
def test_the_exponential_of_one_matrix(factor):
    matrix = factor * torch.randn(64, 64) / 64
    function = aten.linalg_matrix_exp.default
    real, _ = count_running(function, (matrix,), {})
    most = count_scratch(function, (matrix,), ())
    # The norm and how often the result is squared are a few numbers.
    assert real <= most + 64
    assert factor < 10 or most <= real


class Exponential(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 256)

    def forward(self, x):
        return torch.linalg.matrix_exp(torch.tanh(self.first(x)).view(-1, 16, 16)).square().mean()


class Attention(nn.Module):
    """Attention with a mask of numbers, whose result is permuted, so that its gradient lies in another layout."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(32, 64), nn.Linear(64, 16)

    def forward(self, x):
        tokens = x.shape[1]
        mask = torch.zeros(tokens, tokens).masked_fill(torch.ones(tokens, tokens).triu(1).bool(), -torch.inf)
        heads = torch.tanh(self.first(x)).view(len(x), tokens, 4, 16).permute(1, 2, 0, 3)
        out = F.scaled_dot_product_attention(heads, heads, heads, attn_mask=mask[: len(x), : len(x)])
        return self.last(out.permute(2, 0, 1, 3).flatten(2)).square().mean()


class Norms(nn.Module):
    """Layer norms of as many features as the batch has numbers."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm((64, 128))

    def forward(self, x):
        for _ in range(3):
            x = torch.tanh(self.norm(x))
        return x.square().mean()


@pytest.mark.parametrize("memory", [1.0, "least"])
@pytest.mark.parametrize("make", [Attention, Norms, Exponential])
def test_a_step_takes_no_more_than_its_plan(make, memory):
    torch.manual_seed(0)
    model, x = make(), torch.randn(2, 64, 128) if make is Norms else torch.randn(16, 24, 32)
    integrations.compress_model(model, memory=memory)
    for _ in range(3):
        model(x).backward()
        model.zero_grad()
    most, left = profiled_bytes(lambda: model(x).backward())
    # Autograd's own small tensors are in no plan.
    assert most - left <= 1.05 * integrations.compression(model).plan.peak
