"""Activations without a storage of their own: sparse, nested, wrapper subclasses. Kept exactly and reported.

What they are made of is asked for its owner and its bytes, and counted once, whatever number of layers saves it.
"""

import warnings
from contextlib import nullcontext

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
from torch.testing._internal.two_tensor import TwoTensor

import integrations
from integrations import checkpoint

from .libraries import TORCH
from .nets import EIGHT_BITS, Net, assert_same, mlp, normal, plain_and_compressed, relative_error, rows

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR) tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

X = normal(64, 32)
W = normal(32, 32, seed=1) / 6
WEIGHTS = {"w": W, "v": normal(32, 32, seed=2) / 6}
ADJACENCY = normal(64, 64, seed=3).relu().where(normal(64, 64, seed=4) > 0.5, 0.0)

SPARSE = {
    "coo": torch.Tensor.to_sparse,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
}


def propagate(self, adjacency, x):
    h = torch.sparse.mm(adjacency, F.linear(x, self.w))
    return adjacency @ F.linear(h.relu(), self.v)


@pytest.mark.parametrize("layout", SPARSE)
def test_the_callers_sparse_adjacency_counts_nothing(layout):
    adjacency = SPARSE[layout](ADJACENCY)
    plain, compressed, model = plain_and_compressed(Net(propagate, **WEIGHTS), adjacency, X, level="L1.1")
    assert relative_error(plain, compressed) < EIGHT_BITS
    assert torch.equal(plain["w"], compressed["w"])
    saved = [row for row in rows(model, owned=True) if row.shape == (64, 64)]
    assert [row.owner for row in saved] == ["input of the model"] * len(saved)
    assert len(saved) >= 2
    assert (64, 64) not in [row.shape for row in rows(model)]


@pytest.mark.parametrize("layout", SPARSE)
def test_a_sparse_tensor_that_the_forward_makes_is_counted_once(layout):
    def forward(self, x):
        return propagate(self, SPARSE[layout](ADJACENCY * 2), x)

    plain, compressed, model = plain_and_compressed(Net(forward, **WEIGHTS), X, level="L1.1")
    assert torch.equal(plain["w"], compressed["w"])
    saved = [row for row in rows(model) if row.shape == (64, 64)]
    assert len(saved) >= 2
    assert {row.codec for row in saved} == {"kept"}
    assert all("has no storage of its own: kept exactly" in row.why for row in saved)
    parts = sum(row.original_bytes for row in saved)
    nonzero = int((ADJACENCY != 0).sum())
    assert nonzero * (4 + 8) <= parts == sum(row.stored_bytes for row in saved)
    assert parts <= nonzero * (4 + 16) + 65 * 8  # values, one or two indices each, row pointers


def test_trained_sparse_values():
    """Gradients reach the values, so that both factors of the product are saved."""
    index = ADJACENCY.to_sparse().indices()

    def forward(self, x):
        adjacency = torch.sparse_coo_tensor(index, self.values, (64, 64))
        return torch.sparse.mm(adjacency, F.linear(x, self.w))

    net = Net(forward, values=normal(index.shape[1]), w=W)
    plain, compressed, _ = plain_and_compressed(net, X, level="L1.1", loss=torch.sum)
    assert_same({"w": plain["w"]}, {"w": compressed["w"]})
    assert relative_error(plain, compressed) < EIGHT_BITS


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=["jagged", "strided"])
@pytest.mark.parametrize("made_by", ["caller", "forward"])
def test_nested_tensors(layout, made_by):
    parts = [normal(5, 32, seed=5), normal(90, 32, seed=6)]

    def forward(self, *nested):
        x = nested[0] if nested else torch.nested.as_nested_tensor([part * 2 for part in parts], layout=layout)
        h = F.linear(F.relu(F.linear(x, self.w)), self.v)
        return sum(part.cosh().sum() for part in h.unbind())

    inputs = [torch.nested.nested_tensor(parts, layout=layout)] if made_by == "caller" else []
    plain, compressed, model = plain_and_compressed(Net(forward, **WEIGHTS), *inputs, loss=torch.sum)
    assert_same(plain, compressed)
    [relu] = rows(model, "relu")
    assert relu.codec == "kept"
    assert 95 * 32 * 4 <= relu.stored_bytes <= 95 * 32 * 4 + 64  # the elements, and jagged's offsets
    first = rows(model, "linear", owned=True)[0]
    assert first.owner == ("input of the model" if made_by == "caller" else "parameter")


