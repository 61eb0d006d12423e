"""What a checkpoint holds without autograd's knowledge: keyword arguments, containers, the closure of its segment.

It stays as it is, and the report says so. test_checkpoint_inputs.py is about positional inputs, which are stored.
"""

import copy
import functools
from dataclasses import dataclass

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import integrations

from .nets import EIGHT_BITS, assert_nothing_active, assert_same, gradients, relative_error, rows
from .segments import WAYS, Held, X, compressed, positional, recomputed

WHY = "keyword argument, in a container or in its function's closure: kept exactly"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["L1.1", "L2.2"])
def test_it_is_kept_and_told(way, level):
    plain, model = Held(WAYS[way]), compressed(WAYS[way], level)
    found = gradients(model, X)
    first, again = model.given
    positional_ones = 0
    for one, other in zip(first[:2], again[:2], strict=True):
        positional_ones += not torch.equal(one, other)
    told = rows(model, "checkpoint")
    assert sum(WHY in row.why for row in told) == 2 - positional_ones
    assert len(told) == 2
    if level == "L1.1":
        assert relative_error(gradients(plain, X), found) < EIGHT_BITS


@pytest.mark.parametrize("way", WAYS)
def test_it_lives_as_long_as_the_graph(way, no_garbage_collection):
    model = compressed(WAYS[way])
    output = model(X)
    assert not all(storage.expired() for storage in model.storages)
    output.sum().backward()
    del output
    assert all(storage.expired() for storage in model.storages)


@pytest.mark.parametrize("way", WAYS)
def test_kept_exactly_nothing_changes(way):
    plain, model = Held(WAYS[way]), compressed(WAYS[way], checkpoint_bits=None)
    assert_same(gradients(plain, X), gradients(model, X))
    assert {row.codec for row in rows(model, "checkpoint")} == {"kept"}


@dataclass
class State:
    tensor: torch.Tensor


class Bound:
    def __init__(self, tensor):
        self.tensor = tensor

    def scaled(self, h):
        return h * self.tensor


def circular(net, h, c):
    def segment(h, times=1):
        return segment(h * c, 0) if times else h

    return recomputed(segment, h)


OBJECTS = {
    "attribute": lambda net, h, c: recomputed(lambda h, state: h * state.tensor, h, State(c)),
    "method": lambda net, h, c: recomputed(Bound(c).scaled, h),
    "circular": circular,
    "reentrant": lambda net, h, c: checkpoint(lambda h: h * c, h, use_reentrant=True),
    "reentrant list": lambda net, h, c: checkpoint(lambda h, given: h * given[0].detach(), h, [c], use_reentrant=True),
}


@pytest.mark.parametrize("way", OBJECTS)
def test_what_objects_and_reentrant_checkpoints_hold_is_told(way):
    model = compressed(OBJECTS[way])
    output = model(X)
    assert not model.storages[1].expired()
    [row] = [row for row in rows(model, "checkpoint") if row.codec == "kept"]
    assert ("use_reentrant=True holds it" if way.startswith("reentrant") else WHY) in row.why
    assert row.original_bytes == row.stored_bytes == X.numel() * 4
    output.sum().backward()


def test_what_others_have_is_not_told():
    """Parameters, inputs and leaves."""

    def way(net, h, c):
        extra = torch.ones(64, requires_grad=True)
        held = [net.last.weight, X, extra, way]
        return recomputed(lambda h: h @ held[0] * held[2] + held[1], h)

    model = compressed(way)
    model(X).sum().backward()
    assert not any(WHY in row.why for row in rows(model, "checkpoint"))


@pytest.mark.parametrize("masked", [-float("inf"), torch.finfo(torch.float32).min])
@pytest.mark.parametrize("by", ["position", "closure"])
@pytest.mark.parametrize("how", ["sum", "fill", "choice"])
def test_a_bias_with_a_mask_in_it_is_kept(masked, by, how):
    """One masked element would take the whole group's bits, or make all of it NaN."""
    later = torch.ones(64, 64, dtype=torch.bool).triu(1)
    apply = {
        "sum": lambda bias: bias + torch.zeros(64, 64).masked_fill(later, masked),
        "fill": lambda bias: bias.masked_fill(later, masked),
        "choice": lambda bias: torch.where(later, masked, bias),
    }[how]

    def way(net, h, c):
        bias = apply(c.T @ h)[None].expand(2, -1, -1).transpose(0, 1)
        if by == "position":
            return recomputed(lambda h, bias: h @ bias[:, 0].softmax(-1), h, bias)
        return recomputed(lambda h: h @ bias[:, 0].softmax(-1), h)

    plain, found = Held(way), compressed(way)
    expected, found = gradients(plain, X)["right.weight"], gradients(found, X)["right.weight"]
    assert found.isfinite().all()
    assert (expected - found).norm() < EIGHT_BITS * expected.norm()


def test_level_0_leaves_checkpoints_alone():
    model = compressed(WAYS["keyword"], "L0")
    assert_same(gradients(Held(WAYS["keyword"]), X), gradients(model, X))
    assert not model.given[0][0].ne(model.given[1][0]).any()


# ---- with what else checkpoints do ----


def test_backward_may_pass_twice():
    model = compressed(WAYS["closure alone"])
    loss = model(X).sum()
    found = [torch.autograd.grad(loss, list(model.parameters()), retain_graph=True) for _ in range(2)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_without_early_stop_and_without_the_generators_states():
    model = compressed(WAYS["keyword"]).eval().train()
    with set_checkpoint_early_stop(False):
        found = gradients(model, X)
    assert relative_error(gradients(Held(WAYS["keyword"]), X), found) < EIGHT_BITS


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

    way = functools.partial(way, call=WAYS["closure"])
    plain, found = (gradients(net, X, loss=lambda output: output.float().sum()) for net in (Held(way), compressed(way)))
    assert relative_error(plain, found) < EIGHT_BITS


def test_a_gradient_taken_inside_the_segment():
    def way(net, h, c, call):
        net.segment = lambda h, c: torch.autograd.grad(Held.segment(net, h, c).sum(), c, create_graph=True)[0] * h
        return call(net, h, c)

    way = functools.partial(way, call=WAYS["keyword"])
    assert relative_error(gradients(Held(way), X), gradients(compressed(way), X)) < EIGHT_BITS


def test_a_block_with_its_backward():
    model = Held(WAYS["keyword"])
    with integrations.compress(model, "L1.1"):
        found = gradients(model, X)
    assert relative_error(gradients(Held(WAYS["keyword"]), X), found) < EIGHT_BITS


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
    assert [storage.expired() for storage in model.storages] == [True, False]
    assert sum(WHY in row.why for row in rows(model, "checkpoint")) == 1
    output.sum().backward()


def test_an_exception_in_a_segment_leaves_nothing_behind():
    def failing(net, h, c):
        raise torch.OutOfMemoryError("no memory")

    model = compressed(lambda net, h, c: recomputed(failing, net, h, c=c.sin()))
    with pytest.raises(torch.OutOfMemoryError):
        model(X)
    assert_nothing_active()
    model.way = WAYS["keyword"]
    assert relative_error(gradients(Held(WAYS["keyword"]), X), gradients(model, X)) < EIGHT_BITS


def test_copies_of_a_model_go_their_own_way():
    model = compressed(WAYS["closure"])
    expected = gradients(copy.deepcopy(model), X)
    assert_same(expected, gradients(model, X))
