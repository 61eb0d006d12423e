"""ActNN's known defects, one test each: what its code got wrong, here right.

A11, A13, A14 and A15, of how bits are allocated, are in ``test_actnn_allocation.py``. Many of these have thorough tests
of their own beside this file.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from integrations import qmodules
from integrations.qmodules import QLevel

from .nets import EIGHT_BITS, normal
from .qnets import EIGHT, errors, kept_bytes, q_layer, step


@pytest.fixture(autouse=True)
def settings():
    yield
    qmodules.set_optimization_level("L3")


def stored(x, bits=8, **options):
    """``x``, as a linear layer that stores it gives it back: the weight's gradient for an output gradient of ones on
    the diagonal."""
    layer = qmodules.QLinear(x.shape[1], x.shape[0], bias=False, dtype=x.dtype)
    level = QLevel(bits=(bits,), **{"per_sample": False, "per_layer": False, **options})
    layer = q_layer(layer.to_module(), level)
    layer(x).diagonal().sum().backward()
    return layer.weight.grad


def test_a01_no_gpu_is_needed():
    model = qmodules.QModule(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), "L3")
    step(model, normal(2, 3, 8, 8))


def test_a02_conversion_keeps_weights_and_their_dtype():
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)).double()
    model = qmodules.QModule(copy.deepcopy(plain))
    assert model[0].weight.dtype == torch.float64
    x = normal(2, 3, 8, 8, dtype=torch.float64)
    assert torch.equal(model(x), plain(x))


@pytest.mark.parametrize("shape", [(64,), (9, 64), (4, 9, 64), (2, 2, 9, 64)])
def test_a03_linear_layers_take_any_number_of_dimensions(shape):
    layer, x = nn.Linear(64, 16), normal(*shape)
    gradients, found = step(layer, x)[1], step(q_layer(layer), x)[1]
    assert found[0].shape == x.shape
    assert max(errors(gradients, found)) <= EIGHT_BITS


def test_a04_average_pooling_averages():
    x = normal(2, 3, 8, 8)
    assert torch.equal(qmodules.QAvgPool2d(2)(x.requires_grad_()), F.avg_pool2d(x, 2))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a05_transposed_convolutions_convert_with_and_without_bias(dims, bias):
    plain = getattr(nn, f"ConvTranspose{dims}d")(4, 8, 3, bias=bias)
    layer = qmodules.QModule(nn.Sequential(copy.deepcopy(plain)))[0]
    assert (layer.bias is not None) == bias
    x = normal(2, 4, *[6] * dims)
    assert torch.equal(layer(x), plain(x))


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(3, 1, dilation=2), nn.MaxPool2d(5, 2, padding=2), nn.MaxPool2d(20)]
)
@pytest.mark.parametrize("fill", [None, float("nan"), -1e30, float("-inf")])
def test_a06_max_pooling_takes_every_window_and_value(pool, fill):
    """Without a stride, dilated, of 16 places and more (400 are torch's to do), of NaN and hugely negative values."""
    x = normal(2, 3, 20, 20) if fill is None else torch.full((2, 3, 20, 20), fill)
    (expected, gradients), (output, found) = step(pool, x), step(q_layer(pool), x)
    assert torch.equal(output.nan_to_num(7.0), expected.nan_to_num(7.0))
    assert torch.equal(found[0], gradients[0])


@pytest.mark.parametrize("per_sample", [False, True])
def test_a07_more_than_65535_rows(per_sample):
    rows = 65536 + 40
    layer = q_layer(nn.Linear(256, 4), QLevel(bits=(8,), per_sample=per_sample, per_layer=False))
    x = normal(40, 256).repeat(-(-rows // 40), 1)[:rows]
    gradient = torch.zeros(rows, 4)
    gradient[-4:] = torch.eye(4)
    layer(x).backward(gradient)
    assert errors([x[-4:]], [layer.weight.grad])[0] <= EIGHT_BITS


def too_far(x, found, bits, ulp):
    """Elements that are off by more than a step of their row of 256 and half an ulp of their dtype."""
    x, found = x.double(), found.double()
    low, high = x.aminmax(dim=1, keepdim=True)
    return ((found - x).abs() > (high - low) / (2**bits - 1) + ulp / 2).sum().item()


@pytest.mark.parametrize("bits", [4, 8])
def test_a08_half_precision_never_leaves_its_code(bits):
    """A code that overflowed would land at the other bound, 2**bits - 1 steps away."""
    x = (40 + normal(400, 256)).half()
    assert too_far(x, stored(x, bits), bits, 2**-5) == 0  # the ulp of 32 to 64


@pytest.mark.parametrize("spread", [1e-3, 1e-4])
def test_a09_half_precision_with_small_ranges(spread):
    x = (normal(400, 256) * spread).half()
    assert too_far(x, stored(x), 8, 2**-19) == 0  # the ulp of 2**-9 to 2**-8


def test_a10_rounding_is_unbiased_far_from_zero():
    """100 to 101 in 8 bits: the mean of 4000 roundings is off by at most 5 of its standard deviations, half a step
    over the root of 4000, and by the 2**-9 step and the half ulp that the codec states."""
    x = 100 + torch.rand(4000, 256, generator=torch.Generator().manual_seed(0))[:1].repeat(4000, 1)
    off = (stored(x).double() - x.double()).mean(0)
    step = (x.max() - x.min()).item() / 255
    assert off.abs().max() <= step * (5 * 0.5 / 4000**0.5 + 2**-9) + 2**-18


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a12_nan_and_infinity_show(value):
    """In the gradients of what they are an input of, and in no other group. A channel here is a group."""
    x = normal(1, 8, 16, 16)
    x[0, 3, 5, 5] = value
    layer = q_layer(nn.Conv2d(8, 8, 1, groups=8))
    layer(x).backward(normal(1, 8, 16, 16, seed=1))
    assert layer.weight.grad.flatten().isnan().nonzero().tolist() == [[3]]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="takes a GPU")
def test_a16_side_streams_and_other_devices():
    device = torch.device("cuda", torch.cuda.device_count() - 1)
    layer = nn.Conv2d(8, 16, 3, device=device)
    x = normal(8, 8, 64, 64).to(device)
    gradients = step(layer, x)[1]
    with torch.cuda.stream(torch.cuda.Stream(device)):
        x = x * 1
        assert max(errors(gradients, step(q_layer(layer), x)[1])) <= EIGHT_BITS


LAYERS = [
    nn.Conv2d(8, 8, 3),
    nn.BatchNorm2d(8),
    nn.ReLU(),
    nn.GELU(),
    nn.MaxPool2d(2),
    nn.AvgPool2d(2),
    nn.AdaptiveAvgPool2d(3),
    nn.GroupNorm(2, 8),
    nn.LayerNorm((8, 8)),
    nn.RMSNorm((8, 8)),
    nn.Linear(8, 8),
    nn.ConvTranspose2d(8, 8, 3),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a17_expanded_gradients(layer):
    """As ``sum().backward()`` gives, here one a sample and channel: of one for all a norm has none to pass on."""
    found = []
    for module in (layer, q_layer(layer)):
        x = normal(4, 8, 8, 8).requires_grad_()
        module.zero_grad()
        output = module(x)
        output.backward(normal(4, 8, 1, 1, seed=1).expand_as(output))
        found.append([x.grad, *(p.grad for p in module.parameters())])
    for expected, value in zip(*found, strict=True):
        # What layer norms pass on is zero but for the errors of its terms, each of the size of one.
        assert (value - expected).norm() <= EIGHT_BITS * max(expected.norm(), expected.numel() ** 0.5)


def views():
    x = normal(4, 8, 8, 8)
    return {
        "channels-last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(2, 3),
        "permuted": normal(8, 8, 8, 8).permute(1, 0, 2, 3),
        "slice": normal(4, 8, 8, 16)[..., ::2],
        "expanded": normal(4, 8, 1, 8).expand(4, 8, 8, 8),
    }


@pytest.mark.parametrize("view", views())
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_a18_any_strides(layer, view):
    x = views()[view]
    (expected, gradients), (output, found) = step(layer, x), step(q_layer(layer), x)
    torch.testing.assert_close(output, expected)  # of a strided GELU torch computes the last places otherwise
    assert max(errors(gradients, found)) <= EIGHT_BITS


def test_a19_saved_through_autograd():
    """Twice with ``retain_graph``, in double backward, freed after backward, and watched for changes in place."""
    layer = q_layer(nn.Linear(64, 4))
    loss = layer(normal(8, 64)).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    x = normal(8, 64).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    gradient.square().sum().backward()
    loss = layer(x).sum()
    with torch.no_grad():
        layer.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a20_models_do_not_feel_each_other():
    """One in ``eval()`` while the other trains, at a level of its own."""
    first, second = (qmodules.QModule(nn.Sequential(nn.Linear(256, 8)), level) for level in ("L2", "L0"))
    x = normal(16, 256)
    before = kept_bytes(first(x), x)
    second.eval()
    qmodules.QModule(nn.Sequential(nn.Linear(4, 4)), "L3").eval()
    assert kept_bytes(first(x), x) == before < x.nbytes // 4
    first.eval()
    assert kept_bytes(second.train()(x), x) == 0  # torch's keeps x itself


class Calls(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a21_backward_is_torchs_operator_with_torchs_settings():
    """``allow_tf32`` and the like are read by it in forward and in backward, so they are the same."""
    output = q_layer(nn.Conv2d(3, 8, 3))(normal(2, 3, 8, 8).requires_grad_()).sum()
    with Calls() as calls:
        output.backward()
    assert "aten.convolution_backward.default" in calls.seen
    assert not any("cudnn" in name for name in calls.seen)


@pytest.mark.parametrize("batch", [1, 7, 10])
def test_a22_no_batch_is_cut_into_chunks(batch):
    with pytest.raises(AttributeError, match="config has no 'pipeline_threshold'"):
        qmodules.config.pipeline_threshold = 1
    layer, x = nn.Conv2d(4, 8, 3), normal(batch, 4, 8, 8)
    assert max(errors(step(layer, x)[1], step(q_layer(layer), x)[1])) <= EIGHT_BITS


def test_a23_levels_do_not_stick():
    for name in ("L0", "swap", "L4", "L1", "L3"):
        qmodules.set_optimization_level(name)
        qmodules.config.activation_compression_bits = [7]
        qmodules.config.use_gradient = True
    qmodules.set_optimization_level("L2")
    assert qmodules.config.level() == qmodules.LEVELS["L2"]
    with pytest.raises(AttributeError, match="debug_memory_op_forward"):
        qmodules.config.debug_memory_op_forward = True
    qmodules.set_optimization_level("L5")
    step(qmodules.QModule(nn.Sequential(nn.Linear(64, 8))), normal(8, 64))


def test_a24_subclasses_stay_and_all_of_torchs_layers_that_save_are_there():
    class Gained(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model = qmodules.QModule(nn.Sequential(Gained(4, 4), nn.Linear(4, 4)))
    assert [type(layer) for layer in model] == [Gained, qmodules.QLinear]
    assert type(qmodules.QModule(nn.Linear(4, 4))) is qmodules.QLinear
    others = [
        nn.SyncBatchNorm(4),
        nn.Dropout(),
        nn.LayerNorm(4),
        nn.GELU(),
        nn.MultiheadAttention(4, 2),
        nn.Embedding(4, 4),
    ]
    converted = qmodules.QModule(nn.Sequential(*others))
    assert [type(layer).__name__ for layer in converted] == [f"Q{type(layer).__name__}" for layer in others]


@pytest.mark.parametrize("group_size", [32, 96, 2048])
@pytest.mark.parametrize("bits", [3, 7])
def test_a25_any_group_size_and_width(group_size, bits):
    """An element is off by less than a step of a range that is at most that of all."""
    x = normal(64, 300)
    found = stored(x, bits, group_size=group_size)
    assert (found - x).abs().max() < (x.max() - x.min()) / (2**bits - 1)
    assert not torch.equal(found, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a26_autocast(dtype):
    layer, x = nn.Linear(256, 8), normal(16, 256)
    layers = [copy.deepcopy(layer), q_layer(layer, EIGHT)]
    with torch.autocast("cpu", dtype):
        expected, output = (module(x) for module in layers)
    assert output.dtype == dtype
    assert torch.equal(output, expected)


def test_a27_few_features_are_not_padded():
    """Linear(100): 100 bytes a row at 8 bits and two bounds for every 256 elements, and no zeros among them."""
    x = 5 + normal(64, 100)
    layer = q_layer(nn.Linear(100, 4))
    assert kept_bytes(layer(x), x) == 6400 + 25 * 8
    off = (stored(x) - x).abs().max()
    assert off < (x.max() - x.min()) / 255  # of zero to the largest, a step would be twice that