@pytest.mark.parametrize("made_by", ["caller", "forward"])
def test_wrapper_subclasses(made_by):
    """Both halves go through the net; each must get the gradients that it would get alone."""

    def forward(self, x):
        x = x if isinstance(x, TwoTensor) else TwoTensor(x, x * 3)
        h = F.dropout(F.relu(F.linear(x, self.w)), 0.0)
        return F.layer_norm(F.linear(h, self.v), (32,)).square()

    model = integrations.compress_model(Net(forward, **WEIGHTS))
    model(TwoTensor(X, X * 3) if made_by == "caller" else X).sum().backward()
    for half, factor in (("a", 1), ("b", 3)):
        alone = Net(forward, **WEIGHTS)
        alone.function = lambda self, x: F.layer_norm(F.linear(F.relu(F.linear(x, self.w)), self.v), (32,)).square()
        alone(X * factor).sum().backward()
        for name, parameter in alone.named_parameters():
            assert torch.equal(getattr(model.get_parameter(name).grad, half), parameter.grad)
    relu = rows(model, "relu")[0]
    assert (relu.codec, relu.stored_bytes) == ("kept", 2 * X.numel() * 4)
    if made_by == "caller":
        assert rows(model, "linear", owned=True)[0].owner == "input of the model"
    else:  # one half is the caller's tensor, the other the forward's
        assert rows(model, "linear")[0].original_bytes == X.numel() * 4


# ---- budgets ----


def jagged(x, lengths):
    return torch.nested.nested_tensor_from_jagged(x, lengths=lengths)


def strided(x, lengths):
    return torch.nested.as_nested_tensor(list(x.split(lengths.tolist())))


def layers(self, x):
    return F.linear(F.gelu(F.linear(x, self.w)), self.v)


LENGTHS = torch.tensor([20, 44])


@pytest.mark.parametrize("made_by", ["caller", "forward"])
@pytest.mark.parametrize("make", [jagged, strided])
def test_a_budget_for_nested_tensors_is_refused(make, made_by):
    """Plans did not count nested tensors, and ``memory="4MiB"`` kept 48 MiB."""

    def forward(self, x, lengths):
        h = layers(self, make(x, lengths) if made_by == "forward" else x)
        return sum(part.square().sum() for part in h.unbind())

    net = Net(forward, **WEIGHTS)
    inputs = (make(X, LENGTHS) if made_by == "caller" else X), LENGTHS
    name = {jagged: "torch.jagged", strided: "torch.strided"}[make]
    for plan in (integrations.plan, checkpoint.plan):
        with pytest.raises(ValueError, match=f"no plan can be made of Net .*{name}"):
            plan(net, inputs)
    model = integrations.compress_model(net, memory="4MiB", error=0)
    for _ in range(2):
        with pytest.raises(ValueError, match="whose memory a plan cannot count"):
            model(*inputs)
    with torch.no_grad():
        model(*inputs)
    integrations.restore_model(model)
    integrations.compress_model(model, level="L1", min_bytes=0)
    model(*inputs).sum().backward()
    assert any("has no storage of its own: kept exactly" in row.why for row in rows(model))


def test_a_later_batch_of_nested_tensors_is_warned_of_and_runs():
    """The batch differs from the planned one."""
    net = Net(lambda self, x: (layers(self, x).values() if x.is_nested else layers(self, x)).square().sum(), **WEIGHTS)
    model = integrations.compress_model(net, memory=1.0, error=0)
    model(X[None]).backward()
    with pytest.warns(UserWarning, match=r"no plan can be made of Net .* an input is a nested tensor"):
        model(jagged(X, LENGTHS)).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(jagged(X, LENGTHS.flip(0))).backward()  # of other lengths, and alike


