"""Attention that keeps query, key and value and recomputes the rest: torch's numbers, masks, dropout and errors."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import Net, assert_same, normal, plain_and_compressed, relative_error, rows

HEADS, TOKENS, WIDTH = 4, 48, 16
X = normal(2, TOKENS, HEADS * WIDTH)
LEVEL_OF_NOTHING = {"min_bytes": 1 << 30}  # attention is replaced, and every tensor is kept as it is


def heads(h, count=HEADS):
    return h.unflatten(-1, (count, -1)).transpose(1, 2)


def attending(call, tokens=TOKENS, scale=1.0, key_heads=HEADS):
    """Query, key and value of three projections, a float mask to learn, and ``call`` on them."""
    size = HEADS * WIDTH
    weights = {"q": normal(size, size, seed=1) / 8 * scale, "k": normal(key_heads * WIDTH, size, seed=2) / 8}
    weights |= {"v": normal(key_heads * WIDTH, size, seed=3) / 8, "mask": normal(tokens, tokens, seed=4)}

    def forward(self, x):
        q, k, v = (
            heads(F.linear(x, weight), count)
            for weight, count in ((self.q, HEADS), (self.k, key_heads), (self.v, key_heads))
        )
        return call(q, k, v, self.mask).transpose(1, 2).flatten(2)

    return Net(forward, **weights)


def triangle(tokens=TOKENS):
    return torch.ones(tokens, tokens, dtype=torch.bool).tril()


def padding(tokens=TOKENS):
    return (torch.arange(tokens) < 30).expand(2, 1, 1, -1)


SDPA = F.scaled_dot_product_attention
CALLS = {
    "plain": lambda q, k, v, m: SDPA(q, k, v),
    "causal": lambda q, k, v, m: SDPA(q, k, v, is_causal=True),
    "causal by position": lambda q, k, v, m: SDPA(q, k, v, None, 0.0, True),
    "keywords": lambda q, k, v, m: SDPA(query=q, key=k, value=v, attn_mask=triangle()),
    "boolean mask": lambda q, k, v, m: SDPA(q, k, v, triangle()),
    "float mask": lambda q, k, v, m: SDPA(q, k, v, m.detach() * 2),
    "float mask with minus infinity": lambda q, k, v, m: SDPA(q, k, v, m.detach().masked_fill(~triangle(), -torch.inf)),
    "float mask with the least number": lambda q, k, v, m: SDPA(
        q, k, v, torch.zeros_like(m).masked_fill(~triangle(), -3.4e38)
    ),
    "float mask with a gradient": lambda q, k, v, m: SDPA(q, k, v, m * 2),
    "a parameter as mask": lambda q, k, v, m: SDPA(q, k, v, m),
    "expanded mask": lambda q, k, v, m: SDPA(q, k, v, (m * 1).expand(2, HEADS, -1, -1)),
    "scale": lambda q, k, v, m: SDPA(q, k, v, scale=0.5),
    "dropout": lambda q, k, v, m: SDPA(q, k, v, dropout_p=0.3),
    "dropout of everything": lambda q, k, v, m: SDPA(q, k, v, dropout_p=1.0),
    "dropout and causal": lambda q, k, v, m: SDPA(q, k, v, dropout_p=0.2, is_causal=True, scale=0.3),
    "dropout and boolean mask": lambda q, k, v, m: SDPA(q, k, v, triangle(), dropout_p=0.2),
    "dropout and a row without keys": lambda q, k, v, m: SDPA(q, k, v, triangle().tril(-1), dropout_p=0.2),
    "dropout and padding": lambda q, k, v, m: SDPA(q, k, v, padding(), dropout_p=0.2),
    "dropout and float mask with minus infinity": lambda q, k, v, m: SDPA(
        q, k, v, m.detach().masked_fill(~triangle(), -torch.inf), dropout_p=0.2
    ),
    "unbatched": lambda q, k, v, m: SDPA(q[0], k[0], v[0]).expand_as(q),
    "unbatched with a mask": lambda q, k, v, m: SDPA(q[0], k[0], v[0], triangle().expand(HEADS, -1, -1)).expand_as(q),
    "dropout and a scale below zero": lambda q, k, v, m: SDPA(q, k, v, dropout_p=0.2, scale=-0.5),
    "dropout and cross": lambda q, k, v, m: SDPA(q[:, :, :20], k, v, dropout_p=0.2),
    "dropout and mask": lambda q, k, v, m: SDPA(q, k, v, m * 1, dropout_p=0.1),
    "one tensor three times": lambda q, k, v, m: SDPA(q, q, q),
    "key and value without gradient": lambda q, k, v, m: SDPA(q, k.detach(), v.detach()),
    "cross": lambda q, k, v, m: SDPA(q[:, :, :20], k, v),
    "double": lambda q, k, v, m: SDPA(q.double(), k.double(), v.double()).float(),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_torchs_when_nothing_is_quantised(name):
    """Result, dropout and the generator after it bit for bit; the gradient too, since backward is torch's own."""
    model = attending(CALLS[name])
    plain, found, model = plain_and_compressed(model, X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)
    assert {row.role for row in rows(model, "scaled_dot_product_attention")} <= {"recomputed", "other", "internal"}
    outputs, states = [], []
    for net in (integrations.restore_model(copy.deepcopy(model)), model):
        torch.manual_seed(3)
        outputs.append(net(X))
        states.append(torch.get_rng_state())
        torch.rand(7)  # what is drawn between forward and backward, backward must not take back
        later = torch.get_rng_state()
        outputs[-1].sum().backward()
        assert torch.equal(later, torch.get_rng_state())
    assert torch.equal(*outputs)
    assert torch.equal(*states)


