"""FewBit's functions that count the bytes of a graph, and ``catch_gradients``."""

import weakref

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import actcore
import integrations
from integrations.fewbit.functional import GradientStorage, catch_gradients
from integrations.fewbit.util import estimate_memory_usage, memory_usage_hooks, teniter, traverse


def nets():
    return (
        nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)),
        nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)),
    )


def test_leaves_and_saved_tensors_of_a_net():
    x = torch.randn(3, 8, requires_grad=True)
    assert estimate_memory_usage(nets()[0](x)) == 4 * (3 * 8 + 4 * 8 + 4 + 1 * 4 + 1)
    # Both save the two inputs of linear layers and the two weights. FewBit counts the ReLU's result twice, which the
    # ReLU and the layer behind it save, and not the first layer's, which nobody does.
    for net in nets():
        assert estimate_memory_usage(net(x), saved_only=True) == 4 * (3 * 8 + 3 * 4 + 4 * 8 + 1 * 4)
        assert len(list(teniter(net(x), False, True))) == 4
        assert len(list(teniter(net(x), True, True))) == 6  # and two biases; x and the weights are both
        assert len(list(teniter(net(x)))) == 5
        assert list(teniter(net(x), False, False)) == []


def test_a_view_keeps_all_of_its_storage():
    base = torch.randn(100)
    w = torch.randn(10, requires_grad=True)
    assert estimate_memory_usage(w * base[:10], True) == 400
    assert estimate_memory_usage(torch.stack([w * base[:10], w * base[10:20]]), True) == 400


def test_traverse_names_nodes_and_what_they_hold():
    x = torch.randn(3, requires_grad=True)
    found = []
    traverse(x.exp().sin(), lambda node, tensor, saved: found.append((node.name(), tensor.numel(), saved)))
    assert found == [
        ("SinBackward0", 3, True),
        ("ExpBackward0", 3, True),
        ("torch::autograd::AccumulateGrad", 3, False),
    ]
    for leaf, count in ((x, 1), (torch.randn(3), 0)):
        found.clear()
        traverse(leaf, lambda *seen: found.append(seen))
        assert len(found) == count


def test_a_custom_functions_tensors():
    class Mine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.new_ones(5))
            ctx.aside = [x.new_ones(7)]
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    output = Mine.apply(torch.randn(2, requires_grad=True))
    assert estimate_memory_usage(output, True) == 4 * 12


def test_a_custom_functions_attributes_of_any_kind():
    class Hoarder(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.variable = torch.zeros(100)  # as a leaf's node calls its leaf
            ctx.cycle = {"others": {torch.zeros(10)}}
            ctx.cycle["self"] = [ctx.cycle]
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    y = Hoarder.apply(torch.randn(5, requires_grad=True))
    assert estimate_memory_usage(y) == 4 * 5
    assert estimate_memory_usage(y, saved_only=True) == 4 * (100 + 10)


def test_a_graph_of_ten_thousand_nodes():
    x = torch.ones(1, requires_grad=True)
    y = x
    for _ in range(10_000):
        y = y.sin()
    assert estimate_memory_usage(y, True) == 4 * 10_000


def test_after_backward_nothing_is_left():
    class Mine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    y = Mine.apply(torch.randn(3, requires_grad=True)).exp().sin()
    y.sum().backward()
    assert estimate_memory_usage(y, True) == 0


def test_what_hooks_store_is_counted_as_it_is_stored():
    unpacked = []

    def unpack(compressed):
        unpacked.append(compressed)
        return compressed.decompress()

    w = torch.randn(4096, requires_grad=True)
    codec = actcore.GroupAffine(bits=4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: actcore.compress(t, codec), unpack):
        y = (w + 1).sin()
    assert estimate_memory_usage(y, True) == actcore.compress(w.detach(), codec).nbytes < 4096
    assert unpacked == []
    x = torch.randn(64, 64, requires_grad=True)
    assert estimate_memory_usage(checkpoint(lambda x: x.sin().exp(), x, use_reentrant=False), True) == 0


@pytest.mark.parametrize("level", ["L1", "L1.1", "L1.2"])
def test_a_compressed_models_bytes_are_those_of_its_report(level):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256), nn.Dropout(), nn.Linear(256, 4))
    x = torch.randn(64, 256)
    integrations.compress_model(model, level)
    exactly = {tensor.untyped_storage()._cdata for tensor in (x, *model.parameters())}
    saved = [tensor for tensor in teniter(model(x), False, True) if tensor.untyped_storage()._cdata not in exactly]
    stored = integrations.compression(model).report().stored_bytes
    assert sum(tensor.untyped_storage().nbytes() for tensor in saved) == stored


def test_sparse_tensors():
    matrix = torch.eye(8).to_sparse()
    y = torch.sparse.mm(matrix, torch.randn(8, 2, requires_grad=True))
    assert estimate_memory_usage(y, True) >= 8 * 4 + 2 * 8 * 8  # values and indices


def test_hooks_count_each_storage_once():
    x = torch.randn(10, requires_grad=True)
    with memory_usage_hooks() as usage:
        assert usage.value is None
        y = x.exp()
        z = y.sin() + y.cos() + y.view(2, 5).tanh().sum()
    # y for three operators, and tanh's result.
    assert (usage.forward, usage.backward, usage.value) == (80, None, 80)
    z.sum().backward()
    assert (usage.forward, usage.backward, usage.value) == (80, 80, 80)


def test_hooks_keep_no_result_alive():
    """A result that its own node saves: with its history it would hold the node that holds it."""
    x = torch.randn(16, requires_grad=True)
    with memory_usage_hooks():
        y = x.exp()
    alive = weakref.ref(y)
    del y
    assert alive() is None


def test_catch_gradients_copies_the_value_and_its_gradient():
    class Norms(GradientStorage):
        def postprocess(self):
            self.norm = self.grad_output.norm().item()

    storage = Norms()
    x = torch.randn(5, requires_grad=True)
    y = catch_gradients(x, storage)
    assert storage.grad_output is None
    (3 * y + x).sum().backward()
    assert torch.equal(storage.input, x)
    assert not storage.input.requires_grad
    assert storage.input.data_ptr() != x.data_ptr()
    assert storage.grad_output.tolist() == [3] * 5  # that through y alone
    assert storage.norm == pytest.approx(3 * 5**0.5)
    assert x.grad.tolist() == [4] * 5


def test_catch_gradients_leaves_alone_what_has_no_gradient():
    storage, x = GradientStorage(), torch.randn(5)
    assert catch_gradients(x, storage) is x
    assert torch.equal(storage.input, x)
    with torch.no_grad():
        assert catch_gradients(x.requires_grad_(), (other := GradientStorage())) is x
    assert other.input is None
    with pytest.raises(TypeError, match="storage must be a GradientStorage, got dict"):
        catch_gradients(x, {})


def test_catch_gradients_of_a_second_derivative():
    storage, x = GradientStorage(), torch.tensor(2.0, requires_grad=True)
    (first,) = torch.autograd.grad(catch_gradients(x, storage) ** 3, x, create_graph=True)
    assert storage.grad_output.item() == 12
    assert not storage.grad_output.requires_grad
    assert torch.autograd.grad(first, x)[0].item() == 12
