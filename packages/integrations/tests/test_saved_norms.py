"""What a normalisation takes one statistic over decides how its input is stored."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from actcore import GroupAffine, SavedTensor, compress, decompress
from integrations.planner.sensitivity.shared_storage import MeasuredCopy
from integrations.policies.norms import CHANNELS, FEW, Normalizer, RowByRow, Standardized
from integrations.tracing.storage.records import Record
from integrations.tracing.storage.regions import View
from integrations.tracing.storage.storage import Storages
from integrations.tracing.tensors import Extent

from .nets import EIGHT_BITS, Net, assert_same, gradients, normal, plain_and_compressed, relative_error, rows
from .qnets import q_layer, step
from .regions import compiled, trained

# Deviations of channels from a thousandth of the largest to the largest, as random weights of a channel each make them.
SPREAD = torch.logspace(-3, 0, 32)


# ---- few elements ----

FEW_ELEMENTS = {
    "batch_norm": lambda x: F.batch_norm(x[:, :, 0], None, None, training=True),
    "instance_norm": lambda x: F.instance_norm(x),
    "group_norm": lambda x: F.group_norm(x, x.shape[1]),
}


@pytest.mark.parametrize("name", FEW_ELEMENTS)
def test_a_statistic_over_two_elements_leaves_no_room_for_rounding(name):
    """LeViT's, SHViT's and EfficientViT's gradients were off by more than themselves at a batch of 2: of the gradient
    through a norm over two elements nothing is left but what epsilon does."""
    net = Net(lambda self, x: FEW_ELEMENTS[name](self.w + x), w=normal(2, 512, 2))
    plain, compressed, model = plain_and_compressed(net, torch.zeros(()), level="L1.1")
    assert_same(plain, compressed)
    [row] = [row for row in rows(model, name) if row.role == "input"]
    assert row.codec == "kept"
    assert row.why == "a statistic over 2 elements, whose rounding would destroy the gradient: kept exactly"


@pytest.mark.parametrize(("samples", "codec"), [(FEW, "kept"), (FEW + 1, "GroupAffine")])
def test_more_than_a_few_are_stored_in_fewer_bits(samples, codec):
    net = Net(lambda self, x: F.batch_norm(self.w + x, None, None, training=True), w=normal(samples, 512))
    _, _, model = plain_and_compressed(net, torch.zeros(()))
    [row] = [row for row in rows(model, "batch_norm") if row.role == "input"]
    assert row.codec.startswith(codec)


def test_running_statistics_are_no_statistics_of_the_input():
    """By these, backward is linear in the input."""
    mean, variance = torch.zeros(512), torch.ones(512)
    net = Net(lambda self, x: F.batch_norm(self.w + x, mean, variance, self.v), w=normal(2, 512), v=torch.ones(512))
    _, _, model = plain_and_compressed(net, torch.zeros(()))
    [row] = [row for row in rows(model, "batch_norm") if row.role == "input"]
    assert row.codec.startswith("GroupAffine(bits=8")
    assert "standardised" not in row.codec


# ---- statistics that differ ----

CHANNEL = SPREAD.view(32, 1, 1)
UNEQUAL = {
    "planes": (normal(4, 32, 14, 14) * CHANNEL, [0, 2, 3], "batch_norm"),
    "channels last": ((normal(4, 32, 14, 14) * CHANNEL).to(memory_format=torch.channels_last), [0, 2, 3], "batch_norm"),
    "rows": (normal(64, 32) * SPREAD, [0], "batch_norm"),
    "slices": ((normal(4, 32, 14, 15) * CHANNEL)[..., 1:], [0, 2, 3], "batch_norm"),
    "far from zero": (normal(4, 32, 14, 14) * CHANNEL + 30 * CHANNEL.flip(0), [0, 2, 3], "batch_norm"),
    "double": (normal(4, 32, 14, 14, dtype=torch.float64) * CHANNEL.double(), [0, 2, 3], "batch_norm"),
    "instances": (normal(4, 32, 7, 7) * CHANNEL, [2, 3], "instance_norm"),
    "groups": (normal(4, 64, 7, 7).view(4, 32, 2, 49) * SPREAD.view(32, 1, 1), [2, 3], "group_norm"),
}


def _normalised(x, name):
    if name == "batch_norm":
        return F.batch_norm(x, None, None, training=True)
    return F.instance_norm(x) if name == "instance_norm" else F.group_norm(x.flatten(1, 2), 32).view(x.shape)


@pytest.mark.parametrize("case", UNEQUAL)
def test_a_channel_of_small_deviation_has_the_error_of_any_other(case):
    """Channels of RepViT, each the product of an input and a random weight, share groups of 256 with others of a
    hundred times their deviation. Its gradient was off by 0.7.

    Backward is r (g - mean(g) - n mean(g n)), with the normalised input n and the reciprocal deviation r. Rounding
    moves n by at most a step s, and so that by at most r (s |mean(g n)| + (|n| + s) s mean(|g|)). A group has at most
    the range of all n, which is below 10 for as many normal numbers, so s < 10 / 255; to that comes the rounding of
    the numbers themselves, where the mean is many deviations: 2**-22 of the largest. A twentieth more is for the
    arithmetic.
    """
    x, over, name = UNEQUAL[case]
    weights = normal(*x.shape, seed=3, dtype=x.dtype)
    net = Net(lambda self, zero: _normalised(_laid_out(self.w, x) + zero, name) * weights, w=x)
    zero = torch.zeros((), dtype=x.dtype)
    plain, compressed, model = plain_and_compressed(net, zero, level="L1.1", loss=torch.sum)
    [row] = [row for row in rows(model, name) if row.role == "input"]
    assert row.codec.endswith("standardised")
    variance, mean = torch.var_mean(x.double(), over, correction=0, keepdim=True)
    r = (variance + 1e-5).rsqrt()
    n, g = (x.double() - mean) * r, weights.double()
    step = 10 / 255 + 2**-22 * x.abs().max() * r
    bound = r * (
        step * (g * n).mean(over, keepdim=True).abs() + (n.abs() + step) * step * g.abs().mean(over, keepdim=True)
    )
    assert ((plain["w"] - compressed["w"]).abs() <= 1.05 * bound).all()


def _laid_out(parameter, like):
    """The parameter, in the strides of a tensor when a sum is made of it."""
    if like.is_contiguous() or like.dim() < 4:
        return parameter
    if like.is_contiguous(memory_format=torch.channels_last):
        return parameter.contiguous(memory_format=torch.channels_last)
    return F.pad(parameter, (1, 0))[..., 1:]


# ---- rows that lie across each other ----

ACROSS = {
    "transposed": lambda h: h.transpose(1, 2),
    "permuted": lambda h: h.view(4, 64, 5, 8).permute(0, 2, 3, 1),
}


@pytest.mark.parametrize("view", ACROSS.values(), ids=ACROSS.keys())
@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm], ids=["layer_norm", "rms_norm"])
def test_rows_that_lie_across_each_other_are_stored_row_by_row(view, norm):
    """As the features of an image are, or of a sound after a convolution: channels come before places. Rows of a
    thousandth of the others' size would be lost in groups in the order of memory, of 40 rows each."""
    x = normal(4, 64, 40) * torch.logspace(-3, 0, 40)
    weights = normal(*view(x).shape, seed=3)
    net = Net(lambda self, zero: norm(view(self.w + zero), (64,)) * weights, w=x)
    plain, compressed, model = plain_and_compressed(net, torch.zeros(()), level="L1.1", loss=torch.sum)
    found = [row for row in rows(model, norm.__name__) if row.role == "input"]
    assert {row.codec for row in found} == {"GroupAffine(bits=8, group_size=64, rounding='stochastic'), row by row"}
    # A step is 1/255 of a row's range, of some five deviations; its gradient is a sum of two parts with such errors.
    for one, other in zip(view(plain["w"]).flatten(0, -2), view(compressed["w"]).flatten(0, -2), strict=True):
        assert (one - other).norm() <= 0.05 * one.norm()


