"""What a checkpoint holds without autograd's knowledge: keyword arguments, containers, the closure of its segment.

It is stored as positional inputs are, which test_checkpoint_inputs.py is about: the same gradients, bit for bit.
"""

import copy
import functools
import gc
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

import integrations
from integrations.saved.rebuild import Rebuilder

from .nets import EIGHT_BITS, assert_nothing_active, assert_same, gradients, normal, relative_error, rows

X = normal(48, 64)
Pair = namedtuple("Pair", "one two")
# Made once and for all, as libraries do with a model's checkpointing function.
recomputed = functools.partial(checkpoint, use_reentrant=False)


@dataclass
class State:
    tensor: torch.Tensor


class Bound:
    def __init__(self, tensor):
        self.tensor = tensor

    def scaled(self, h):
        return h * self.tensor


def within(function):
    """A decorator that keeps what it wraps in its closure and in an attribute."""

    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


# How a segment gets h and c; each calls net.segment(h, c) in a checkpoint.
WAYS = {
    "keyword": lambda net, h, c: recomputed(net.segment, h, c=c),
    "keywords alone": lambda net, h, c: recomputed(net.segment, h=h, c=c),
    "list": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given[1]), h, [1, c]),
    "tuple": lambda net, h, c: recomputed(lambda given: net.segment(*given), (h, c)),
    "named tuple": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given.two), h, Pair(None, c)),
    "dict": lambda net, h, c: recomputed(lambda h, given: net.segment(h, given["c"][0]), h, {"c": (c,)}),
    "keyword dict": lambda net, h, c: recomputed(
        lambda h, given: net.segment(h, given["c"]), h, given=OrderedDict(c=c)
    ),
    "closure": lambda net, h, c: recomputed(lambda h: net.segment(h, c), h),
    "closure alone": lambda net, a, b: recomputed(lambda: net.segment(a, b)),  # cells are in the order of their names
    "function in the closure": lambda net, h, c: recomputed(within(within(lambda h: net.segment(h, c))), h),
    "default": lambda net, h, c: recomputed(lambda h, c=c: net.segment(h, c), h),
    "keyword default": lambda net, h, c: recomputed(lambda h, *, c=c: net.segment(h, c), h),
    "partial": lambda net, h, c: recomputed(functools.partial(functools.partial(net.segment, c=c), h)),
    "method": lambda net, h, c: recomputed(MethodType(lambda net, h: net.segment(h, c), net), h),
}


class Held(nn.Module):
    """Two branches that meet in a checkpoint with dropout, which notes what it is given."""

    def __init__(self, way):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.way, self.given, self.storages = way, [], []

    def forward(self, x):
        h, c = self.left(x), self.right(x)
        self.storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in (h, c)]
        return self.way(self, h, c)

    def segment(self, h, c):
        self.given.append((h.detach().clone(), c.detach().clone(), h.requires_grad, c.requires_grad, c.is_leaf))
        return F.dropout(self.last(F.silu(h)) * c, 0.3)


def positional(net, h, c):
    return checkpoint(net.segment, h, c, use_reentrant=False)


def compressed(way, level="L1.1", **options):
    return integrations.compress_model(Held(way), level, **options)


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
    assert relative_error(expected, found) < EIGHT_BITS  # the inner one's are rounded here; there, computed again
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


# ---- what is whose ----


def test_a_tensor_in_two_places_is_one():
    seen = []

    def segment(h, given, other):
        seen.append(given[0] is other)
        return h * other

    model = compressed(lambda net, h, c: recomputed(segment, h, [c], other=c))
    model(X).sum().backward()
    assert seen == [True, True]
    assert len(rows(model, "checkpoint")) == 2


