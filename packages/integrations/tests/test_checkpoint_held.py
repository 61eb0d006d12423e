"""What a checkpoint holds without autograd's knowledge: keyword arguments, containers, the closure of its segment.

It is stored as positional inputs are, which test_checkpoint_inputs.py is about: the same gradients, bit for bit.
What is kept, and whose it is, is in test_checkpoint_held_kept.py.
"""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import integrations

from .nets import EIGHT_BITS, assert_nothing_active, assert_same, gradients, relative_error, rows
from .segments import WAYS, Held, X, compressed, positional, recomputed

# ---- the same as positional inputs ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["L1", "L2.2"])
def test_gradients_are_those_of_positional_inputs(way, level):
    expected, model = compressed(positional, level), compressed(WAYS[way], level)
    assert_same(gradients(expected, X), gradients(model, X))
    for first, again in (expected.given, model.given):
        assert first[2:] == again[2:] == (True, True, False)
    stored = [[(row.codec, row.stored_bytes) for row in rows(net, "checkpoint")] for net in (expected, model)]
    assert stored[0] == stored[1]
    assert len(stored[0]) == 2


@pytest.mark.parametrize("way", WAYS)
def test_their_memory_goes(way, no_garbage_collection, payloads):
    model = compressed(WAYS[way])
    output = model(X)
    assert all(storage.expired() for storage in model.storages)
    assert sum(payload() is not None for payload in payloads) > 0
    output.sum().backward()
    del output
    assert all(payload() is None for payload in payloads)


@pytest.mark.parametrize("way", WAYS)
def test_kept_exactly_nothing_changes(way):
    plain, model = Held(WAYS[way]), compressed(WAYS[way], checkpoint_bits=None)
    assert_same(gradients(plain, X), gradients(model, X))
    assert {row.codec for row in rows(model, "checkpoint")} == {"kept"}
    output = model(X)
    assert not any(storage.expired() for storage in model.storages)
    del output


def test_level_0_leaves_checkpoints_alone():
    model = compressed(WAYS["keyword"], "L0")
    assert_same(gradients(Held(WAYS["keyword"]), X), gradients(model, X))
    assert not model.given[0][0].ne(model.given[1][0]).any()


# ---- with what else checkpoints do ----


def test_backward_may_pass_twice():
    found = []
    for way in (positional, WAYS["closure alone"]):
        model = compressed(way)
        torch.manual_seed(1)
        loss = model(X).sum()
        found.append([torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2)])
    for one, other, *rest in zip(*found[0], *found[1], strict=True):
        assert all(torch.equal(one, same) for same in (other, *rest))


def test_without_early_stop_and_without_the_generators_states():
    for way in (positional, WAYS["keyword"]):
        model = compressed(way).eval().train()
        with set_checkpoint_early_stop(False):
            found = gradients(model, X)
        if way is positional:
            expected = found
    assert_same(expected, found)


@pytest.mark.parametrize("way", ["keyword", "closure alone"])
def test_inside_of_another_checkpoint(way):
    """The inner one's inputs are kept alive by nobody else."""

    def twice(net, h, c, inner):
        return checkpoint(lambda h: inner(net, h.sin(), c.exp().clone()) + h, h, use_reentrant=False)

    expected = gradients(compressed(functools.partial(twice, inner=positional)), X)
    model = compressed(functools.partial(twice, inner=WAYS[way]))
    found = gradients(model, X)
    assert relative_error(expected, found) < EIGHT_BITS  # the inner one's are rounded here; there, recomputed
    assert len(rows(model, "checkpoint")) > 2


def saving_some():
    """Selective checkpointing: some operators' results are kept, and counted by operator."""
    aten = torch.ops.aten
    kept = (aten.addmm.default, aten.tanh.default, aten.as_strided.default, aten.new_empty.default)
    policies = CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.MUST_SAVE
    return create_selective_checkpoint_contexts(lambda ctx, op, *args, **kwargs: policies[op in kept])


@pytest.mark.parametrize("nested", [False, True])
def test_selective_checkpoints_count_none_of_our_operators(nested):
    def way(net, h, c):
        inside = functools.partial(WAYS["closure"], net) if nested else net.segment

        def outside(h):
            return (inside(h, c.sin()).tanh() + h).as_strided((64, 48), (1, 64)).square()

        return recomputed(outside, h, context_fn=saving_some)

    plain, found = gradients(Held(way), X), gradients(compressed(way), X)
    assert relative_error(plain, found) < EIGHT_BITS


def test_autocast_inside():
    def way(net, h, c, call):
        with torch.autocast("cpu", torch.bfloat16):
            return call(net, h, c)

    models = [compressed(functools.partial(way, call=call)) for call in (positional, WAYS["closure"])]
    assert_same(*(gradients(model, X, loss=lambda output: output.float().sum()) for model in models))


def test_a_gradient_taken_inside_the_segment():
    def way(net, h, c, call):
        net.segment = lambda h, c: torch.autograd.grad(Held.segment(net, h, c).sum(), c, create_graph=True)[0] * h
        return call(net, h, c)

    models = [compressed(functools.partial(way, call=call)) for call in (positional, WAYS["keyword"])]
    assert_same(*(gradients(model, X) for model in models))


def test_a_block_with_its_backward():
    found = []
    for way in (positional, WAYS["keyword"]):
        model = Held(way)
        with integrations.compress(model, "L1.1"):
            found.append(gradients(model, X))
    assert_same(*found)


def test_a_segment_of_which_no_call_is_seen():
    """As with a compiled one: its positional input leads to the rest."""

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h, c):
            ctx.save_for_backward(h, c)
            return h * c

        @staticmethod
        def backward(ctx, gradient):
            h, c = ctx.saved_tensors
            return gradient * c, gradient * h

    model = compressed(lambda net, h, c: recomputed(lambda h: Product.apply(h, c), h))
    output = model(X)
    assert all(storage.expired() for storage in model.storages)
    output.sum().backward()


def test_one_after_the_other_each_lets_go_before_the_next_is_over():
    """Or what they hold would pile up."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
            self.alive = []

        def forward(self, x):
            storages = []
            for layer in self.layers:
                x = checkpoint(lambda layer=layer, x=x: self.step(layer, x, storages), use_reentrant=False)
                storages.append(StorageWeakRef(x.untyped_storage()))
            return x

        def step(self, layer, x, storages):
            x = layer(x).sin()
            self.alive.append(sum(not storage.expired() for storage in storages))
            return x

    model = integrations.compress_model(Chain())
    model(X).sum().backward()
    assert model.alive[:4] == [0, 1, 1, 1]


def test_an_exception_in_a_segment_leaves_nothing_behind():
    def failing(net, h, c):
        raise torch.OutOfMemoryError("no memory")

    model = compressed(lambda net, h, c: recomputed(failing, net, h, c=c.sin()))
    with pytest.raises(torch.OutOfMemoryError):
        model(X)
    assert_nothing_active()
    model.way = WAYS["keyword"]
    expected = compressed(positional)
    integrations.compression(expected).step = 1
    assert_same(gradients(expected, X), gradients(model, X))


def test_copies_of_a_model_go_their_own_way():
    model = compressed(WAYS["closure"])
    expected = gradients(copy.deepcopy(model), X)
    assert_same(expected, gradients(model, X))
