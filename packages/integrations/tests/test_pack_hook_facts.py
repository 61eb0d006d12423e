"""How saved tensors reach a pack hook: one test for each fact that was observed, of what follows from it.

What operators save is in ``test_saved_tensor_facts.py``. Where a fact needs more than one case, the file named in its
test has the others.
"""

import copy
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import actcore
import integrations

from .nets import (
    EIGHT_BITS,
    Net,
    assert_same,
    gradients,
    mlp,
    normal,
    plain_and_compressed,
    relative_error,
    rows,
)

X = normal(64, 64)
N = X.numel()
WEIGHTS = {f"w{i}": normal(64, 64, seed=i) / 8 for i in range(3)}


def value_bytes(numel, bits):
    """Codes, and two float32 bounds a group of 256."""
    return numel * bits // 8 + 8 * -(-numel // 256)


def compressed(forward, **parameters):
    """A model after one step."""
    model = integrations.compress_model(Net(forward, **(parameters or WEIGHTS)))
    model(X).sum().backward()
    return model


def test_a_pack_hook_is_told_nothing_about_who_saves():
    """The call around it tells, composites as one; a saver that stays unknown keeps its tensor, and the report says so.
    See test_report.py."""

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad * ctx.saved_tensors[0]

    def forward(self, x):
        h = Own.apply(F.linear(F.relu(F.linear(x, self.w0)), self.w1))
        return F.cross_entropy(F.scaled_dot_product_attention(h, h, h), torch.arange(64))

    model = compressed(forward)
    saved = {row.operator: row for row in rows(model)}
    assert list(saved) == ["relu", "linear", "", "scaled_dot_product_attention", "cross_entropy"]
    assert (saved[""].codec, saved[""].why) == ("kept", "the operator that saves it is unknown")


def test_autograd_checks_no_version_of_a_hooked_tensor():
    """What is kept as it is raises torch's message if it was changed; a packed copy is a snapshot. See
    test_backward.py."""
    hidden = []

    def forward(self, x):
        hidden.append(F.linear(x, self.w0))
        return hidden[-1].cosh() if self.kept else F.leaky_relu(hidden[-1])

    model = integrations.compress_model(Net(forward, **WEIGHTS))
    for model.kept in (True, False):
        loss = model(X).sum()
        with torch.no_grad():
            hidden[-1].zero_()
        if model.kept:
            with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()


def test_a_deep_net_of_equal_layers_whose_addresses_are_reused():
    """Compression frees activations while the forward runs, and the allocator gives their addresses to the next: a
    tensor found by its address would be taken for another one. At 8 bits every gradient is close to the exact one."""
    reused = 0
    for batch in (16, 48, 256, 1024, 4096, 16384):  # which sizes meet a block that was freed is the allocator's affair
        addresses = []
        x, model = normal(batch, 64, seed=3), mlp(64, depth=32)
        twin = copy.deepcopy(model)
        for layer in model[::2]:
            layer.register_forward_pre_hook(lambda module, args, seen=addresses: seen.append(args[0].data_ptr()))
        integrations.compress_model(model, "L1.1")
        assert relative_error(gradients(twin, x), gradients(model, x)) < EIGHT_BITS
        reused += len(addresses) - len(set(addresses))
        for row in rows(model, "linear"):
            assert row.stored_bytes == value_bytes(x.numel(), 8), row
    assert reused, "no address was reused: the test shows nothing"


def test_sparse_and_jagged_tensors_reach_the_hook_without_a_storage():
    """Kept exactly and reported, never an error. See test_compound.py."""
    eye = torch.eye(64)

    def forward(self, x):
        total = 0
        for adjacency in ((eye * 2).to_sparse_csr(), (eye * 3).to_sparse_coo()):
            total = total + torch.sparse.mm(adjacency, F.linear(x, self.w0)).sum()
        parts = torch.nested.as_nested_tensor([x[:5], x[:50] * 2], layout=torch.jagged)
        return total + F.relu(F.linear(parts, self.w1)).values().sum()

    plain, found, model = plain_and_compressed(Net(forward, **WEIGHTS), X, loss=torch.sum)
    assert_same(plain, found)
    strange = [row for row in rows(model) if "has no storage of its own" in row.why]
    assert {row.operator for row in strange} >= {"sparse_mm", "linear"}
    assert {row.codec for row in strange} == {"kept"}


