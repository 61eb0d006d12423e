"""What operators save: one test for each fact that was observed, of what follows from it.

How it reaches a hook is in ``test_pack_hook_facts.py``. Where a fact needs more than one case, the file named in its
test has the others.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import Net, assert_same, normal, plain_and_compressed, rows

X = normal(64, 64)
N = X.numel()
WEIGHTS = {f"w{i}": normal(64, 64, seed=i) / 8 for i in range(3)}

IMAGES = normal(2, 8, 16, 16)
CONVOLUTIONS = {f"k{i}": normal(8, 8, 3, 3, seed=i) / 8 for i in range(2)}


def value_bytes(numel, bits):
    """Codes, and two float32 bounds a group: of 256, or of 128 for a linear input in up to 4 bits."""
    return numel * bits // 8 + 8 * -(-numel // (128 if bits <= 4 else 256))


def compressed(forward, **parameters):
    """A model after one step."""
    model = integrations.compress_model(Net(forward, **(parameters or WEIGHTS)))
    model(X).sum().backward()
    return model


def test_linear_saves_its_transposed_weight():
    """No Parameter, but a parameter's storage. See test_owners.py."""
    model = compressed(lambda self, x: F.linear(F.linear(x, self.w0), self.w1))
    assert [row.owner for row in rows(model, owned=True)] == ["input of the model", "parameter"]


def test_autocast_saves_a_copy_of_the_weight():
    """It is a weight, which nobody stores a second time. See test_autocast.py."""
    model = integrations.compress_model(Net(lambda self, x: F.linear(F.linear(x, self.w0), self.w1), **WEIGHTS))
    with torch.autocast("cpu", torch.bfloat16):
        model(X).float().sum().backward()
    assert [row.owner for row in rows(model, owned=True)] == ["parameter, cast by autocast"]
    assert all(row.stored_bytes == 0 for row in rows(model, owned=True))


def test_relus_result_is_the_next_layers_input(payloads):
    """Stored once: a sign for ReLU, few bits for the convolution's weight, and the tensor itself is gone."""

    def forward(self, x):
        return F.conv2d(F.relu(F.conv2d(x, self.k0, padding=1)), self.k1, padding=1)

    model = integrations.compress_model(Net(forward, **CONVOLUTIONS))
    loss = model(IMAGES).sum()
    numel = IMAGES.numel()
    assert sum(row.stored_bytes for row in rows(model)) == numel // 8 + value_bytes(numel, 4)
    assert sum(part().nbytes for part in payloads) == numel // 8 + value_bytes(numel, 4)
    del loss


