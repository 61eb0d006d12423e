"""What backward does with a tensor decides how a compiled region stores it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

import integrations
from integrations.runtime.compiled.regions import _require_numbers

from .graphs import build
from .nets import Net, assert_same, gradients, normal, relative_error, rows
from .regions import W, X, compiled, make_report, trained

pytestmark = pytest.mark.usefixtures("fresh_compiler")


def test_the_rules_are_those_of_the_operators():
    model = integrations.compress_model(build("block")[0], min_bytes=0)
    trained(model, compiled(model), normal(4, 16, 64))
    [linear, *_], [gelu] = rows(model, "mm"), rows(model, "gelu_backward")
    assert linear.codec.startswith("GroupAffine(bits=4, group_size=128")
    assert gelu.codec.startswith("GroupAffine(bits=8, group_size=256")
    norms = rows(model, "native_layer_norm_backward")
    statistics = [row for row in norms if row.shape[-1] == 1]
    assert [row.codec for row in statistics] == ["kept"] * 4
    inputs = [row.codec.split(", r")[0] for row in norms if row.shape[-1] == 64]
    assert inputs == ["GroupAffine(bits=8, group_size=64"] * 2  # no group has elements of two rows


def test_lean_stores_few_features_in_eight_bits():
    """As in eager code: such a tensor is a small part of the bytes, and much of the gradient's error. A convolution's
    input is no such tensor, however narrow its images."""

    def forward(self, x):
        y = F.conv2d(x.relu(), self.image, padding=1).flatten(2)
        return F.linear(F.linear(y, self.wide).relu(), self.narrow)

    weights = {"image": normal(4, 2, 3, 3, seed=2), "wide": normal(32, 64, seed=3), "narrow": normal(8, 32, seed=4)}
    model = integrations.compress_model(Net(forward, **weights), "lean", min_bytes=0)
    trained(model, compiled(model), normal(16, 2, 8, 8))
    found = {row.shape[-1]: row.codec.split(",")[0] for row in rows(model) if "GroupAffine" in row.codec}
    assert found == {8: "GroupAffine(bits=5", 64: "GroupAffine(bits=5", 32: "GroupAffine(bits=8"}


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_lean_stores_what_norms_of_rows_that_share_groups_make_in_eight_bits(backend):
    """Eager code computes it again from the norm's input, which is kept exactly where rows share groups."""

    def forward(self, x):
        rows = F.layer_norm(F.conv2d(x, self.first).movedim(1, -1), self.first.shape[:1])
        return F.conv2d(rows.movedim(-1, 1), self.second)

    found = {}
    for width in (24, 32, 100):
        weights = {"first": normal(width, 3, 3, 3, seed=2), "second": normal(4, width, 3, 3, seed=3)}
        model = integrations.compress_model(Net(forward, **weights), "lean", min_bytes=0)
        trained(model, compiled(model, backend=backend), normal(4, 3, 12, 12))
        [read] = [row for row in rows(model, "convolution_backward") if row.shape[1] == width]
        found[width] = read.codec.split(",")[0]
        torch.compiler.reset()
    assert found == {24: "GroupAffine(bits=8", 32: "GroupAffine(bits=5", 100: "GroupAffine(bits=8"}


def test_a_norm_that_is_taken_apart_has_the_bits_of_norms():
    """Backward multiplies what is normalized with the gradient, and rounding it tilts every gradient below as rounding
    the norm's input does."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.LayerNorm(64))
    integrations.compress_model(model, "L1.2", min_bytes=0)
    trained(model, compiled(model, backend="aot_eager_decomp_partition"))
    norms = [row for row in rows(model, "native_layer_norm_backward") if "GroupAffine" in row.codec]
    assert {row.codec.split(",")[0] for row in norms} == {"GroupAffine(bits=8"}


def test_masks_and_pools_are_exact():
    def forward(self, x):
        y = F.avg_pool2d(F.dropout(F.conv2d(x, self.w, padding=1), 0.5), 2)
        return F.conv2d(y, self.w)

    model = Net(forward, w=normal(8, 8, 3, 3, seed=2) / 8)
    x = normal(4, 8, 16, 16)
    integrations.compress_model(model, min_bytes=0)
    trained(model, compiled(model), x)
    found = {row.operator: row for row in rows(model)}
    assert found["native_dropout_backward"].codec == "BitMask(values=(0, 1))"
    assert found["native_dropout_backward"].stored_bytes == x.numel() // 8
    assert found["avg_pool2d_backward"].codec == "shape"
    assert found["avg_pool2d_backward"].stored_bytes == 0


def test_a_use_without_a_rule_is_kept_exactly():
    model = Net(lambda self, x: F.linear(x, self.w).cosh().log(), w=W)
    assert_same(gradients(copy.deepcopy(model), X), trained(integrations.compress_model(model), compiled(model)))
    assert {row.codec for row in rows(model)} == {"kept"}


def test_a_mask_that_backward_recomputes_is_exact():
    """inductor's graphs save a convolution's result alone, and normalise it again for ReLU's mask."""

    def forward(self, x):
        return F.linear(
            F.batch_norm(F.linear(x, self.w), None, None, training=True).relu().sum(1, keepdim=True), self.v
        )

    model = integrations.compress_model(Net(forward, w=W, v=W[:, :1]))
    function = compiled(model, backend="aot_eager_decomp_partition")
    trained(model, function)
    [row] = [row for row in rows(model) if row.shape == (48, 64) and row.dtype == torch.float32]
    assert row.codec == "kept"
    assert row.why == "no rule for le of a recomputed tensor in compiled code: kept exactly"


