"""The inputs of a checkpoint whose segment decides something by its activations are kept exactly: recomputed from
rounded ones, it might decide otherwise, or have tensors of other shapes."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.checkpoint import checkpoint

import actcore
import integrations
from integrations.tracing.data_dependence import DECIDES

from .deciding_nets import DECISIONS, Deciding, by_function, by_operator
from .nets import assert_same, gradients, normal, rows
from .recompute_levels import flat

X = normal(64, 32)
EIGHT = str(actcore.GroupAffine(8, 32))


class Checkpointed(nn.Module):
    """A decision inside of a checkpoint, whose input is an activation.

    Args:
        decide: of activations, and of a module with layers and a table.
        how: the segment gets its input: ``"positional"`` or ``"reentrant"``.
    """

    def __init__(self, decide, how="positional"):
        super().__init__()
        self.inner = Deciding(decide)
        self.before = nn.Linear(32, 32)
        self.how = how

    def segment(self, h):
        return self.inner(h)

    def forward(self, x):
        h = torch.tanh(self.before(x))
        return checkpoint(self.segment, h, use_reentrant=self.how == "reentrant")


def stored(decide, how="positional", **options):
    """A compressed model, its gradients, and how the checkpoint's input is stored."""
    model = integrations.compress_model(Checkpointed(decide, how).train(), "L1", min_bytes=0, **options)
    found = gradients(model, X)
    return model, found, [(row.codec, row.why) for row in rows(model, "checkpoint")]


def unseen(net, y):
    """A router that autograd does not follow, as DeepSeek's."""
    with torch.no_grad():
        chosen = (y @ net.table[:4].T).topk(2, -1).indices
    return net.table[chosen].sum(-2) * y


def detached(net, y):
    scores = y.detach() @ net.table[:4].T
    return net.table[scores.argmax(-1)] * y


def branching(net, y):
    return y.sin() if y.sum().item() > 0 else y.cos()


def conditional(net, y):
    return y.sin() if (y * 2).sum() > 0 else y.cos()


OTHERS = {one.__name__: one for one in (unseen, detached, branching, conditional, by_operator, by_function)}
ITSELF = ("largest", "clipped")  # decided within operators: a clamp's sides, the place of a largest element
DECIDING = {**{name: one for name, one in DECISIONS.items() if name not in (*ITSELF, "sorted_rows")}, **OTHERS}


@pytest.mark.parametrize("how", ["positional", "reentrant"])
@pytest.mark.parametrize("name", DECIDING)
def test_what_a_segment_decides_from_is_kept(name, how):
    model, found, inputs = stored(DECIDING[name], how)
    assert [codec for codec, _ in inputs] == ["kept"]
    assert "makes, or may make, decisions" in inputs[0][1]
    exact, expected, _ = stored(DECIDING[name], how, checkpoint_bits=None)
    assert_same(expected, found)
    reports = [integrations.compression(one).report() for one in (model, exact)]
    assert reports[0].stored_bytes == reports[1].stored_bytes


def sides(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x, 2 * x.sin())


