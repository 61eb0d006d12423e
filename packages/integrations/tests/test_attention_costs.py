"""Every attention operator that CUDA dispatches to has a cost formula, and a formula that fails prevents no plan."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry

import integrations
from integrations.capture.costs import calibrating, operator_costs
from integrations.capture.costs.calls import DistinctCalls
from integrations.capture.costs.operator_costs import estimate_work
from integrations.policies.operators import Kernel

from .nets import mlp, normal

aten = torch.ops.aten

BATCH, QUERIES, KEYS, WIDTH, OUT = 2, 48, 80, 64, 32
HEADS = 8
SCORES = BATCH * HEADS * QUERIES * KEYS
FORWARD = 2 * SCORES * (WIDTH + OUT)
BACKWARD = 2 * SCORES * (3 * WIDTH + 2 * OUT)


def on_cuda(*size, dtype=torch.bfloat16):
    return torch.empty(size, dtype=dtype, device="cuda")


def flash(q, k, v, mask, dropout):
    args = q, k, v, dropout, True, False
    yield aten._scaled_dot_product_flash_attention.default, args
    out, lse, cum_q, cum_k, most_q, most_k, seed, offset, _ = aten._scaled_dot_product_flash_attention.default(*args)
    yield (
        aten._scaled_dot_product_flash_attention_backward.default,
        (out, q, k, v, out, lse, cum_q, cum_k, most_q, most_k, dropout, True, seed, offset),
    )


def efficient(q, k, v, mask, dropout):
    args = q, k, v, mask, True, dropout, mask is None
    yield aten._scaled_dot_product_efficient_attention.default, args
    out, lse, seed, offset = aten._scaled_dot_product_efficient_attention.default(*args)
    wanted = [True, True, True, mask is not None]
    yield (
        aten._scaled_dot_product_efficient_attention_backward.default,
        (out, q, k, v, mask, out, lse, seed, offset, dropout, wanted, mask is None),
    )


def cudnn(q, k, v, mask, dropout):
    args = q, k, v, mask, True, dropout, mask is None, False
    yield aten._scaled_dot_product_cudnn_attention.default, args
    found = aten._scaled_dot_product_cudnn_attention.default(*args)
    out, lse, cum_q, cum_k, most_q, most_k, seed, offset, _ = found
    yield (
        aten._scaled_dot_product_cudnn_attention_backward.default,
        (out, q, k, v, out, lse, seed, offset, mask, cum_q, cum_k, most_q, most_k, dropout, mask is None),
    )


def math(q, k, v, mask, dropout):
    """Compute attention by products, a softmax and dropout, each as an operator of its own."""
    k, v = (one.repeat_interleave(HEADS // one.shape[1], 1) for one in (k, v))
    q, k, v = (one.flatten(0, 1) for one in (q, k, v))
    scores = aten.bmm.default(q, k.mT)
    yield aten.bmm.default, (q, k.mT)
    yield aten.bmm.default, (scores, v)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("heads", [HEADS, 2, 1], ids=["all heads", "grouped", "one head"])
@pytest.mark.parametrize(
    ("kind", "masked"),
    [(flash, False), (efficient, False), (efficient, True), (cudnn, False), (cudnn, True), (math, False)],
)
def test_every_operator_of_cuda_has_a_formula(kind, heads, masked, dropout):
    """With fewer key/value heads, torch's formulas raised up to 2.11: a Llama could not be planned for on a GPU."""
    found = []
    with FakeTensorMode():
        q = on_cuda(BATCH, HEADS, QUERIES, WIDTH)
        k, v = on_cuda(BATCH, heads, KEYS, WIDTH), on_cuda(BATCH, heads, KEYS, OUT)
        mask = on_cuda(BATCH, HEADS, QUERIES, KEYS) if masked else None
        for function, args in kind(q, k, v, mask, dropout):
            results = (on_cuda(BATCH, HEADS, QUERIES, OUT),)
            calls = DistinctCalls()
            calls.note(function, args, {}, results)
            found.append(calls.distinct[0].work)
    expected = {math: [2 * SCORES * WIDTH, 2 * SCORES * OUT]}.get(kind, [FORWARD, BACKWARD])
    assert [work.flops for work in found] == expected
    assert {work.kind for work in found} == {Kernel.PRODUCT if kind is math else Kernel.ATTENTION}