def test_double_backward_has_every_term():
    """A term that is missing is no small error: 288 for 480. Where it cannot have one, it raises: core's
    test_autograd_double.py."""

    def forward(self, x):
        return (self.w0 * x).tanh().square() * x

    found = {}
    for level in ("L0", "L1.1"):
        model = integrations.compress_model(Net(forward, w0=WEIGHTS["w0"]), level)
        [slope] = torch.autograd.grad(model(X).sum(), model.parameters(), create_graph=True)
        [found[level]] = torch.autograd.grad(slope.sum(), model.parameters())
    assert 0 < relative_error({"": found["L0"]}, {"": found["L1.1"]}) < EIGHT_BITS


SLOPES = {
    "grad": torch.func.grad,
    "vjp": lambda function: lambda x: torch.func.vjp(function, x)[1](torch.ones(()))[0],
    "jacrev": torch.func.jacrev,
}


@pytest.mark.parametrize("name", SLOPES)
def test_torch_func_refuses_to_run_under_hooks(name):
    """The error names the ways out, and the fused operators do work in transforms. See test_transforms.py."""
    model = integrations.compress_model(Net(lambda self, x: SLOPES[name](torch.sum)(x) * self.w0, **WEIGHTS))
    with pytest.raises(RuntimeError, match="saved tensor hooks") as raised:
        model(X)
    assert "call torch.func outside of the compressed forward" in raised.value.__notes__[0]
    assert torch.equal(SLOPES[name](lambda x: actcore.relu(x).sum())(X), (X > 0).float())


def test_a_compiled_region_saves_tensors_without_a_gradient():
    """A rule that skips what requires none would store nothing there in fewer bytes. See core's test_graph_hooks.py."""
    torch.compiler.reset()
    region = torch.compile(lambda x, w: F.linear((x @ w).tanh(), w).tanh().sum(), backend="aot_eager", fullgraph=True)
    x, w = X.clone().requires_grad_(), WEIGHTS["w0"].clone().requires_grad_()
    noted = []
    with saved_tensors_hooks(lambda tensor: noted.append(tensor.requires_grad) or tensor, lambda tensor: tensor):
        region(x, w)
    assert noted == [False] * 4  # the inputs, too
    with saved_tensors_hooks(*actcore.graph_hooks(actcore.GroupAffine(8))):
        loss = region(x, w)
    own = [part for part in loss.grad_fn.saved_tensors if part.data_ptr() not in (x.data_ptr(), w.data_ptr())]
    assert sum(part.nbytes for part in own) == 2 * actcore.GroupAffine(8).stored_bytes(N, torch.float32)
    torch.compiler.reset()


@pytest.mark.usefixtures("no_garbage_collection")
def test_unpacking_happens_twice_or_never(payloads):
    """A handle lives as long as autograd holds it, whatever becomes of it. See test_lifetime.py."""
    model = integrations.compress_model(mlp())
    loss = model(X).square().sum()
    loss.backward(retain_graph=True)
    first = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    loss.backward()
    assert_same(first, {name: p.grad for name, p in model.named_parameters()})
    unused = model(X)
    assert any(part() is not None for part in payloads)
    del loss, unused
    assert all(part() is None for part in payloads)


def test_hooks_belong_to_a_thread_and_the_innermost_wins():
    """Another thread's tensors are its own, hooks of the user inside get theirs, and a checkpoint keeps its segment
    out, either way round. See test_checkpoint.py."""
    seen, elsewhere = [], []

    def beside():
        y = X.clone().requires_grad_().exp()
        elsewhere.append(y.grad_fn._saved_result.data_ptr() == y.data_ptr())

    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp(depth=4)

        def forward(self, x):
            thread = threading.Thread(target=beside)
            thread.start()
            thread.join()
            h = self.net[:2](x)
            with saved_tensors_hooks(lambda tensor: seen.append(1) or tensor, lambda tensor: tensor):
                h = self.net[2:4](h)
            return self.net[6:](checkpoint(self.net[4:6], h, use_reentrant=False))

    plain, found, model = plain_and_compressed(Nested(), X, level="L1.1", checkpoint_bits=None)
    assert relative_error(plain, found) < EIGHT_BITS
    assert elsewhere == [True, True]
    assert len(seen) == 2 * 3  # the twin's, too: the second layer's input and weight, and its ReLU's result
    assert {row.module for row in rows(model)} >= {"net.1", "net.6", "net.7"}
    assert "net.2" not in {row.module for row in rows(model)}