def test_nested_tensors_that_share_the_memory_of_plain_ones_are_planned_for():
    def forward(self, x, lengths):
        return layers(self, jagged(x, lengths).values()).square().sum()

    plan = integrations.plan(Net(forward, **WEIGHTS), (X, LENGTHS), memory=1.0, error=0)
    assert plan.plain_peak >= 2 * X.nbytes  # the inputs of gelu and the second layer


@pytest.mark.parametrize("made_by", ["caller", "forward"])
def test_a_budget_counts_tensors_made_of_others(made_by):
    """Budgets counted these tensors as 0 bytes."""

    def forward(self, x):
        return layers(self, TwoTensor(x, x * 3) if made_by == "forward" else x).square().sum()

    x = TwoTensor(X, X * 3) if made_by == "caller" else X
    plain = checkpoint.plan(Net(lambda self, x: layers(self, x).square().sum(), **WEIGHTS), (X,))
    plan = checkpoint.plan(Net(forward, **WEIGHTS), (x,))
    assert plan.graph.gradients == 2 * plain.graph.gradients
    extra = 2 * X.nbytes  # in each layer, and in backward
    assert plan.plain_peak >= plain.plain_peak + extra
    assert plan.peak == plan.plain_peak  # nothing of them is recomputed
    model = integrations.compress_model(Net(forward, **WEIGHTS), memory=plan.plain_peak - X.nbytes, error=0)
    with pytest.raises(ValueError, match="memory with error=0 must be at least"):
        model(x)
    integrations.restore_model(model)
    integrations.compress_model(model, memory=1.0, error=0)
    model(x).backward()
    other = Net(forward, **WEIGHTS)
    other(x).backward()
    for name, parameter in other.named_parameters():
        for half in ("a", "b"):
            assert torch.equal(getattr(model.get_parameter(name).grad, half), getattr(parameter.grad, half))


def test_a_budget_counts_what_dtensors_make(mesh):
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = DTensor.from_local(F.linear(x, self.w), mesh, [Shard(0)])
        return F.linear(F.gelu(h.cosh()).to_local(), self.v).square().sum()

    def local(self, x):
        return F.linear(F.gelu(F.linear(x, self.w).cosh()), self.v).square().sum()

    found, expected = (checkpoint.plan(Net(one, **WEIGHTS), (X,)) for one in (forward, local))
    assert found.plain_peak == expected.plain_peak
    model = integrations.compress_model(Net(forward, **WEIGHTS), memory=1.0, error=0)
    model(X).backward()
    plain = Net(local, **WEIGHTS)
    plain(X).backward()
    assert all(torch.equal(model.get_parameter(name).grad, one.grad) for name, one in plain.named_parameters())


def test_weights_made_of_others_are_planned_for():
    """Weights are not activations."""
    net = Net(lambda self, x: F.linear(F.gelu(F.linear(x, self.w)), self.v.a + self.v.b).square().sum(), w=W)
    net.v = torch.nn.Parameter(TwoTensor(W, W * 2), requires_grad=False)
    plan = integrations.plan(net, (X,), memory=1.0, error=0)
    assert plan.plain_peak >= 2 * X.nbytes


@pytest.fixture
def mesh():
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_dtensor_activations(mesh):
    """They are stored as the same tensors of a plain model, with the same noise. Those of two ranks: see
    test_tensor_parallel.py."""
    from torch.distributed.tensor import Shard, distribute_module, distribute_tensor

    plain = integrations.compress_model(mlp(32, 2))
    plain(X).square().sum().backward()
    model = integrations.compress_model(distribute_module(mlp(32, 2), mesh))
    model(distribute_tensor(X, mesh, [Shard(0)])).square().sum().backward()
    for expected, found in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(expected.grad, found.grad.full_tensor())
    assert [row.owner for row in rows(model, "linear", owned=True)] == ["input of the model", "parameter"]
    stored, expected = ([(row.codec, row.stored_bytes) for row in rows(one)] for one in (model, plain))
    assert stored == expected


