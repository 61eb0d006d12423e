"""Attention where other parts of torch are at work: autocast, checkpoints, kernels, blocks, composites, libraries."""

import copy
import weakref

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import EIGHT_BITS, assert_same, gradients, plain_and_compressed, relative_error, rows
from .test_attention import LEVEL_OF_NOTHING, SDPA, X, attending


def recomputed(model):
    return [row for row in rows(model) if row.role == "recomputed"]


DROPPING = attending(lambda q, k, v, m: SDPA(q, k, v, dropout_p=0.2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    """Backward runs outside of the region, and computes in its dtype."""

    class Autocast(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = copy.deepcopy(DROPPING)

        def forward(self, x):
            with torch.autocast("cpu", dtype=dtype):
                return self.inner(x).float()

    plain, found, model = plain_and_compressed(Autocast(), X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)
    assert len(recomputed(model)) == 3


def test_autocast_of_float32_inputs():
    """The call casts them itself, and would not in a backward outside of the region."""

    def call(q, k, v, m):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return SDPA(q, k, v, dropout_p=0.2).float()

    plain, found, _ = plain_and_compressed(attending(call), X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)


def test_the_kernel_is_the_one_of_the_forward():
    """With another one in backward, dropout would be another; here the forward alone asks for the math kernel."""

    def call(q, k, v, m):
        with sdpa_kernel(SDPBackend.MATH):
            return SDPA(q, k, v, is_causal=True)

    before = attention_backends()
    plain, found, _ = plain_and_compressed(attending(call), X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)
    assert attention_backends() == before


def attention_backends():
    return torch.nn.attention._cur_sdpa_kernel_backends(with_priority=True)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.inner = nn.Linear(64, 64), copy.deepcopy(DROPPING)
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint_it_is_torchs(reentrant):
    torch.manual_seed(0)
    plain, found, model = plain_and_compressed(Checkpointed(reentrant), X, level="L1.2", checkpoint_bits=None)
    assert_same(plain, found)
    assert recomputed(model) == []


@pytest.mark.parametrize("reentrant", [False, True])
def test_inside_a_checkpoint_in_a_block_with_its_backward(reentrant):
    torch.manual_seed(0)
    model = Checkpointed(reentrant)
    plain = gradients(copy.deepcopy(model), X)
    with integrations.compress(model, "L1.1"):
        found = gradients(model, X)
    assert relative_error(plain, found) < 3 * EIGHT_BITS


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_around(reentrant):
    model = integrations.compress_model(copy.deepcopy(DROPPING), "L1.1")
    found = []
    for net in (DROPPING, model):
        x = X.clone().requires_grad_()
        torch.manual_seed(3)
        checkpoint(net, x, use_reentrant=reentrant).square().sum().backward()
        found.append({"x": x.grad})
    assert relative_error(*found) < 3 * EIGHT_BITS


def test_a_block_with_its_backward():
    """Backward runs attention while the block's hooks and mode are active: it packs and records nothing."""
    model = copy.deepcopy(DROPPING)
    plain = gradients(copy.deepcopy(model), X)
    with integrations.compress(model, "L1.1", **LEVEL_OF_NOTHING) as handle:
        torch.manual_seed(1)
        loss = model(X).square().mean()
        count = len(handle.report().rows)
        loss.backward()
        assert len(handle.report().rows) == count
    assert_same(plain, {name: p.grad for name, p in model.named_parameters() if p.grad is not None})


@pytest.mark.parametrize("calm", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_replaced(calm, monkeypatch):
    monkeypatch.setattr(integrations.tracing.attention._Recomputed, "apply", None)
    model = integrations.compress_model(copy.deepcopy(DROPPING))
    with calm():
        model(X)
    model.eval()
    model(X)


@pytest.mark.parametrize(
    "call", [lambda q, k, v, m: SDPA(q, k, v, m * 1), lambda q, k, v, m: SDPA(q, q, q, m * 1)], ids=["three", "one"]
)
def test_backward_twice_and_double_backward(call):
    model = integrations.compress_model(attending(call), "L1.1", min_bytes=1 << 30)
    plain = integrations.restore_model(copy.deepcopy(model))
    found = []
    for net in (plain, model):
        x = X.clone().requires_grad_()
        loss = net(x).square().sum()
        loss.backward(retain_graph=True)
        first = {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}
        net.zero_grad()
        [slope] = torch.autograd.grad(loss, x, create_graph=True)
        slope.square().sum().backward()
        second = {f"{name} again": p.grad for name, p in net.named_parameters() if p.grad is not None}
        found.append(first | second | {"x": x.grad})
    # The same terms, summed in another order: float32, sums of some hundred terms, so 1e-5 is far above their rounding.
    assert relative_error(*found) < 1e-5


def test_double_backward_of_a_kernel_that_has_none_raises():
    model = integrations.compress_model(attending(lambda q, k, v, m: SDPA(q, k, v)))
    x = X.clone().requires_grad_()
    [slope] = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="not implemented"):
        slope.square().sum().backward()


def test_a_query_changed_in_place_raises_torchs_message():
    seen = []

    def call(q, k, v, m):
        seen.append(q)
        return SDPA(q, k, v)

    loss = integrations.compress_model(attending(call), **LEVEL_OF_NOTHING)(X).sum()
    with torch.no_grad():
        seen[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("no_garbage_collection")
@pytest.mark.parametrize("kernel", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
def test_nothing_is_held_after_backward(payloads, monkeypatch, kernel):
    """Neither what was stored nor what torch's own attention saves, for instance its result, in either pass."""
    results, attention = [], integrations.tracing.attention

    def noting(call):
        def noted(*given):
            result = call(*given)
            output = result[0] if isinstance(result, tuple) else result
            results.append(weakref.ref(output.untyped_storage()))
            return result

        return noted

    monkeypatch.setattr(attention.Attention, "__call__", noting(attention.Attention.__call__))
    monkeypatch.setattr(attention.kernels, "fused", noting(attention.kernels.fused))
    model = integrations.compress_model(attending(lambda q, k, v, m: SDPA(q, k, v).square()))
    with sdpa_kernel(kernel):
        loss = model(X).sum()
    assert len(payloads) == 8
    assert all(payload() is not None for payload in payloads)
    loss.backward()
    assert all(payload() is None for payload in payloads)
    assert [result() for result in results] == [None, None]


def nested(q, k, v):
    """Each sequence cut to a length of its own."""
    cut = [[t[0, :, :20].transpose(0, 1), t[1].transpose(0, 1)] for t in (q, k, v)]
    cut = [torch.nested.as_nested_tensor(parts, layout=torch.jagged) for parts in cut]
    return SDPA(*(t.transpose(1, 2) for t in cut)).transpose(1, 2).to_padded_tensor(0.0)


@pytest.mark.parametrize("call", [nested, torch.vmap(lambda q, k, v: SDPA(q, k, v))], ids=["nested", "vmap"])
def test_what_cannot_be_replayed_is_torchs(call):
    plain, found, model = plain_and_compressed(attending(lambda q, k, v, m: call(q, k, v)), X, **LEVEL_OF_NOTHING)
    assert_same(plain, found)
    assert recomputed(model) == []


# ---- composites and libraries ----


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("own", [True, False], ids=["self", "cross"])
def test_multihead_attention_is_seen_inside(need_weights, own):
    class Attends(nn.MultiheadAttention):
        def forward(self, x):
            key = x if own else x.flip(1).sin()
            return super().forward(x.cos(), key, key, need_weights=need_weights)[0]

    torch.manual_seed(0)
    model = Attends(64, 4, dropout=0.2, batch_first=True)
    assert_same(*plain_and_compressed(copy.deepcopy(model), X, **LEVEL_OF_NOTHING)[:2])
    plain, found, model = plain_and_compressed(model, X, level="L1.1")
    assert relative_error(plain, found) < 3 * EIGHT_BITS
    stored = {row.operator for row in rows(model) if row.codec != "kept"}
    assert {"linear", "softmax" if need_weights else "scaled_dot_product_attention"} <= stored
    assert integrations.compression(model).report().ratio > 2


def test_a_transformer_encoder():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    mask = torch.zeros(2, X.shape[1], dtype=torch.bool)
    mask[1, 40:] = True

    class Masked(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x, src_key_padding_mask=mask)

    # After the last norm, the sum of squares does not depend on the input.
    plain, found, model = plain_and_compressed(
        Masked(model), X, level="L1.1", loss=lambda h: h[..., ::2].square().mean()
    )
    assert relative_error(plain, found) < 3 * EIGHT_BITS
    assert not [row for row in rows(model) if row.why.startswith("no rule") and row.stored_bytes]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_transformers(implementation):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=64,
        attn_implementation=implementation,
    )
    torch.manual_seed(0)
    model = transformers.BertModel(config).train()
    ids = torch.arange(96).view(2, 48) % 100
    mask = torch.ones_like(ids)
    mask[1, 30:] = 0

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, ids):
            return self.inner(ids, attention_mask=mask).last_hidden_state

    plain, found, compressed = plain_and_compressed(
        Masked(), ids, level="L1.1", loss=lambda h: h[:, :, ::2].pow(2).mean()
    )
    whole = [torch.cat([g[name].flatten() for name in plain]) for g in (plain, found)]
    assert (whole[0] - whole[1]).norm() < 3 * EIGHT_BITS * whole[0].norm()
    assert len(recomputed(compressed)) == (6 if implementation == "sdpa" else 0)
    assert integrations.compression(compressed).report().ratio > 3