def test_max_pooling_saves_wide_indices_and_its_input():
    """The place in the window takes 2 bits for one of 2 x 2, and of the input only the shape is needed. See
    test_indices.py."""

    def forward(self, x):
        return F.max_pool2d(F.conv2d(x, self.k0, padding=1), 2)

    plain, found, model = plain_and_compressed(Net(forward, **CONVOLUTIONS), IMAGES)
    assert_same(plain, found)
    windows = IMAGES.numel() // 4
    stored = {row.role: (row.original_bytes, row.stored_bytes) for row in rows(model, "max_pool2d")}
    assert stored["input"] == (4 * IMAGES.numel(), 0)
    assert (8 * windows, windows // 4) in stored.values()


def test_dropout_saves_a_mask_of_floats_on_the_cpu():
    """Of two values: a bit, exactly. See test_gradients_exact.py."""
    plain, found, model = plain_and_compressed(Net(lambda self, x: F.dropout(F.linear(x, self.w0), 0.3), **WEIGHTS), X)
    assert_same(plain, found)
    [mask] = rows(model, "dropout")
    assert (mask.original_bytes, mask.stored_bytes) == (4 * N, N // 8)


@pytest.mark.parametrize("norm", [nn.LayerNorm(64), nn.BatchNorm1d(64)], ids=["layer", "batch"])
def test_norms_save_statistics_without_a_gradient(norm):
    """Kept exactly, as is attention's logarithm of a sum, which is not kept at all. See test_kinds.py."""
    torch.manual_seed(0)
    _, _, model = plain_and_compressed(nn.Sequential(nn.Linear(64, 64), norm), X, min_bytes=0)
    statistics = [row for row in rows(model) if row.role in ("internal", "result")]
    assert len(statistics) == 2
    assert {row.codec for row in statistics} == {"kept"}


def test_log_softmax_and_nll_loss_save_one_tensor():
    """Kept, since backward takes exp() of it, and counted once."""
    labels = torch.arange(64)

    def forward(self, x):
        return F.nll_loss(F.log_softmax(F.linear(x, self.w0), 1), labels)

    plain, found, model = plain_and_compressed(Net(forward, **WEIGHTS), X, loss=torch.sum)
    assert_same(plain, found)
    saved = [row for row in rows(model) if row.shape == (64, 64)]
    assert [row.codec for row in saved] == ["kept", "kept"]
    assert sum(row.stored_bytes for row in saved) == 4 * N


def test_query_key_and_value_are_views_of_one_projection():
    """Together they take what the projection would, not three times that. See test_storage.py."""

    def forward(self, x):
        q, k, v = (part.view(2, 32, 64) for part in F.linear(x, self.fused).chunk(3, 1))
        return q.bmm(k.mT).bmm(v)

    model = compressed(forward, fused=normal(192, 64, seed=4) / 8)
    taken = [row.stored_bytes for row in rows(model, "bmm") if 64 in row.shape]
    assert len(taken) == 3
    assert sum(taken) == value_bytes(3 * N, 4)


def test_attention_saves_what_its_rounded_inputs_no_longer_fit():
    """A logarithm of a sum of other numbers would not normalise the softmax; recomputed, every row of it sums to 1,
    so that the value's gradient, summed over tokens, is the output's. See test_attention.py."""
    upstream = normal(1, 512, 64, seed=9)

    def forward(self, x):
        q, k = (F.linear(x, weight).view(1, 512, 64) * 8 for weight in (self.w0, self.w1))
        return F.scaled_dot_product_attention(q, k, self.value)

    value = normal(1, 512, 64, seed=5)
    model = integrations.compress_model(Net(forward, **WEIGHTS, value=value), "L1.2", attention_bits=2)
    model(normal(512, 64)).backward(upstream)
    assert ["bits=2" in row.codec for row in rows(model, "scaled_dot_product_attention")] == [True, True]
    # Sums of 512 products in float32, each off by at most 512 eps / 2 of the sum of magnitudes.
    bound = 512 * 2**-23 * upstream.abs().sum(1)
    assert ((model.value.grad.sum(1) - upstream.sum(1)).abs() <= bound).all()


def test_a_product_saves_both_factors_and_a_quotient_its_denominator():
    """Rounded in the bits of products, and kept: beside 0, the error of a denominator has no bound. See
    test_pointwise.py and test_gradients_exact.py."""

    def forward(self, x):
        h = F.linear(x, self.w0)
        return (h * F.linear(x, self.w1)).sum() + (self.w2 / F.linear(x, self.w1 * 2)).sum()

    model = compressed(forward)
    assert ["bits=8" in row.codec for row in rows(model, "mul") if row.shape == (64, 64)][:2] == [True, True]
    assert {row.codec for row in rows(model) if row.operator in ("div", "truediv")} == {"kept"}


def test_the_caller_keeps_the_models_inputs_alive():
    """Storing them would add memory. See test_owners.py."""
    model = compressed(lambda self, x: F.linear(x, self.w0))
    [row] = rows(model, owned=True)
    assert (row.owner, row.codec, row.stored_bytes) == ("input of the model", "kept", 0)


def test_a_graph_convolution_makes_edges_of_its_own_in_each_layer():
    """Counted once per storage, and exact in the bits of the number of nodes. See test_pyg.py."""
    geometric = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    edges = torch.randint(200, (2, 3000), generator=torch.Generator().manual_seed(0))

    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(geometric.GCNConv(64, 64) for _ in range(2))

        def forward(self, x, edges):
            for layer in self.layers:
                x = layer(x, edges)
            return x

    model = integrations.compress_model(Graph())
    model(normal(200, 64), edges).sum().backward()
    indices = [row for row in rows(model) if row.dtype is torch.int64]
    made = [row.original_bytes for row in indices if row.original_bytes]
    assert len(made) == 2 < len(indices)
    assert {row.codec for row in indices} == {"Narrow(low=0, high=199)"}
    assert sum(row.stored_bytes for row in indices) == sum(made) // 8