def test_a_relu_whose_result_is_multiplied_keeps_its_mask():
    """4 bits round small elements to zero, where ReLU's derivative would be another one."""
    x = torch.cat([torch.full((24, 63), 1e-6), torch.full((24, 1), -1.0), normal(24, 64).abs()], 1)
    model = Net(lambda self, x: F.linear((x * self.s).relu(), self.w), s=torch.ones(128), w=normal(64, 128, seed=2))
    plain = gradients(copy.deepcopy(model), x)
    found = trained(integrations.compress_model(model), compiled(model), x)
    [row] = [row for row in rows(model) if "threshold" in row.operator]
    assert row.codec.endswith("and Positive()")
    assert torch.allclose(found["s"], plain["s"], rtol=1e-4)  # sums of the same terms, in another order
    assert relative_error({"w": plain["w"]}, found) > 1e-3


def test_a_square_that_backward_recomputes():
    """It moves by more than a bounded multiple of what its root does, and not around its value; so the root is kept."""

    def forward(self, x):
        y = F.linear(x, self.w)
        return y * y * F.linear(x, self.v)

    model = Net(forward, w=W, v=W.T)
    exact = gradients(copy.deepcopy(model), X)
    integrations.compress_model(model)
    found = trained(model, compiled(model, backend="aot_eager_decomp_partition"))
    [kept] = [row for row in rows(model) if row.codec == "kept"]
    assert kept.why == "no rule for mul in compiled code: kept exactly"
    assert relative_error({"v": exact["v"]}, found) < 1e-5  # the squares, as they are; the same sums in another order
    assert relative_error({"w": exact["w"]}, found) > 1e-3  # that of the other factor, in 4 bits


def test_casts_of_weights_are_exact_and_no_activations():
    """Autocast casts each weight, and backward reads the cast. Regions stored it in the bits of an activation."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 32))
    eager, x = integrations.compress_model(copy.deepcopy(model), "L1.2", min_bytes=0), normal(48, 64)
    integrations.compress_model(model, "L1.2", min_bytes=0)
    for part, function in ((eager, eager), (model, compiled(model))):
        with torch.autocast("cpu", torch.bfloat16):
            trained(part, function, x)
    weights = {tuple(weight.shape) for weight in model.parameters()}
    found = {row.shape for row in rows(model)}
    assert not found & (weights | {shape[::-1] for shape in weights})
    assert (48, 96) in found
    assert make_report(model).original_bytes <= make_report(eager).original_bytes


class NormAndLinear(nn.Module):
    """A layer norm and a linear layer that read one tensor, whose rows differ in scale."""

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.second, self.beside = nn.Linear(width, width), nn.Linear(width, width)
        self.scales = torch.logspace(-2, 2, 64)[torch.randperm(64), None]

    def forward(self, x):
        x = self.first(x) * self.scales
        return self.second(self.norm(x)) + self.beside(x) / self.scales


@pytest.mark.parametrize("width", [192, 256])
@pytest.mark.parametrize("norm_bits", [4, 8])
@pytest.mark.parametrize("way", ["eager", "compiled"])
def test_a_linear_layer_leaves_the_rows_of_a_norm_apart(width, norm_bits, way):
    """Groups of 128 are finer than those of a row of 192, and would have two rows in one."""
    model, x = NormAndLinear(width), normal(64, width)

    def of_norm(model, function):
        model.zero_grad()
        (function(x) * normal(64, width, seed=1)).sum().backward()
        return {"weight": model.norm.weight.grad, "bias": model.norm.bias.grad}

    exact = of_norm(model, model)
    integrations.compress_model(model, norm_bits=norm_bits, min_bytes=0)
    # Rounding to a step is off by step / sqrt(6), where the range of 224 normal numbers is some 5.5 deviations.
    most = 1.5 * 5.5 / (2**norm_bits - 1) / 6**0.5
    assert relative_error(exact, of_norm(model, model if way == "eager" else compiled(model))) < most


def test_a_region_that_saves_no_tensor_raises():
    """Torch drops the mesh of a DTensor where hooks are inlined, and a backward failed with a missing argument."""
    graph = Graph()
    tensor, mesh = graph.placeholder("tensor"), graph.placeholder("mesh")
    tensor.meta["val"], mesh.meta["val"] = torch.ones(2), object()
    graph.output((tensor, mesh))
    with pytest.raises(NotImplementedError, match="a compiled region saves a object, such as the mesh of a DTensor"):
        _require_numbers(graph)
