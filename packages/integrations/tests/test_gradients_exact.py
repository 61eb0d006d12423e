"""Gradients that compression leaves bit for bit as they are: signs, masks, and operators without a rule.

Under each operator lies a linear layer, whose gradient shows what the operator passes down; its own input is the
model's, and so kept.
"""

import pytest
import torch
import torch.nn.functional as F

from .nets import Net, assert_same, normal, plain_and_compressed, rows

LEVELS = ["L1", "L1.1", "L1.2"]
X = normal(48, 64)
IMAGES = normal(4, 3, 16, 16, seed=1)


def above_linear(operator):
    return Net(lambda self, x: operator(F.linear(x, self.weight)), weight=normal(64, 64, seed=2) / 8)


def above_conv(operator):
    return Net(lambda self, x: operator(F.conv2d(x, self.weight, padding=1)), weight=normal(16, 3, 3, 3, seed=3))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    ("operator", "stored"),
    [
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (torch.Tensor.relu, "relu"),
        (lambda h: F.relu(h, inplace=True), "relu"),
        (torch.relu_, "relu"),
        (torch.ops.aten.relu, "relu"),
        (lambda h: F.leaky_relu(h, 0.2), "leaky_relu"),
        (lambda h: F.leaky_relu(h, 0.2, inplace=True), "leaky_relu"),
        (lambda h: F.leaky_relu(h, -0.5), "leaky_relu"),
        (torch.nn.LeakyReLU(), "leaky_relu"),
    ],
)
def test_relu_and_its_leaky_form_need_one_bit_an_element(operator, stored, level):
    plain, compressed, model = plain_and_compressed(above_linear(operator), X, level=level)
    assert_same(plain, compressed)
    [row] = rows(model, stored)
    assert row.stored_bytes == X.numel() // 8


@pytest.mark.parametrize("special", [0.0, -0.0, float("inf"), float("-inf"), 1e-45, -1e-45])
def test_relu_at_the_border_passes_what_torch_passes(special):
    """Zeros of both signs, subnormals and infinities: the gradient of the offset added before shows what passes."""
    h = torch.full((48, 64), special)
    net = Net(lambda self, x: F.relu(x + self.offset) * 3, offset=torch.zeros(48, 64))
    plain, compressed, _ = plain_and_compressed(net, h, loss=torch.sum)
    assert_same(plain, compressed)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(
    "operator",
    [
        lambda h: F.dropout(h, 0.3),
        lambda h: F.dropout(h, 0.3, inplace=True),
        torch.nn.Dropout(0.9),
    ],
)
def test_dropout_needs_one_bit_an_element(operator, level):
    plain, compressed, model = plain_and_compressed(above_linear(operator), X, level=level)
    assert_same(plain, compressed)
    [row] = rows(model, "dropout")
    assert row.stored_bytes == X.numel() // 8


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropout_of_nothing_and_of_everything(probability):
    plain, compressed, _ = plain_and_compressed(above_linear(lambda h: F.dropout(h, probability)), X, min_bytes=0)
    assert_same(plain, compressed)


@pytest.mark.parametrize("operator", [F.dropout2d, F.dropout1d, F.alpha_dropout, F.feature_alpha_dropout])
def test_dropouts_kin(operator):
    under = above_linear if operator in (F.dropout1d, F.alpha_dropout) else above_conv
    plain, compressed, _ = plain_and_compressed(under(operator), X if under is above_linear else IMAGES, min_bytes=0)
    assert_same(plain, compressed)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_signs_and_masks_in_other_dtypes(dtype):
    net = above_linear(lambda h: F.dropout(F.leaky_relu(F.dropout(F.relu(h), 0.1), 0.1), 0.7)).to(dtype)
    plain, compressed, model = plain_and_compressed(net, X.to(dtype))
    assert_same(plain, compressed)
    assert sum(row.stored_bytes for row in rows(model)) == 4 * X.numel() // 8