class Sides(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return sides(x)


class Scripted(nn.Module):
    """A checkpoint of what TorchScript computes, and of a layer after it."""

    def __init__(self, held, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 32)
        self.inner = torch.jit.script(Sides()) if held == "module" else nn.Identity()
        self.held, self.reentrant = held, reentrant

    def forward(self, x):
        h = torch.tanh(self.before(x))
        if self.held == "closure":
            scripted = torch.jit.script(sides)
            return checkpoint(lambda h: torch.tanh(self.after(scripted(h))), h, use_reentrant=self.reentrant)
        return checkpoint(self.segment, h, use_reentrant=self.reentrant)

    def segment(self, h):
        return torch.tanh(self.after(self.inner(h)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("held", ["module", "closure", "nowhere"])
def test_a_segment_that_torchscript_computes_keeps_its_input(held, reentrant):
    """Nobody sees what TorchScript calls."""
    model = integrations.compress_model(Scripted(held, reentrant).train(), "L1", min_bytes=0)
    gradients(model, X)
    assert [row.why == DECIDES for row in rows(model, "checkpoint")] == [held != "nowhere"]


def positions(net, y):
    mask = torch.arange(32, device=y.device) < 16
    return torch.where(mask, y, 0.0)


def dropped(net, y):
    """Whole rows, as in timm's and transformers' DropPath."""
    kept = y.new_empty(len(y), 1).bernoulli_(0.9).div_(0.9)
    drawn = (0.9 + torch.rand(len(y), 1)).floor_()
    return F.dropout(y * kept * drawn * (torch.rand_like(y) < 0.9), 0.1)


def of_a_parameter(net, y):
    return y * (net.second.bias > 0)


def of_shapes(net, y):
    return y.view(len(y), -1) * (y.size(1) > 2) + y.new_zeros(y.shape, dtype=torch.bool)


@pytest.mark.parametrize(
    "decide", [positions, dropped, of_a_parameter, of_shapes, *(DECISIONS[name] for name in ITSELF)]
)
@pytest.mark.parametrize("how", ["positional", "reentrant"])
def test_other_segments_inputs_are_rounded_as_before(decide, how):
    _, _, inputs = stored(decide, how)
    assert [codec for codec, _ in inputs] == [EIGHT]


def test_masks_that_such_a_segment_is_given_take_a_bit_still():
    class Masked(Checkpointed):
        def forward(self, x):
            h = torch.tanh(self.before(x))
            mask = torch.arange(32) < torch.arange(64)[:, None]
            return checkpoint(lambda h, mask: self.inner(h * mask), h, mask, use_reentrant=False)

    model = integrations.compress_model(Masked(DECISIONS["routed"]).train(), "L1", min_bytes=0)
    gradients(model, X)
    assert [row.codec for row in rows(model, "checkpoint")] == ["kept", str(actcore.BitMask())]


def test_only_the_checkpoints_around_the_decision_keep_theirs():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))

        def router(self, x):
            x = torch.tanh(self.layers[1](x))
            return torch.where(x > 0, x, 2 * x.sin())

        def outer(self, x):
            x = checkpoint(lambda x: torch.tanh(self.layers[2](x)), torch.tanh(self.layers[0](x)), use_reentrant=False)
            return self.layers[3](checkpoint(self.router, x, use_reentrant=False))

        def forward(self, x):
            x = torch.tanh(self.layers[4](x))
            x = checkpoint(self.outer, x, use_reentrant=False)
            return checkpoint(lambda x: torch.tanh(self.layers[2](x)), x, use_reentrant=False)

    model = integrations.compress_model(Nested().train(), "L1", min_bytes=0)
    gradients(model, X)
    # Of the inner ones nothing stays: the outer segment is recomputed as a whole.
    assert [row.codec for row in rows(model, "checkpoint")] == ["kept", EIGHT]


def test_of_reentrant_ones_in_a_row_each_by_itself():
    class Row(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.before = nn.Linear(32, 32)
            self.inner = nn.ModuleList(Deciding(decide) for decide in (positions, unseen, positions, DECISIONS["hard"]))

        def forward(self, x):
            x = torch.tanh(self.before(x))
            for inner in self.inner:
                x = checkpoint(inner, x, use_reentrant=True)
            return x

    model = integrations.compress_model(Row().train(), "L1", min_bytes=0)
    gradients(model, X)
    assert [row.codec for row in rows(model, "checkpoint")] == [EIGHT, "kept", EIGHT, "kept"]


@pytest.mark.usefixtures("no_garbage_collection")
def test_an_input_waits_no_longer_than_its_segment():
    """It is there in full until the segment is over, and then in its stored form alone."""
    model = integrations.compress_model(Checkpointed(positions).train(), "L1", min_bytes=0)
    inputs = []
    handle = model.inner.register_forward_pre_hook(
        lambda module, args: inputs.append(StorageWeakRef(args[0].untyped_storage()))
    )
    output = model(X)
    handle.remove()
    assert inputs[0].expired()
    output.sum().backward()


def test_an_input_that_the_segment_overwrites_stays_as_it_was_stored():
    """There is nothing left to keep exactly."""

    class Overwriting(Checkpointed):
        def segment(self, h):
            out = self.inner(h)
            h.detach().zero_()
            return out

    def decide(net, y):
        return torch.where(y.abs() < 1, y, 0.0)

    model = integrations.compress_model(Overwriting(decide).train(), "L1.1", min_bytes=0)
    found = flat(gradients(model, X))
    assert [row.codec for row in rows(model, "checkpoint")] == [EIGHT]
    plain = flat(gradients(Checkpointed(decide).train(), X))
    assert (found - plain).norm() < 0.2 * plain.norm()


def test_a_plan_recomputes_no_input_of_a_deciding_segment():
    model = integrations.compress_model(
        Checkpointed(DECISIONS["routed"]).train(), "L1", min_bytes=0, checkpoint="optimal"
    )
    gradients(model, X)
    assert [row.codec for row in rows(model, "checkpoint")][:1] == ["kept"]