@pytest.mark.parametrize("kind", [flash, efficient, cudnn])
def test_the_formulas_are_torchs_where_it_has_them(kind):
    with FakeTensorMode():
        q, k, v = (on_cuda(BATCH, HEADS, QUERIES, WIDTH) for _ in range(3))
        for function, args in kind(q, k, v, None, 0.0):
            theirs = flop_registry[function.overloadpacket](*args, out_val=q)
            assert estimate_work(function, args, {}, (q,)).flops == theirs


@pytest.mark.parametrize("kind", ["flash", "efficient"])
def test_sequences_one_after_the_other_meet_the_longest(kind):
    lengths, longest = [16, 40, 24], 40
    begins = torch.tensor([0, 16, 56, 80], dtype=torch.int32)
    total, heads, width = sum(lengths), 4, 32
    sizes = (total, heads, width) if kind == "flash" else (1, total, heads, width)
    dense = (3, longest, heads, width)
    score = 2 * heads * width
    forward, backward = (getattr(aten, f"_{kind}_attention_{way}").default for way in ("forward", "backward"))
    for size, where, rows in ((sizes, begins, total), (dense, None, 3 * longest)):
        q = torch.empty(size, device="meta")
        if kind == "flash":
            args = q, q, q, where, where, longest, longest, 0.0, True, False
            back = q, q, q, q, q, None, where, where, longest, longest, 0.0, True, None, None
        else:
            args = q, q, q, None, where, where, longest, longest, 0.0, 1
            back = q, q, q, q, None, q, where, where, longest, longest, None, 0.0, None, None, 1, False
        assert estimate_work(forward, args, {}, (q,)).flops == 2 * rows * longest * score
        assert estimate_work(backward, back, {}, (q, q, q)).flops == 5 * rows * longest * score


def test_attention_on_a_cpu_has_a_formula():
    """torch has no formula, so attention seemed to take only the time to read its arguments."""
    q, k = normal(BATCH, HEADS, QUERIES, WIDTH), normal(BATCH, HEADS, KEYS, WIDTH)
    function = aten._scaled_dot_product_flash_attention_for_cpu.default
    found = estimate_work(function, (q, k, k), {}, function(q, k, k))
    assert (found.kind, found.flops) == (Kernel.ATTENTION, 2 * 2 * SCORES * WIDTH)


class Grouped(torch.nn.Module):
    """A layer of attention with two query heads for each key/value head."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.kv, self.out = (torch.nn.Linear(64, width) for width in (64, 64, 64))

    def forward(self, x):
        q = self.q(x).unflatten(-1, (4, 16)).transpose(1, 2)
        k, v = self.kv(x).unflatten(-1, (4, 16)).transpose(1, 2).chunk(2, 1)
        return self.out(F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2).flatten(2))


def broken(*args, **kwargs):
    raise AssertionError("sdpa_flop_count: query/key/value shapes are incompatible")


@pytest.mark.parametrize("where", ["torch's formulas", "ours", "scratch"])
def test_a_formula_that_raises_prevents_no_plan(where, monkeypatch):
    x = normal(4, 64, 64)
    name, found = {
        "torch's formulas": ("_find_flop_formula", lambda function: broken),
        "ours": ("_attention_flops", broken),
        "scratch": ("count_scratch", broken),
    }[where]
    monkeypatch.setattr(operator_costs, name, found)
    operator_costs._get_kind.cache_clear()
    try:
        plan = integrations.plan(Grouped(), (x,), memory=1.0, error=0)
    finally:
        operator_costs._get_kind.cache_clear()
    assert 0 < plan.peak <= plan.plain_peak
    work = estimate_work(aten.mm.default, (normal(64, 64), normal(64, 64)), {}, (normal(64, 64),))
    assert work.moved == 3 * 4 * 64**2  # used instead
    assert work.flops == (0 if where == "torch's formulas" else 2 * 64**3)


def test_rates_that_cannot_be_measured_prevent_no_plan(monkeypatch):
    monkeypatch.setattr(calibrating, "_measured", broken)
    plan = integrations.plan(mlp(), (normal(48, 64),), memory=1.0, error=0)
    assert 0 < plan.peak <= plan.plain_peak


def test_a_call_by_keywords_prevents_no_plan():
    """The number of groups was read by position."""
    image, weight = normal(2, 8, 5, 5), normal(8, 8, 3, 3)
    named = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "transposed": False}
    named |= {"output_padding": [0, 0], "groups": 1, "bias": None}
    found = estimate_work(aten.convolution.default, (image, weight), named, (image,))
    assert found.moved == 4 * (2 * image.numel() + weight.numel())