def test_a_dtensor_that_was_changed_in_place_is_kept(mesh):
    """Its part does not count versions: what was stored of it before would be taken for what it is now."""
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = DTensor.from_local(F.linear(x, self.w), mesh, [Shard(0)])
        h = h * h.sigmoid()
        return F.linear((h.relu_() * h.sigmoid()).to_local(), self.v)

    found, compressed, model = plain_and_compressed(Net(forward, **WEIGHTS), X, level="L1.1")
    assert relative_error(found, compressed) < 3 * EIGHT_BITS  # of the layers in turn
    assert {row.codec.partition("(")[0] for row in rows(model, "mul")} == {"GroupAffine", "kept"}


@pytest.mark.parametrize("min_bytes", [0, 1 << 20])
def test_a_dtensor_that_is_changed_after_it_was_saved(mesh, min_bytes):
    """Autograd raises. What is stored is what was saved; what is kept raises, too."""
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = DTensor.from_local(F.linear(x, self.w), mesh, [Shard(0)])
        y = h * h.sigmoid()
        h.mul_(3)
        return y.to_local()

    model = integrations.compress_model(Net(forward, w=W), level="L1.1", min_bytes=min_bytes)
    loss = model(X).square().sum()
    with pytest.raises(RuntimeError, match="modified by an inplace operation") if min_bytes else nullcontext():
        loss.backward()


@pytest.mark.parametrize("level", ["L1.1", "lean"])
def test_nothing_that_was_stored_before_stands_for_a_dtensor_that_was_changed(mesh, level):
    """Its part, which a plain tensor saves, has the version that it had before."""
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = DTensor.from_local(F.linear(x, self.w), mesh, [Shard(0)])
        h * h.sigmoid()  # saved, and in no loss
        h.mul_(5)
        return F.gelu(h.to_local())

    found, compressed, _ = plain_and_compressed(Net(forward, w=W), X, level=level)
    assert relative_error(found, compressed) < 3 * EIGHT_BITS  # of the layers in turn


def test_few_bit_activations_of_dtensors_raise(mesh):
    from torch.distributed.tensor import DTensor, Shard

    h = DTensor.from_local(X.clone().requires_grad_(), mesh, [Shard(0)])
    with pytest.raises(TypeError, match=r"few-bit activations \(activations=\) store plain tensors, got a DTensor"):
        integrations.fewbit.functional.gelu(h)
    assert torch.equal(integrations.fewbit.functional.gelu(h.detach()).to_local(), F.gelu(X))


@pytest.mark.skipif(TORCH < (2, 12), reason="before torch 2.12 DTensors have no max_pool2d")
def test_pooling_of_dtensors(mesh):
    """Their indices are those of a rank's part, and are kept."""
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = DTensor.from_local(F.linear(x, self.w).view(2, 4, -1, 16), mesh, [Shard(0)])
        return F.max_pool2d(h, 2).to_local()

    found, compressed, model = plain_and_compressed(Net(forward, w=W), X, level="L1.1")
    assert relative_error(found, compressed) < 3 * EIGHT_BITS
    assert {row.codec for row in rows(model, "max_pool2d") if row.role == "result"} <= {"kept"}


def test_dtensor_activations_that_the_forward_makes(mesh):
    """Through products, norms, softmax and views, and back to a plain tensor."""
    from torch.distributed.tensor import DTensor, Shard

    def forward(self, x):
        h = F.linear(x, self.w)
        if self.distributed:
            h = DTensor.from_local(h, mesh, [Shard(0)])
        h = F.gelu(h) * h.sigmoid()
        h = (F.layer_norm(h, (32,)).t() * 3).softmax(0).t()
        if self.distributed:
            h = h.to_local()
        return F.linear(h.relu(), self.v)

    found, codecs = {}, {}
    for distributed in (False, True):
        net = Net(forward, **WEIGHTS)
        net.distributed = distributed
        plain, found[distributed], model = plain_and_compressed(net, X, level="L1.1")
        assert relative_error(plain, found[distributed]) < 3 * EIGHT_BITS  # of the layers in turn
        codecs[distributed] = [(row.operator, row.codec, row.stored_bytes) for row in rows(model)]
    assert codecs[True] == codecs[False]
    assert_same(*found.values())