def test_a_tensor_stored_row_by_row_comes_back_as_it_lay():
    x = normal(4, 64, 40).transpose(1, 2)
    codec = RowByRow(8, 64)
    stored = compress(x, codec, seed=1, stream=2)
    assert stored.layout.strides == x.stride()
    restored = decompress(stored)
    assert restored.stride() == x.stride()
    same = decompress(compress(x.contiguous(), GroupAffine(8, 64), seed=1, stream=2))
    assert torch.equal(restored, same)
    assert stored.nbytes == codec.stored_bytes(x.numel(), x.dtype)


def test_a_norm_of_rows_that_lie_across_is_compiled_as_it_is():
    net = Net(lambda self, x: F.layer_norm((x * self.w).transpose(1, 2), (64,)), w=normal(64, 1))
    x = normal(4, 64, 40)
    expected = gradients(copy.deepcopy(net), x)
    model = integrations.compress_model(net, "L1.1")
    assert relative_error(expected, trained(model, compiled(model), x)) < EIGHT_BITS


@pytest.mark.parametrize(("size", "group"), [(16, 256), (56, 224)])
def test_planes_that_groups_divide_are_stored_as_they_are(size, group):
    x = normal(2, 4, size, size) * torch.logspace(-3, 0, 4).view(4, 1, 1)
    net = Net(lambda self, zero: F.batch_norm(self.w + zero, None, None, training=True), w=x)
    _, _, model = plain_and_compressed(net, torch.zeros(()))
    [row] = [row for row in rows(model, "batch_norm") if row.role == "input"]
    assert row.codec == f"GroupAffine(bits=8, group_size={group}, rounding='stochastic')"


