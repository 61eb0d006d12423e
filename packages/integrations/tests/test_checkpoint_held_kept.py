"""Of what a checkpoint holds without autograd's knowledge: what is kept exactly, and what is used itself."""

import functools
from dataclasses import dataclass

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

from integrations.tracing.rebuild import Place, Rebuilder, build

from .nets import EIGHT_BITS, assert_same, gradients, normal, rows
from .segments import Held, X, compressed, positional, recomputed


@dataclass
class State:
    tensor: torch.Tensor


class Bound:
    def __init__(self, tensor):
        self.tensor = tensor

    def scaled(self, h):
        return h * self.tensor


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


def test_a_rebuilt_function_is_like_the_original():
    tensor = normal(4).requires_grad_() * 2

    def original(a, b=tensor, *, c=3):
        """Documented."""
        return a, b, c, tensor

    original.note = "kept"

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
