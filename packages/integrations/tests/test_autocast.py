"""Under autocast weights are saved as bfloat16 copies: still weights. Activations are stored in bits of bfloat16."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import EIGHT_BITS, Net, normal, relative_error, rows

X = normal(96, 64)
SQUARE = normal(64, 64, seed=3)  # of a weight's shape
W = normal(64, 64, seed=1) / 8
V = normal(64, 64, seed=2) / 8


def step(model, x, level="L1", **options):
    integrations.compress_model(model, level, **options)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(x)
    output.float().square().mean().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def two_linear(self, x):
    return F.linear(F.relu(F.linear(x, self.w)), self.v)


@pytest.mark.parametrize(
    "product",
    [
        F.linear,
        lambda h, w: h @ w,
        lambda h, w: h @ w.t(),
        lambda h, w: h @ w[:, :32],
        lambda h, w: h @ w.chunk(2, 1)[1],
        lambda h, w: torch.addmm(h, h, w),
        lambda h, w: torch.bmm(h[None], w[None]),
    ],
    ids=["linear", "@", "@ t()", "@ slice", "@ chunk", "addmm", "bmm"],
)
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("x", [X, SQUARE], ids=["wide", "square"])
def test_weight_copies_are_weights(product, trained, x):
    """The activation is stored, its shape being the weight's or not, and the weight's copy is not: with exact weights
    the gradient below is that of no compression."""
    found = {}
    for level in ("L0", "L1"):
        x = x.detach().requires_grad_()
        model = Net(lambda self, x: product(F.linear(x, self.w), self.v), w=W, v=V)
        model.v.requires_grad_(trained)
        step(model, x, level, min_bytes=0)
        found[level] = x.grad
    assert torch.equal(found["L0"], found["L1"])
    saved = integrations.compression(model).report().rows
    assert [row.owner for row in saved].count("parameter, cast by autocast") == 2  # w's copy and v's


@pytest.mark.parametrize("x", [X, SQUARE], ids=["wide", "square"])
def test_the_inputs_copy_is_no_weight(x):
    """Autocast's copy of the input is autograd's alone, even where it has the shape of the weight."""
    model = Net(two_linear, w=W, v=V)
    step(model, x)
    first = rows(model, "linear")[0]
    assert (first.dtype, first.shape, first.original_bytes) == (torch.bfloat16, x.shape, 2 * x.numel())
    assert "bits=4" in first.codec


def test_activations_are_stored_from_bfloat16():
    model = Net(two_linear, w=W, v=V)
    step(model, X)
    assert [(row.operator, row.dtype, row.stored_bytes) for row in rows(model)] == [
        ("linear", torch.bfloat16, X.numel() // 2 + X.numel() // 128 * 4),  # two bfloat16 bounds a group
        ("relu", torch.bfloat16, X.numel() // 8),
        ("linear", torch.bfloat16, X.numel() // 2 + X.numel() // 128 * 4),
    ]


def test_convolutions():
    def forward(self, x):
        return F.conv2d(F.relu(F.conv2d(x, self.w, padding=1)), self.v)

    found = {}
    for level in ("L0", "L1.1"):
        model = Net(forward, w=normal(8, 3, 3, 3), v=normal(8, 8, 3, 3, seed=1))
        found[level] = step(model, normal(4, 3, 16, 16, seed=2), level, min_bytes=0)
    assert torch.equal(found["L0"]["w"].isnan(), found["L1.1"]["w"].isnan())
    assert relative_error(found["L0"], found["L1.1"]) < EIGHT_BITS + 2**-8  # half an ulp of bfloat16 in and out
    assert {row.dtype for row in rows(model, "conv2d")} == {torch.bfloat16}
    assert [row.shape for row in rows(model, "conv2d")] == [(4, 3, 16, 16), (4, 8, 16, 16)]  # no weight


def test_autocast_inside_the_forward():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.above = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16):
                return self.above(F.layer_norm(self.below(x).float(), (64,)))

    model = Model()
    integrations.compress_model(model)
    model(X).float().sum().backward()
    assert [row.dtype for row in rows(model, "linear")] == [torch.bfloat16] * 2
    assert [row.owner for row in rows(model, "linear", owned=True)] == ["parameter, cast by autocast"] * 1
    assert "bits=8" in rows(model, "layer_norm")[0].codec


def test_two_steps_under_one_region_share_the_cached_copy():
    """Autocast caches a weight's copy until its region ends; the second forward finds the first one's."""
    model = integrations.compress_model(Net(two_linear, w=W, v=V), "L1")
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            model(X).float().sum().backward()
    assert [row.owner for row in rows(model, "linear", owned=True)] == ["parameter, cast by autocast"]
