"""What each kind of tensor gets: masks one exact bit, integers and statistics themselves, floats what is asked."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from actcore import BitMask
from integrations.tracing.storage.regions import codec_name

from .nets import EIGHT_BITS, Net, assert_same, normal, plain_and_compressed, relative_error, rows

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


@pytest.mark.parametrize(
    "operator",
    [
        lambda h: torch.where(h.detach() > 0, h, 0 * h),
        lambda h: h.masked_fill(h.detach() > 0, 0.0),
        lambda h: h * (h.detach() > 0),
        lambda h: h.masked_fill((h.detach() > 0).t().contiguous().t(), 0.0),
        lambda h: h.masked_fill((h.detach()[:, :1] > 0).expand(48, 64), 0.0),
    ],
    ids=["where", "masked_fill", "product", "transposed", "expanded"],
)
def test_a_bool_mask_takes_one_bit(operator):
    plain, compressed, model = plain_and_compressed(Net(lambda self, x: operator(F.linear(x, self.w)), w=W), X)
    assert_same(plain, compressed)
    masks = [row for row in rows(model) if row.dtype is torch.bool]
    assert masks
    for row in masks:
        assert row.codec == "BitMask(values=(0, 1))"
    assert sum(row.stored_bytes for row in masks) == sum(row.original_bytes for row in masks) // 8


def test_a_codec_keeps_its_name_beside_an_equal_one():
    """``BitMask((0.0, 1.0))`` of floats and ``BitMask((0, 1))`` of bools are equal and not written alike."""
    for values in ((0.0, 1.0), (0, 1), (0.0, 1.0)):
        assert codec_name(BitMask(values)) == f"BitMask(values={values})"


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_are_exact(dtype):
    index = (torch.arange(4800) % 48).to(dtype)
    if dtype is torch.uint8:
        index = (index % 2).bool()[:48]
    net = Net(lambda self, x: F.linear(x, self.w)[index.clone()].cosh(), w=W)
    plain, compressed, _ = plain_and_compressed(net, X, level="L1.2", min_bytes=0)
    assert_same(plain, compressed)


def test_an_integer_factor_is_exact():
    factor = torch.arange(48 * 64).view(48, 64)
    net = Net(lambda self, x: F.linear(x, self.w) * (factor + 1), w=W)
    plain, compressed, model = plain_and_compressed(net, X, level="L1.2", min_bytes=0)
    assert_same(plain, compressed)
    [row] = [row for row in rows(model, "mul") if row.dtype is torch.int64]
    assert (row.codec, row.why) == ("kept", "int64 is kept exactly")


NORMS = {
    "layer_norm": (nn.LayerNorm(64), X),
    "batch_norm": (nn.BatchNorm1d(64), X),
    "group_norm": (nn.GroupNorm(4, 64), X),
    "instance_norm": (nn.InstanceNorm2d(3, affine=True), normal(4, 3, 16, 16)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norms_statistics_are_exact(name):
    """Its input takes ``norm_bits``; mean and 1/std, however many, are kept. The shift's gradient needs neither."""
    norm, x = NORMS[name]
    net = nn.Sequential(nn.Conv1d(48, 48, 1) if x.dim() == 2 else nn.Conv2d(3, 3, 1), norm)
    plain, compressed, model = plain_and_compressed(net, x, min_bytes=0)
    saved = rows(model, name)
    assert ["bits=8" in row.codec for row in saved if row.role == "input"] == [True]
    assert all(row.codec == "kept" for row in saved if row.role != "input")
    assert sum(row.role in ("internal", "result") for row in saved) >= 2  # mean and 1/std
    assert_same({"bias": plain["1.bias"]}, {"bias": compressed["1.bias"]})


def test_small_tensors_are_kept():
    for min_bytes, codec in ((48 * 64 * 4 + 1, "kept"), (48 * 64 * 4, "GroupAffine")):
        net = Net(lambda self, x: F.linear(F.linear(x, self.w), self.v), w=W, v=W)
        _, _, model = plain_and_compressed(net, X, min_bytes=min_bytes)
        [row] = rows(model, "linear")
        assert row.codec.startswith(codec)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_never_hidden(bad):
    """A group with NaN or infinity comes back as NaN: where the exact gradient is not finite, ours is NaN."""
    x = X.clone()
    x[3, 5] = bad
    net = Net(lambda self, x: F.linear(x * 1, self.w), w=W)
    plain, compressed, _ = plain_and_compressed(net, x, loss=torch.sum)
    assert (compressed["w"].isnan() | plain["w"].isfinite()).all()
    assert compressed["w"].isnan().any()


def test_zero_elements_and_zero_dimensions():
    for x in (torch.empty(0, 64), normal(64)):
        net = Net(lambda self, x: F.dropout(F.relu(F.linear(x, self.w)) * self.s), w=W, s=torch.tensor(2.0))
        plain, compressed, _ = plain_and_compressed(net, x, loss=torch.sum, min_bytes=0)
        assert torch.equal(plain["w"], compressed["w"])


@pytest.mark.skipif(not hasattr(F, "grouped_mm"), reason="this torch has no grouped_mm")
def test_experts_are_linear_and_their_undefined_rows_stay_apart():
    """A mixture's experts read the rows of their tokens; beyond the last group a tensor may hold anything, NaN too."""
    offsets = torch.tensor([16, 40], dtype=torch.int32)

    def forward(self, x):
        h = F.linear(x, self.w)
        h = torch.cat([h[:40], h[40:] * float("nan")])
        return F.grouped_mm(h, self.experts, offs=offsets)[:40]

    parameters = {"w": W, "experts": normal(2, 64, 32, seed=2) / 8}
    net = Net(forward, **{name: value.bfloat16() for name, value in parameters.items()})
    plain, compressed, model = plain_and_compressed(net, X.bfloat16(), level="L1.1")
    [row] = [row for row in rows(model, "grouped_mm") if row.role == "input"]
    assert "group_size=64" in row.codec
    # bfloat16's own rounding, 2**-9 of an element, is small beside that of 8 bits.
    assert relative_error({"experts": plain["experts"]}, compressed) < EIGHT_BITS
    net = Net(lambda self, x: F.grouped_mm(F.linear(x, self.w), self.experts, offs=offsets)[:40], **parameters)
    net.w = nn.Parameter(normal(40, 64, seed=3) / 8)  # rows of 40 elements share groups
    net.experts = nn.Parameter(normal(2, 40, 32, seed=4) / 8)
    _, _, model = plain_and_compressed(net.bfloat16(), X.bfloat16())
    assert [row.codec for row in rows(model, "grouped_mm") if row.role == "input"] == ["kept"]
