"""Inputs of a checkpoint that have masked elements, which would take all the bits of their groups."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.tracing.masks import is_masked, may_be_masked
from integrations.tracing.storage.store import MASKED

from .nets import Net, assert_same, normal, plain_and_compressed, rows

X = normal(64, 64)
W = normal(64, 64, seed=1) / 8
LOW = -1e9
HALF = torch.arange(64) >= 32
MASK = HALF.expand(64, 64)
CAUSAL = torch.ones(64, 64, dtype=torch.bool).triu(1)
SCATTERED = normal(64, 64, seed=2) > 0
COLUMNS = torch.arange(32, 64)
SLOPE = torch.linspace(-1, 1, 64).repeat(2)
VALUES = torch.full((64, 32), LOW)


def assigned(index, value):
    def operator(h):
        h = h.clone()
        h[index] = value
        return h

    return operator


# What may_be_masked knows by its operators.
MASKINGS = {
    "masked_fill": lambda h: h.masked_fill(CAUSAL, LOW),
    "where": lambda h: torch.where(SCATTERED, LOW, h),
    "sum": lambda h: h + torch.where(MASK, LOW, 0.0),
    "sum, scaled": lambda h: (h + torch.where(MASK, LOW, 0.0)) * 0.125,
    "where, divided": lambda h: torch.where(CAUSAL, LOW, h) / 8,
    "where, times a parameter": lambda h: torch.where(CAUSAL, LOW, h) * torch.full((), 0.1, requires_grad=True),
    "negated": lambda h: -h.masked_fill(MASK, -LOW).mul(-1).neg(),
    "cat": lambda h: torch.cat([h, h.masked_fill(MASK, LOW)]),
    "cat with a constant": lambda h: torch.cat([h[:, :32], VALUES], 1),
    "stack": lambda h: torch.stack([h.masked_fill(MASK, LOW), h]),
    "slice assigned": assigned((..., slice(32, None)), LOW),
    "tensor assigned": assigned((..., slice(32, None)), VALUES),
    "by a mask": assigned(SCATTERED, LOW),
    "by an index": assigned((slice(None), COLUMNS), torch.tensor(LOW)),
    "index_fill": lambda h: h.index_fill(1, COLUMNS, LOW),
    "index_put": lambda h: h.index_put((torch.arange(64)[:, None], COLUMNS), torch.tensor(LOW)),
    "index_copy": lambda h: h.index_copy(1, COLUMNS, VALUES),
    "scatter": lambda h: h.scatter(1, COLUMNS.repeat(64, 1), LOW),
    "scatter of a tensor": lambda h: h.scatter(1, COLUMNS.repeat(64, 1), VALUES),
    "slice_scatter": lambda h: torch.slice_scatter(h, VALUES, 1, 32),
    "minimum": lambda h: torch.minimum(h, torch.where(MASK, LOW, 9.0)),
    "padding": lambda h: F.pad(h, (0, 64), value=LOW),
    "moved": lambda h: h.masked_fill(CAUSAL, LOW).flip(0).roll(3, 1).split(32)[1].repeat(2, 1)[:, COLUMNS],
    "infinite": lambda h: h.masked_fill(CAUSAL, -torch.inf),
}
# What only the elements tell.
UNKNOWN = {
    "a sum with gradients": lambda h: h.masked_fill(MASK, LOW) + h,
    "a product": lambda h: h * torch.where(SCATTERED, -LOW, 1.0).requires_grad_(),
    "linear": lambda h: h @ torch.where(HALF, -LOW, 1.0).diag().requires_grad_(),
    "infinite": lambda h: h.masked_fill(SCATTERED, -torch.inf) + h,
}


def assert_kept_exactly(masking, why):
    def forward(self, x):
        return checkpoint(lambda h: h.softmax(-1) * SLOPE[: h.shape[-1]], masking(x @ self.w), use_reentrant=False)

    # Nothing but the checkpoint's input is stored otherwise than in plain training.
    plain, compressed, model = plain_and_compressed(Net(forward, w=W), X, bits=8, product_bits=8)
    [row] = rows(model, "checkpoint")
    assert row.codec == "kept"
    assert why in row.why
    assert plain["w"].isfinite().all()
    return plain, compressed


@pytest.mark.parametrize("name", MASKINGS)
def test_a_mask_is_known_by_the_operator_that_put_it(name):
    h = MASKINGS[name](X @ W.clone().requires_grad_())
    assert may_be_masked(h)
    plain, compressed = assert_kept_exactly(MASKINGS[name], "a mask, or may have one in it")
    if "parameter" not in name:
        assert_same(plain, compressed)


@pytest.mark.parametrize("name", MASKINGS)
def test_a_mask_is_known_by_its_elements(name, monkeypatch):
    """If its operator were not known, the CPU's memory would tell."""
    monkeypatch.setattr("integrations.tracing.checkpoints.may_be_masked", lambda tensor: False)
    assert_kept_exactly(MASKINGS[name], MASKED)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_mask_that_no_operator_tells(name):
    assert not may_be_masked(UNKNOWN[name](X @ W.clone().requires_grad_())) or name == "a product"
    h = UNKNOWN[name](X @ W)
    assert is_masked(h, 64)


ACTIVATIONS = {
    "normal": lambda x: x,
    "relu": torch.relu,
    "gelu": F.gelu,
    "dropout": lambda x: F.dropout(x.relu(), 0.9),
    "layer_norm": lambda x: F.layer_norm(x, (64,)),
    "far from zero": lambda x: x + 1000,
    "softmax": lambda x: x.softmax(-1),
    "saturated": lambda x: torch.tanh(3 * x),
    "two values": lambda x: (x > 0).float() * 1e6,
    "one-hot": lambda x: F.one_hot(x.argmax(1), 64).float(),
    "constant": torch.zeros_like,
    "two scales": lambda x: torch.cat([x, 1e6 * x]),  # in groups of their own
    "square": torch.square,
    "empty": lambda x: x[:0],
    "one": lambda x: x[0, 0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_not_taken_for_masked(name, dtype):
    """256 rows, so many groups, none of which may be."""
    h = ACTIVATIONS[name](normal(256, 64, seed=3)).clamp(-6e4, 6e4).to(dtype)
    for group_size in (64, 256):
        assert not is_masked(h, group_size)
        assert not is_masked(h.t(), group_size)


def test_hidden_states_are_not_taken_for_masked():
    """Sums of what has a gradient, scaled and gated, above a constant encoding of positions."""
    w = W.clone().requires_grad_()
    h = X @ w + normal(64, seed=4)
    h = h + h @ w
    for made in (h, h * 0.5, h / 8, h * h.sigmoid(), torch.cat([h, h @ w]), torch.stack([h, h]).unbind()[1], h[3:]):
        assert not may_be_masked(made)


def test_an_outlier_leaves_the_others_their_bits():
    """One element a thousand times as large makes a group too wide for the rest; ten times does not."""
    h = normal(64, 64)
    for factor, expected in ((1e4, True), (10.0, False)):
        h[5, 5] = factor
        assert is_masked(h, 64) == expected


def test_the_report_says_why():
    model = Net(lambda self, x: checkpoint(torch.tanh, UNKNOWN["linear"](x @ self.w), use_reentrant=False), w=W)
    model = integrations.compress_model(model)
    model(X).sum().backward()
    assert [row.why for row in rows(model, "checkpoint")] == [MASKED]
