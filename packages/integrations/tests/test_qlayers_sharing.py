"""What Q-layers store once, how long it lives, and what else keeps what alive."""

import gc
import weakref

import pytest
import torch
from torch import nn

import actcore
from integrations import qmodules
from integrations.qmodules import LEVELS, QLevel

from .nets import EIGHT_BITS, normal
from .qnets import Residual, errors, kept_bytes, q_layer


def test_a_tensor_that_two_layers_save_is_stored_once():
    block = qmodules.QModule(Residual(), QLevel(bits=(4,), per_sample=False, per_layer=False))
    n = 4 * 8 * 8 * 8
    output = block(normal(4, 8, 8, 8).requires_grad_())
    assert kept_bytes(output) - 2 * 4 == n // 8 + n // 2 + 8 * n // 256  # mask, codes, bounds; two empty anchors


def test_a_tensor_changed_in_place_is_stored_anew():
    first, second = q_layer(nn.Linear(64, 4)), q_layer(nn.Linear(64, 4))
    x = normal(32, 64).requires_grad_() * 1
    a = first(x)
    x.mul_(-2)
    (a.sum() + second(x).sum()).backward()
    expected = x.detach().sum(0).expand(4, 64)
    assert max(errors([-expected / 2, expected], [first.weight.grad, second.weight.grad])) <= EIGHT_BITS


def test_a_tensor_that_was_given_other_data_is_stored_anew():
    """``x.data = y`` leaves the version as it was."""
    layer, x = q_layer(nn.Linear(64, 4)), normal(32, 64)
    first = layer(x)
    x.data = normal(32, 64, seed=1)
    found = [torch.autograd.grad(output.sum(), layer.weight)[0] for output in (layer(x), first)]
    expected = [data.sum(0).expand(4, 64) for data in (x, normal(32, 64))]
    assert max(errors(expected, found)) <= EIGHT_BITS


def test_fewer_bits_than_are_asked_for_are_not_shared():
    x = normal(32, 64).requires_grad_() * 1
    few, many = (q_layer(nn.Linear(64, 4), QLevel(bits=(bits,), per_sample=False, per_layer=False)) for bits in (1, 8))
    (few(x).sum() + many(x).sum()).backward()
    expected = x.detach().sum(0).expand(4, 64)
    coarse, fine = errors([expected] * 2, [few.weight.grad, many.weight.grad])
    assert fine <= EIGHT_BITS < coarse


def test_what_is_shared_lives_no_longer_than_autograd_keeps_it(monkeypatch, no_garbage_collection):
    made = []
    compress = actcore.GroupAffine.compress

    def noting(*args, **kwargs):
        compressed = compress(*args, **kwargs)
        made.append(weakref.ref(compressed.payload[0].untyped_storage()))
        return compressed

    monkeypatch.setattr(actcore.GroupAffine, "compress", noting)
    layer, x = q_layer(nn.Linear(64, 4)), normal(32, 64)  # as a batch that the caller keeps
    for _ in range(2):
        loss = layer(x).sum()
        assert made[-1]() is not None
        loss.backward()
        assert made[-1]() is None
    assert len(made) == 2  # so the second step rounds anew


def test_nothing_but_the_stored_form_keeps_an_input_alive(no_garbage_collection):
    layer = q_layer(nn.Linear(64, 4))
    x = normal(32, 64).requires_grad_() * 1
    gone = weakref.ref(x.untyped_storage())
    output = layer(x)
    del x
    gc.collect()
    assert gone() is None
    output.sum().backward()


@pytest.mark.parametrize("need_weights", [False, True])
def test_what_attention_stores(need_weights, monkeypatch):
    """Two inputs of projections in 4 bits; query, key and value in 8, and so the softmax, for itself and as a factor;
    the mask of dropout in 1."""
    made = []
    compress = actcore.GroupAffine.compress

    def noting(*args, **kwargs):
        compressed = compress(*args, **kwargs)
        made.append(compressed.nbytes)
        return compressed

    monkeypatch.setattr(actcore.GroupAffine, "compress", noting)
    layer, x = q_layer(nn.MultiheadAttention(256, 8, dropout=0.1), LEVELS["L2"]), normal(64, 8, 256)
    layer(x, x, x, need_weights=need_weights)
    n, scores = x.numel(), 8 * 8 * 64 * 64
    expected = [n // 2] * 2 + [n] * 3 + ([scores, scores, scores // 8] if need_weights else [])
    elements = 5 * n + (3 * scores if need_weights else 0)
    assert sum(made) == sum(expected) + 8 * elements // 256


def test_memory_that_is_not_torchs_is_stored_each_time():
    """Such as a NumPy array's, whose writes leave the version counter as it is: as long as an older output was kept,
    its stored form was used."""
    buffer = bytearray(32 * 64 * 4)
    x, owner = (torch.frombuffer(buffer, dtype=torch.float32).view(32, 64) for _ in range(2))
    layer, kept = q_layer(nn.Linear(64, 4)), []
    for seed in range(2):
        owner.copy_(normal(32, 64, seed=seed))
        kept.append(layer(x))
    assert x._version == 0
    kept[-1].sum().backward()
    assert errors([x.sum(0).expand(4, 64)], [layer.weight.grad])[0] <= EIGHT_BITS