def test_what_others_have_is_used_itself():
    """Parameters, inputs, leaves, functions and containers without an activation in them."""
    seen = []

    def way(net, h, c):
        extra = torch.ones(64, requires_grad=True)
        held = [net.last.weight, X, extra, way]

        def segment(h):
            seen.append((held, extra, net))
            return h @ net.last.weight * extra + c

        return recomputed(segment, h)

    model = compressed(way)
    model(X).sum().backward()
    first, again = seen
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_masks_take_a_bit_and_numbers_without_a_gradient_stay():
    def way(net, h, c):
        negative, bias = h < 0, torch.arange(48 * 64.0).view(48, 64)
        net.storages = [StorageWeakRef(tensor.untyped_storage()) for tensor in (negative, bias)]
        return recomputed(lambda h: h.masked_fill(negative, 0.5) + bias.sin(), h)

    model = compressed(way)
    output = model(X)
    assert [storage.expired() for storage in model.storages] == [True, False]
    found = {(row.dtype, row.role): (row.codec, row.stored_bytes) for row in rows(model, "checkpoint")}
    assert found[torch.bool, "other"][1] == 48 * 64 // 8
    assert found[torch.float32, "other"] == ("kept", 4 * 48 * 64)
    output.sum().backward()


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


def test_a_list_that_the_segment_takes_from_and_gives_back_to():
    """What backward is given is what was there when the segment was over, as without compression."""

    def way(net, h, c, stored):
        stack = [c]

        def segment(h):
            c = stack.pop()
            h = net.segment(h, c)
            stack.append(c)
            return h

        return recomputed(segment, h) if stored else positional(net, h, c)

    models = [compressed(functools.partial(way, stored=stored)) for stored in (False, True)]
    assert_same(*(gradients(model, X) for model in models))


def circular(net, h, c):
    def segment(h, times=1):
        return segment(h * c, 0) if times else h

    return recomputed(segment, h)


LEFT = {
    "in a State, which only its own code can make": lambda net, h, c: recomputed(
        lambda h, state: h * state.tensor, h, State(c)
    ),
    "in a Bound, which only its own code can make": lambda net, h, c: recomputed(Bound(c).scaled, h),
    "that holds itself": circular,
    "use_reentrant=True": lambda net, h, c: checkpoint(lambda h: h * c, h, use_reentrant=True),
    "with use_reentrant=True holds it": lambda net, h, c: checkpoint(
        lambda h, given: h * given[0].detach(), h, [c], use_reentrant=True
    ),
}


@pytest.mark.parametrize("why", LEFT)
def test_what_cannot_be_replaced_is_kept_and_the_report_says_why(why):
    model = compressed(LEFT[why])
    output = model(X)
    assert not model.storages[1].expired()
    [row] = [row for row in rows(model, "checkpoint") if row.codec == "kept"]
    assert why in row.why
    assert row.why.endswith("kept exactly") or "kept exactly;" in row.why
    assert row.original_bytes == row.stored_bytes == X.numel() * 4
    output.sum().backward()
    gc.collect()


def test_a_rebuilt_function_is_like_the_original():
    tensor = normal(4).requires_grad_() * 2

    def original(a, b=tensor, *, c=3):
        """Documented."""
        return a, b, c, tensor

    original.note = "kept"
    from integrations.saved.rebuild import Place, build

    class Same(Place):
        def build(self, built):
            return tensor + 1

    class Finder:
        def found(self, tensor):
            return Same()

        def out_of_reach(self, tensor, holder):
            raise AssertionError

    function = build(Rebuilder(Finder()).visit(original), {})
    a, b, c, inside = function(1)
    assert (a, c) == (1, 3)
    assert b is inside
    assert torch.equal(b, tensor + 1)
    assert (function.__name__, function.__doc__, function.note) == ("original", "Documented.", "kept")
    assert function.__qualname__ == original.__qualname__
    assert original(1)[1] is tensor


def test_copies_of_a_model_go_their_own_way():
    model = compressed(WAYS["closure"])
    expected = gradients(copy.deepcopy(model), X)
    assert_same(expected, gradients(model, X))