def test_statistics_take_two_numbers_each():
    x = normal(4, 32, 14, 14)
    net = Net(lambda self, zero: F.batch_norm(self.w + zero, None, None, training=True), w=x)
    _, _, model = plain_and_compressed(net, torch.zeros(()))
    [row] = [row for row in rows(model, "batch_norm") if row.role == "input"]
    assert row.stored_bytes == GroupAffine(8).stored_bytes(x.numel(), x.dtype) + 2 * 4 * 32


def test_what_others_save_of_it_is_the_same_copy():
    """In either order: what is stored of it as it is normalised serves a convolution, too."""

    def forward(self, zero):
        h = self.w + zero
        first, last = (self.v, None) if self.before else (None, self.v)
        out = 0 if first is None else F.conv2d(h, first)
        out = out + F.batch_norm(h, None, None, training=True)
        return out if last is None else out + F.conv2d(h, last)

    for before in (True, False):
        net = Net(forward, w=normal(4, 32, 14, 14), v=normal(32, 32, 1, 1, seed=1))
        net.before = before
        _, _, model = plain_and_compressed(net, torch.zeros(()), level="L1.1")
        found = [row for row in rows(model) if row.shape == (4, 32, 14, 14)]
        assert all(row.codec.endswith("standardised") for row in found), found
        assert sum(row.stored_bytes > 0 for row in found) == 1


# ---- the stored form ----


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("groups", [CHANNELS, 4])
def test_rounding_moves_no_element_by_more_than_a_step(dtype, groups):
    """A step of the range of normalised elements, times the deviation of the channel or group; and what the dtype
    rounds, three times: less the mean, over the deviation, and back."""
    x = (normal(8, 32, 5, 5) * CHANNEL + 1).to(dtype)
    codec = Standardized(8, 256, "stochastic", groups, 32 if groups == CHANNELS else 8 * groups)
    found = decompress(compress(x, codec, seed=1))
    assert (found.shape, found.stride(), found.dtype) == (x.shape, x.stride(), dtype)
    cells = x.double() if groups == CHANNELS else x.double().unflatten(1, (groups, -1))
    over = [0, 2, 3] if groups == CHANNELS else [2, 3, 4]
    variance, mean = torch.var_mean(cells, over, correction=0, keepdim=True)
    normalised = (cells - mean) / variance.sqrt()
    step = (normalised.max() - normalised.min()) / 255
    eps = torch.finfo(dtype).eps
    bound = variance.sqrt() * (step + 3 * eps * normalised.abs().max()) + 3 * eps * cells.abs().max()
    assert ((found.double().view(cells.shape) - cells).abs() <= bound).all()


def test_a_constant_channel_is_nearly_exact():
    x = normal(8, 32, 5, 5)
    x[:, 3], x[:, 4] = 0, 7.3
    found = decompress(compress(x, Standardized(8, 256, "stochastic", CHANNELS, 32)))
    assert not found[:, 3].any()
    # By its own rounding errors alone: the mean's, which 200 terms leave at 1e-6 of it at most.
    assert torch.allclose(found[:, 4], x[:, 4], rtol=2e-6, atol=0)


def test_an_expanded_tensor_is_stored_plainly():
    x = normal(1, 32, 14, 14).expand(4, 32, 14, 14)
    stored = compress(x, Standardized(8, 256, "stochastic", CHANNELS, 32))
    assert stored.codec == GroupAffine(8)
    assert stored.decompress().stride() == x.stride()


# ---- adaptive levels ----


def test_its_energies_are_those_of_its_elements_as_they_were():
    """The mean over 50 roundings. An element's squared error is at most (step * deviation)^2, so that the mean's
    standard deviation is at most the square root of the sum of their fourth powers / 50; 5 of them are allowed."""
    x = normal(8, 32, 5, 5) * CHANNEL
    codec = Standardized(4, 256, "stochastic", CHANNELS, 32)
    record = Record(SavedTensor.of(x), "", "")
    view = Storages().store(x, Extent.of(x), codec, record, seed=0, stream=0)
    assert isinstance(view, View)
    stored = MeasuredCopy(view.region, codec, x, 4)
    found = [(decompress(compress(x, codec, seed=1, stream=s)) - x).square().sum().item() for s in range(50)]
    deviations = x.std([0, 2, 3])
    step = 8 / 15  # of a group that spans 8 deviations
    allowed = 5 * ((step * deviations).pow(4).sum() * 200 / 50).sqrt()
    assert abs(sum(found) / 50 - stored.energies[3].item()) < allowed
    noise = stored.noise(x.flatten(), stored.energies[3], torch.Generator().manual_seed(0)).view(x.shape)
    ratio = noise.std([0, 2, 3]) / deviations  # the same for each channel, as far as groups' ranges are
    assert ratio.max() < 3 * ratio.min()