EXACT = {
    "elu that jumps": lambda h: F.elu(h, 0.5),
    "celu": lambda h: F.celu(h, 2.0),
    "selu": F.selu,
    "steep softplus": lambda h: F.softplus(h, 50.0),
    "softplus with a jump": lambda h: F.softplus(h, threshold=1.0),
    "relu6": F.relu6,
    "prelu": lambda h: F.prelu(h, torch.tensor([0.3])),
    "fifth power": lambda h: h**5,
    "power of a tensor": lambda h: (h.abs() + 1) ** torch.tensor(2.0),
    "power of two": lambda h: 2**h,
    "abs": torch.abs,
    "sqrt": lambda h: (h.abs() + 1).sqrt(),
    "quotient": lambda h: 1 / (h.abs() + 1),
    "norm": torch.linalg.norm,
    "normalize": F.normalize,
    "std": lambda h: h.std(1),
    "logsumexp": lambda h: h.logsumexp(1),
    "log_softmax": lambda h: F.log_softmax(h, 1),
    "log_softmax and nll_loss": lambda h: F.nll_loss(F.log_softmax(h, 1), torch.arange(48)),
    "cross_entropy": lambda h: F.cross_entropy(h, torch.arange(48), label_smoothing=0.1),
    "mse_loss": lambda h: F.mse_loss(h, torch.zeros(48, 64)),
    "max": lambda h: h.amax(1),
    "cummax": lambda h: h.cummax(1).values,
    "sort": lambda h: h.sort(1).values,
    "clamp": lambda h: h.clamp(-1, 1),
    "where": lambda h: torch.where(h > 0.5, h, 2 * h),
    "masked_fill": lambda h: h.masked_fill(h > 0.5, 0.0),
    "gather": lambda h: h.gather(1, torch.arange(48)[:, None].expand(48, 5)),
    "boolean index": lambda h: h[h > 0],
    "scatter_add": lambda h: torch.zeros(9, 64).scatter_add(0, (torch.arange(48) % 9)[:, None].expand(48, 64), h),
    "cumsum": lambda h: h.cumsum(0),
    "cat and chunk": lambda h: torch.cat(h.chunk(4, 1)[::-1], 1),
    "fft": lambda h: torch.fft.rfft(h).abs(),
    "complex numbers": lambda h: torch.view_as_complex(h.view(48, 32, 2)).abs(),
}


@pytest.mark.parametrize("operator", EXACT.values(), ids=EXACT.keys())
def test_an_operator_without_bits_of_its_own_is_exact(operator):
    plain, compressed, _ = plain_and_compressed(above_linear(operator), X, level="L1.2", min_bytes=0)
    assert_same(plain, compressed)


@pytest.mark.parametrize(
    "operator",
    [
        lambda h: F.max_pool2d(h, 3, stride=2, padding=1),
        lambda h: F.avg_pool2d(h, 2),
        lambda h: F.adaptive_max_pool2d(h, 3),
        lambda h: F.interpolate(h, scale_factor=2, mode="bilinear"),
        lambda h: F.unfold(h, 3),
        lambda h: F.pad(h, (1, 1, 1, 1), mode="reflect"),
        lambda h: F.grid_sample(h, torch.zeros(4, 5, 5, 2), align_corners=False),
    ],
)
def test_image_operators_without_bits_of_their_own_are_exact(operator):
    plain, compressed, _ = plain_and_compressed(above_conv(operator), IMAGES, level="L1.2", min_bytes=0)
    assert_same(plain, compressed)


@pytest.mark.parametrize("recurrent", [torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM])
def test_recurrent_layers_are_exact(recurrent):
    net = recurrent(16, 32, num_layers=2, dropout=0.5, bidirectional=True)
    plain, compressed, _ = plain_and_compressed(net, normal(7, 5, 16), loss=lambda output: output[0].square().sum())
    assert_same(plain, compressed)


def test_embedding_is_exact_and_passes_the_error_of_nothing():
    net = Net(lambda self, i: F.embedding(i * 2, self.table).cosh(), table=normal(100, 32))
    plain, compressed, model = plain_and_compressed(net, torch.arange(50).repeat(8))
    assert_same(plain, compressed)
    [row] = rows(model, "embedding")
    assert (row.dtype, row.codec) == (torch.int64, "Narrow(low=0, high=99)")