def test_backward_under_autocast_is_that_of_the_call():
    """Whatever casts there are where backward runs, the forward had none."""
    model = Attending()
    integrations.compress_model(model, **LEVEL_OF_NOTHING)
    found = []
    for enabled in (False, True):
        model.zero_grad()
        torch.manual_seed(3)
        loss = model().square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled):
            loss.backward()
        found.append(model.three.grad)
    assert torch.equal(*found)


class Attending(nn.Module):
    """Attention with nothing else that autocast casts."""

    def __init__(self):
        super().__init__()
        self.three = nn.Parameter(normal(3, 2, HEADS, TOKENS, 16))

    def forward(self):
        return SDPA(*self.three.unbind(), dropout_p=0.3)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_what_torch_refuses_it_refuses_here(dropout):
    """Where the operators that torch's function calls would take it."""
    for mask in (torch.zeros(TOKENS, TOKENS, dtype=torch.int32), torch.zeros(TOKENS, TOKENS, dtype=torch.float64)):
        model = attending(lambda q, k, v, m, mask=mask: SDPA(q, k, v, mask, dropout_p=dropout))
        with pytest.raises(RuntimeError) as plain:
            model(X)
        with pytest.raises(RuntimeError) as compressed:
            integrations.compress_model(model, "L1")(X)
        assert str(compressed.value) == str(plain.value)


def test_grouped_queries():
    model = attending(lambda q, k, v, m: SDPA(q, k, v, enable_gqa=True), key_heads=2)
    plain, found, model = plain_and_compressed(model, X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)
    assert len(rows(model, "scaled_dot_product_attention")) == 3


@pytest.mark.parametrize("name", CALLS)
def allowed(bits, logits):
    """How far a gradient may be off with query, key and value in so many bits, and logits of that standard deviation.

    A group of near-normal elements spans up to 8 standard deviations, so a rounding's is at most e = 8 / (2**b - 1) / 2
    of the elements'. A logit, a sum of products of rounded elements, is off by sqrt(2) e of its size, and the softmax
    by that much relatively; the other factor, a value or the linear layer's own input, adds e each.
    """
    e = 4 / (2**bits - 1)
    return e * (2 + 2**0.5 * logits)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "dropout of everything"])
@pytest.mark.parametrize("bits", [8, 4])
def test_the_error_is_that_of_the_stored_tensors(name, bits):
    model = attending(CALLS[name])
    plain, found, model = plain_and_compressed(model, X, level="L1.1", bits=bits, attention_bits=bits)
    moved = {name: value for name, value in plain.items() if value.norm() > 0}
    assert 0 < relative_error(moved, found) < allowed(bits, 1)
    assert all(f"bits={bits}" in row.codec for row in rows(model) if row.role == "recomputed")


@pytest.mark.parametrize(("tokens", "scale"), [(512, 1), (512, 8), (48, 8)])
@pytest.mark.parametrize("bits", [8, 6])
def test_long_sequences_and_large_logits(tokens, scale, bits):
    """The softmax is normalised over the query and key that backward has, so its sum amplifies nothing."""
    x = normal(1, tokens, HEADS * WIDTH)
    model = attending(CALLS["causal"], tokens, scale)
    plain, found, _ = plain_and_compressed(model, x, level="L1.2", attention_bits=bits)
    assert relative_error(plain, found) < allowed(bits, scale)


@pytest.mark.parametrize("name", ["float mask with a gradient", "dropout and mask", "expanded mask"])
def test_a_mask_is_kept_as_it_is(name):
    _, _, model = plain_and_compressed(attending(CALLS[name]), X, min_bytes=0)
    found = [row for row in rows(model, "scaled_dot_product_attention") if row.role != "internal"]
    assert [row.role for row in found] == ["recomputed", "recomputed", "recomputed", "other"]
    assert found[-1].codec == "kept"


@pytest.mark.parametrize(("tokens", "kept"), [(96, True), (97, False)])
def test_a_dropout_mask_is_kept_where_it_is_small(tokens, kept):
    """One bit for each query and key, 16 times smaller than the three of 16 float32 each: up to 96 tokens."""
    model = attending(CALLS["dropout"], tokens)
    plain, found, model = plain_and_compressed(model, normal(2, tokens, HEADS * WIDTH), min_bytes=0)
    internal = [row for row in rows(model, "scaled_dot_product_attention") if row.role == "internal"]
    assert [row.stored_bytes for row in internal] == ([2 * HEADS * tokens * tokens // 8] if kept else [])
    assert relative_error(plain, found) < allowed(4, 1)
