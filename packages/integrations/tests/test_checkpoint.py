"""torch.utils.checkpoint inside a compressed model, and a compressed model inside a checkpoint.

The innermost hooks win: what a checkpoint drops is not compressed, and what a compressed model stores is not dropped.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations

from .nets import EIGHT_BITS, assert_nothing_active, assert_same, gradients, mlp, normal, relative_error, rows

X = normal(48, 64)
both_kinds = pytest.mark.parametrize("reentrant", [False, True], ids=["hooks", "reentrant"])


class Partly(nn.Module):
    """The middle is recomputed in backward."""

    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.middle = nn.Linear(64, 64), nn.Linear(64, 64), mlp(64, 2)
        self.middle.append(nn.Dropout(0.5))
        self.reentrant = reentrant

    def forward(self, x):
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


@both_kinds
def test_a_checkpoint_inside(reentrant):
    """Its input is what stays in memory; where that is kept, what is recomputed is exact. The layers around it are
    compressed."""
    model = Partly(reentrant)
    plain = gradients(copy.deepcopy(model), X)
    compressed = gradients(integrations.compress_model(model, "L1.1", checkpoint_bits=None), X)
    inside = {name for name in plain if not name.startswith("last.weight")}
    assert_same({name: plain[name] for name in inside}, {name: compressed[name] for name in inside})
    assert relative_error(plain, compressed) < EIGHT_BITS
    [boundary, last] = rows(model)
    assert (boundary.operator, boundary.role, boundary.codec) == ("checkpoint", "input", "kept")
    assert boundary.why == "checkpoint_bits is None: kept exactly"
    assert (last.module, last.operator) == ("last", "linear")
    assert_nothing_active()


@both_kinds
def test_a_checkpoint_around(reentrant):
    """The forward runs again in backward; its dropout and its gradients are those of the first."""
    model = integrations.compress_model(nn.Sequential(mlp(), nn.Dropout(0.5)), "L1.1")
    plain = copy.deepcopy(model)
    integrations.restore_model(plain)
    found = []
    for net in (plain, model):
        x = X.clone().requires_grad_()
        torch.manual_seed(3)
        checkpoint(lambda x, net=net: net(x).sin(), x, use_reentrant=reentrant).sum().backward()
        found.append({name: p.grad for name, p in net.named_parameters()} | {"x": x.grad})
    assert torch.equal(found[0]["x"], found[1]["x"])
    assert relative_error(*found) < EIGHT_BITS
    assert_nothing_active()


def test_a_checkpoint_inside_a_checkpoint_around():
    model = integrations.compress_model(Partly(False), "L1.1", checkpoint_bits=None)  # no ReLU of its changes sides
    plain = copy.deepcopy(model)
    integrations.restore_model(plain)
    found = []
    for net in (plain, model):
        x = X.clone().requires_grad_()
        torch.manual_seed(3)
        checkpoint(net, x, use_reentrant=False).sum().backward()
        found.append({name: p.grad for name, p in net.named_parameters()})
    assert relative_error(*found) < EIGHT_BITS


def test_a_checkpoint_inside_a_block_with_its_backward():
    """The block is still open while the checkpoint recomputes, and stops early: paths and hooks survive it."""
    model = Partly(False)
    plain = gradients(copy.deepcopy(model), X)
    with integrations.compress(model, "L1.1", checkpoint_bits=None) as handle:
        for _ in range(2):
            found = gradients(model, X)
            assert relative_error(plain, found) < EIGHT_BITS
        F.linear(model.first(X).tanh(), model.last.weight).sum().backward()
    assert handle.report().rows[-1].module == ""
    assert_nothing_active()


def test_users_own_hooks_inside_win():
    """Saved-tensor hooks that the model opens itself get the tensors; compression gets the rest."""
    seen = []

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def forward(self, x):
            h = self.net[:2](x)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t):
                h = self.net[2:4](h)
            return self.net[4:](h)

    model = integrations.compress_model(Own())
    model(X).sum().backward()
    assert len(seen) == 3  # the second linear layer's input and weight, and its ReLU's result
    assert [row.module for row in rows(model)] == ["net.1", "net.4", "net.5"]


def test_users_own_hooks_outside_see_nothing_of_it():
    seen = []
    model = integrations.compress_model(mlp())
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t) or t, lambda t: t):
        loss = model(X).sum()
        assert seen == []
        loss.sin().backward()
    assert len(seen) == 1


def test_save_on_cpu_inside_and_outside():
    plain = gradients(mlp(), X)
    model = integrations.compress_model(mlp(), "L1.1")
    with torch.autograd.graph.save_on_cpu():
        assert relative_error(plain, gradients(model, X)) < EIGHT_BITS
