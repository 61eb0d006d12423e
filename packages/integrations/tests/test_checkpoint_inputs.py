"""The inputs of a checkpoint, all that it leaves in memory: in fewer bits where a gradient goes through them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import integrations
from actcore import GroupAffine

from .nets import gradients, mlp, normal, relative_error, rows

X = normal(48, 64)
both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])


class Segment(nn.Module):
    """A linear layer, and a checkpoint with dropout, a mask and an index in it, which notes what it is given."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle = nn.Linear(64, 64), mlp(64, 2).append(nn.Dropout(0.5))
        self.given, self.reentrant, self.storages = [], reentrant, []

    def forward(self, x):
        h = self.first(x)
        mask = torch.zeros_like(h).masked_fill(h > 1, -float("inf"))
        index = torch.arange(64).flip(0).repeat(48, 1)
        self.storages = [StorageWeakRef(h.untyped_storage())]
        return checkpoint(self.segment, h, mask, index, x, self.middle[0].weight, use_reentrant=self.reentrant)

    def segment(self, h, mask, index, x, weight):
        self.given.append([value.detach().clone() for value in (h, mask, index, x, weight)])
        h = self.middle(F.silu(h) + (h + mask).softmax(-1)) @ weight
        return h.gather(1, index) + x


@both_kinds
@pytest.mark.parametrize("level", ["L1", "L1.2", "L2", "L2.2"])
def test_backward_recomputes_the_segment_from_what_is_stored(reentrant, level):
    """The gradients are those of the segment at the stored input, bit for bit, with the dropout of the forward."""
    model = integrations.compress_model(Segment(reentrant), level)
    plain = copy.deepcopy(model)
    integrations.restore_model(plain)
    torch.manual_seed(1)
    model(X).sum().backward()
    [(exact, *others), (stored, *again)] = model.given
    assert all(map(torch.equal, others, again))
    # Rows of 64 have groups of their own; an element is off by less than a step of the 255 in its group's range.
    step = (exact.amax(1) - exact.amin(1)) / 255
    off = (stored - exact).abs()
    assert (off <= step[:, None] * (1 + 1e-4)).all()  # bounds and steps are float32
    assert off.max() > 0.5 * step.min()
    torch.manual_seed(1)
    plain.segment(stored.requires_grad_(), *again[:-1], plain.middle[0].weight).sum().backward()
    for name in ("0.weight", "0.bias", "2.weight", "2.bias"):
        expected, found = (net.middle.get_parameter(name).grad for net in (plain, model))
        assert torch.equal(expected, found)
    torch.testing.assert_close(model.first.bias.grad, stored.grad.sum(0))


@both_kinds
def test_what_is_no_activation_is_left(reentrant):
    model = integrations.compress_model(Segment(reentrant))
    model(X).sum().backward()
    found = {(row.dtype, row.role): row.codec for row in rows(model, "checkpoint")}
    assert found.pop((torch.float32, "input")) == str(GroupAffine(8, 64))
    assert found == {(torch.float32, "other"): "kept", (torch.int64, "other"): "kept"}  # mask, index
    owners = [row.owner for row in rows(model, "checkpoint", owned=True)]
    assert sorted(owners) == ["input of the model", "parameter"]


@both_kinds
def test_its_memory_goes(reentrant):
    for bits, gone in ((8, True), (None, False)):
        model = integrations.compress_model(Segment(reentrant), checkpoint_bits=bits)
        output = model(X)
        assert model.storages[0].expired() == gone
        output.sum().backward()


@both_kinds
def test_the_noise_is_unbiased(reentrant):
    """In a segment that is linear in its input, so is its weight's gradient: the mean over seeds goes to the exact one.

    One seed's error has a standard deviation of at most half a step in each element, and so of at most
    0.5 sqrt(48) steps in a sum over 48 rows; the mean over 32 seeds has sqrt(32) times less, and 6 times that is not
    passed by any of 4,096.
    """

    class Linear(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return checkpoint(self.second, self.first(x), use_reentrant=reentrant)

    model = Linear()
    h = model.first(X).detach()
    exact = gradients(model, X, loss=torch.sum)["second.weight"]
    found = []
    for seed in range(32):
        compressed = integrations.compress_model(copy.deepcopy(model), "L1.1", seed=seed)
        found.append(gradients(compressed, X, loss=torch.sum)["second.weight"])
    step = ((h.amax(1) - h.amin(1)) / 255).max()
    limit = 6 * 0.5 * step * (48 / 32) ** 0.5
    assert (torch.stack(found).mean(0) - exact).abs().max() < limit
    assert (found[0] - exact).abs().max() > 0


@both_kinds
def test_kept_exactly_gradients_are_those_of_plain_training(reentrant):
    class Routed(nn.Module):
        """Shapes that follow from values."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.first, self.expert = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            return checkpoint(lambda h: self.expert(h[h[:, 0] > 0]), self.first(x), use_reentrant=reentrant)

    model = Routed()
    plain = gradients(copy.deepcopy(model), X)
    kept = gradients(integrations.compress_model(model, "L1.1", checkpoint_bits=None), X)
    assert relative_error({"": plain["expert.weight"]}, {"": kept["expert.weight"]}) == 0


def test_an_adaptive_level_leaves_them_out_of_its_plan():
    model = integrations.compress_model(Segment(False), "L2", min_bytes=0)
    model.first = nn.Sequential(mlp(64, 2), model.first)
    for _ in range(3):
        model(X).sum().backward()
    plan = integrations.compression(model).plan
    names = {name.operator for entry in plan.allotments for name in entry.identities}
    assert names == {"linear"}
    assert next(row.codec for row in rows(model, "checkpoint")).startswith("GroupAffine(bits=8")


def test_in_a_block_with_its_backward_a_segments_own_functions_are_no_inputs():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return 2 * x * gradient

    model = nn.Linear(64, 64)
    with integrations.compress(model) as handle:
        checkpoint(Square.apply, model(X), use_reentrant=True).sum().backward()
    assert [row.operator for row in handle.report().rows if not row.owner] == ["checkpoint", "backward"]


def test_bad_values():
    with pytest.raises(ValueError, match="checkpoint_bits must be from 1 to 8, got 9"):
        integrations.compress_model(mlp(), checkpoint_bits=9)
