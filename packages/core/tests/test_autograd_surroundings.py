"""``save_for_backward`` in the company of others: checkpoints, hooks, torch.func, torch.compile."""

import torch
from torch.utils.checkpoint import checkpoint

import actcore

from .samples import normal
from .saving import FOUR_BITS, Cube, Linear, W, leaves


def test_under_checkpoint():
    x, w = leaves()
    checkpoint(Linear.apply, x, w, actcore.GroupAffine(8), 3, use_reentrant=False).sum().backward()
    expected = leaves()
    Linear.apply(*expected, actcore.GroupAffine(8), 3).sum().backward()
    assert torch.equal(w.grad, expected[1].grad)


def test_under_hooks_the_stored_form_is_not_stored_again():
    w = W.clone().requires_grad_()
    big = normal(300_000).view(-1, 48)
    with torch.autograd.graph.saved_tensors_hooks(*actcore.hooks(actcore.GroupAffine(2))):
        y = Linear.apply(big, w, FOUR_BITS, 3)
    y.sum().backward()
    stored = actcore.compress(big, FOUR_BITS, seed=5, stream=actcore.stream_of("0", 3, 0)).decompress()
    assert torch.equal(w.grad, stored.t() @ torch.ones(len(big), 32))


def test_under_save_on_cpu():
    x, w = leaves()
    with torch.autograd.graph.save_on_cpu():
        y = Linear.apply(x, w)
    y.sum().backward()
    assert w.grad is not None


def test_under_torch_func():
    """The Function's own gradient, at a constant that is stored exactly."""
    x = torch.full((1024,), 2.0)
    assert torch.equal(torch.func.grad(lambda x: Cube.apply(x).sum())(x), torch.full((1024,), 12.0))
    pull = torch.func.vjp(Cube.apply, x)[1]
    assert torch.equal(pull(torch.ones(1024))[0], torch.full((1024,), 12.0))
    twice = torch.func.grad(lambda x: torch.func.grad(lambda x: Cube.apply(x).sum())(x).sum())(x)
    assert torch.equal(twice, torch.full((1024,), 12.0))


def test_compiled():
    torch.compiler.reset()
    x, w = leaves()
    y = torch.compile(lambda x, w: Linear.apply(x, w, FOUR_BITS, 3) * 2, backend="aot_eager", fullgraph=True)(x, w)
    y.sum().backward()
    expected = leaves()
    (Linear.apply(*expected, FOUR_BITS, 3) * 2).sum().backward()
    assert torch.equal(w.grad, expected[1].grad)
    torch.compiler.reset()


def test_compiled_noise_advances():
    torch.compiler.reset()
    function = torch.compile(lambda x, w: Linear.apply(x, w), backend="aot_eager", fullgraph=True)
    gradients = []
    for _ in range(2):
        x, w = leaves()
        function(x, w).sum().backward()
        gradients.append(w.grad)
    assert not torch.equal(*gradients)
    torch.compiler.reset()