# ---- compiled ----


@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_regions_keep_few_elements():
    def forward(self, x):
        return F.linear(F.batch_norm(F.linear(x, self.w), None, None, training=True), self.v)

    w, v = normal(512, 64, seed=1), normal(8, 512, seed=2)
    net = Net(forward, w=w, v=v)
    model = integrations.compress_model(net, "L1.1")
    trained(model, compiled(model), normal(2, 64))
    [row] = [row for row in rows(model) if row.operator == "native_batch_norm_backward" and row.shape == (2, 512)]
    assert row.codec == "kept"
    assert row.why.startswith("a statistic over 2 elements")


@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("name", ["batch_norm", "group_norm"])
def test_compiled_regions_store_elements_as_they_are_normalised(name):
    """Each channel's gradient has the error of any other's."""

    def forward(self, x):
        h = self.w * CHANNEL
        h = F.batch_norm(h, None, None, training=True) if name == "batch_norm" else F.group_norm(h, 32)
        return h * x

    x = normal(4, 32, 14, 14, seed=3)
    net = Net(forward, w=normal(4, 32, 14, 14))
    plain = gradients(copy.deepcopy(net), x)["w"]
    model = integrations.compress_model(net, "L1.1")
    found = trained(model, compiled(model), x)["w"]
    [row] = [row for row in rows(model) if f"native_{name}_backward" in row.operator and row.shape == x.shape]
    assert row.codec.endswith("standardised")
    for channel in range(32):
        assert relative_error({"w": plain[:, channel]}, {"w": found[:, channel]}) < EIGHT_BITS


# ---- Q-layers ----


@pytest.mark.parametrize(
    ("norm", "shape"),
    [(nn.BatchNorm1d(512), (2, 512)), (nn.GroupNorm(256, 512), (2, 512)), (nn.LayerNorm(2), (64, 2))],
    ids=lambda value: type(value).__name__,
)
def test_q_layers_keep_few_elements(norm, shape):
    x = normal(*shape)
    expected, found = step(norm, x), step(q_layer(norm), x)
    for one, other in zip((expected[0], *expected[1]), (found[0], *found[1]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("case", ["rows", "planes", "channels last"])
def test_q_layers_store_channels_as_they_are_normalised(case):
    """At 2 and 4 bits RepViT's gradients were off by 240 and by 1e8 times themselves."""
    x, over, _ = UNEQUAL[case]
    norm = nn.BatchNorm1d(32) if x.dim() == 2 else nn.BatchNorm2d(32)
    (_, [expected, *_]), (_, [found, *_]) = step(norm, x), step(q_layer(norm), x)
    relative = (found - expected).square().sum(over) / expected.square().sum(over)
    assert relative.max() < EIGHT_BITS**2


@pytest.mark.parametrize("groups", [CHANNELS, 2])
@pytest.mark.parametrize("shape", [(8, 16, 6, 6), (1, 16, 24, 24), (16, 16, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalised_elements_are_the_same_compiled(groups, shape, dtype):
    """With channels last, too, and of one sample: parts of the squares are of the longest dimension."""
    x = (normal(*shape) * 3 + 1).to(dtype).to(memory_format=torch.channels_last)
    normalizer = Normalizer(groups, shape[1] if groups == CHANNELS else shape[0] * groups)
    normal_x, statistics = normalizer.normalized(x)
    cells = x.double() if groups == CHANNELS else x.double().unflatten(1, (groups, -1))
    over = [0, 2, 3] if groups == CHANNELS else [2, 3, 4]
    expected = torch.stack([cells.mean(over).view(-1), cells.std(over, correction=0).view(-1)])
    # The mean is subtracted in the input's dtype, so that of bfloat16 deviations are of rounded elements.
    assert torch.allclose(statistics.double(), expected, rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)
    torch._dynamo.reset()
    compiled = torch.compile(normalizer.normalized, backend="eager", fullgraph=True)(x)
    # Sums of so many elements in another order: each addition rounds once.
    order = x.numel() // normalizer.count * torch.finfo(torch.float32).eps
    assert torch.allclose(compiled[1], statistics, rtol=order, atol=1e-6)
    assert torch.allclose(compiled[0].float(), normal_x.float(), rtol=order + 2 * torch.finfo(dtype).eps, atol=1e-5)
    assert normal_x.stride() == x.stride() == compiled[0].stride()
