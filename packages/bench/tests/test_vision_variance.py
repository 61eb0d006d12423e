"""``get_var``: the model of rounding's variance beside the measurement, for each kind of layer."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench.suites.vision.variance import Spread, ablation_levels, get_var
from integrations import qmodules

REPEATS = 16

# What the project promises of the prediction. A measured variance of 16 gradients of d elements that round
# independently scatters by sqrt(2 / 15 / d) of itself: less than 10 % for the 16 and more that each layer here has.
WITHIN = 2.0


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def smooth(*shape):
    """Images: neighbours are alike, and samples differ in contrast."""
    x = F.avg_pool2d(normal(shape[0], shape[1], shape[2] + 4, shape[3] + 4), 5, 1)
    return x * torch.logspace(-1, 0.3, shape[0]).view(-1, 1, 1, 1)


def closure_of(model, x):
    # Away from zero mean, so that ReLU's and the norms' inputs are of every kind.
    target = normal(*copy.deepcopy(model)(x).shape, seed=5)

    def closure():
        model.zero_grad()
        F.mse_loss(model(x), target).backward()

    return closure


def assert_predicted(model, x, level="L3", **options):
    torch.manual_seed(0)
    model = qmodules.QModule(model, level, **options)
    closure = closure_of(model, x)
    closure()
    result = get_var(model, closure, REPEATS)
    assert result.layers
    for layer in result.layers:
        ratio = layer.predicted / layer.measured
        assert 1 / WITHIN < ratio < WITHIN, (layer.name, layer.kind, ratio)
    return result


def conv_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 32, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(512, 16),
    )


@pytest.mark.parametrize("bits", [2, 4])
@pytest.mark.parametrize("level", ["L2", "L3"])
def test_a_small_residual_networks_layers(level, bits):
    result = assert_predicted(conv_net(), smooth(16, 3, 16, 16), level, bits=(bits,))
    assert {layer.kind for layer in result.layers} == {"QConv2d", "QBatchNorm2d", "QLinear"}
    assert len(result.layers) == 6


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 16, 3, padding=1, groups=4),
        nn.Conv2d(8, 16, 5, padding=2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Conv2d(8, 16, 3, padding=2, dilation=2),
        nn.ConvTranspose2d(8, 16, 4, stride=2, padding=1),
        nn.ConvTranspose2d(8, 16, 3, groups=2),
    ],
    ids=["groups", "wide", "stride", "dilation", "transposed", "transposed_groups"],
)
def test_convolutions(layer):
    assert_predicted(nn.Sequential(layer), smooth(8, 8, 16, 16).relu(), bits=(3,))


@pytest.mark.parametrize("shape", [(64, 128), (4, 32, 128), (32, 512)], ids=["2d", "tokens", "rows"])
def test_linear_layers(shape):
    assert_predicted(nn.Sequential(nn.Linear(shape[-1], 24)), normal(*shape), bits=(2,))


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.BatchNorm1d(64), (512, 64)),
        (nn.BatchNorm2d(16), (8, 16, 16, 16)),
        (nn.GroupNorm(4, 16), (8, 16, 16, 16)),
        (nn.LayerNorm(64), (8, 32, 64)),
        (nn.RMSNorm(64), (8, 32, 64)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_norms(norm, shape):
    """Inputs whose channels have different scales, between layers that pass a gradient on."""
    scales = torch.logspace(-0.5, 0.5, shape[1]).view(1, -1, *[1] * (len(shape) - 2))
    assert_predicted(nn.Sequential(norm), normal(*shape) * scales + 1, bits=(4,))


def test_bits_stay():
    model = qmodules.QModule(conv_net(), "L3")
    closure = closure_of(model, smooth(8, 3, 16, 16))
    closure()
    bits = [layer.precision.bits for layer in model.modules() if isinstance(layer, qmodules.QLayer)]
    get_var(model, closure, 2)
    assert [layer.precision.bits for layer in model.modules() if isinstance(layer, qmodules.QLayer)] == bits


def test_a_frozen_layer_is_not_measured():
    model = qmodules.QModule(conv_net(), "L3")
    model[3].weight.requires_grad_(False)
    result = get_var(model, closure_of(model, smooth(8, 3, 16, 16)), 2)
    assert [layer.name for layer in result.layers] == ["0", "1", "4", "6", "10"]


def test_the_whole_gradients_variance_and_bias():
    """Against gradients taken one by one."""
    model = qmodules.QModule(conv_net(), "L2", bits=(2,))
    closure = closure_of(model, smooth(8, 3, 16, 16))
    result = get_var(model, closure, REPEATS)
    drawn = []
    for _ in range(REPEATS):
        closure()
        drawn.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]).double())
    # The same noise: what get_var has drawn is drawn again.
    expected = torch.stack(drawn).var(0).sum().item()
    assert result.variance == pytest.approx(expected, rel=1e-5)
    assert result.bias < result.variance
    assert sum(layer.total for layer in result.layers) == pytest.approx(result.variance, rel=1e-3)


def test_a_layers_own_variance_is_not_that_of_layers_above():
    """The first convolution's gradient has the norms' error, too, where all round."""
    first = assert_predicted(conv_net(), smooth(16, 3, 16, 16), "L2", bits=(2,)).layers[0]
    # Of 432 elements, 16 gradients each: the variances scatter by 2 %.
    assert first.total > 1.1 * first.measured


def test_a_model_under_autocast():
    model = qmodules.QModule(conv_net(), "L3")
    x = smooth(8, 3, 16, 16)
    target = normal(8, 16)

    def closure():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x).float(), target)
        loss.backward()

    closure()
    for layer in get_var(model, closure, REPEATS).layers:
        assert 1 / WITHIN < layer.predicted / layer.measured < WITHIN, layer


def test_bad_calls():
    model = qmodules.QModule(conv_net(), "L3")
    closure = closure_of(model, smooth(4, 3, 16, 16))
    with pytest.raises(ValueError, match="repeats must be 2 or more, got 1"):
        get_var(model, closure, 1)
    with pytest.raises(ValueError, match="model must have layers that round their input"):
        get_var(conv_net(), closure)
    with pytest.raises(ValueError, match="model must have layers that round their input"):
        get_var(qmodules.QModule(conv_net(), "L0"), closure)
    with pytest.raises(RuntimeError, match="closure must run a forward of the model"):
        get_var(model, lambda: None)
    model.eval()
    with pytest.raises(RuntimeError, match=r"in train\(\) mode"):
        get_var(model, closure)


def test_actnns_ablation_has_its_order():
    """Per tensor > per group > + per sample > + per layer (Chen et al., ICML 2021), after some steps of training. The
    smallest of these factors is 1.2; the whole gradient's variance of 16 draws is known to a few percent."""
    model = conv_net()
    x = smooth(16, 3, 16, 16)
    target = normal(16, 16, seed=5)

    def step(of):
        of.zero_grad()
        F.mse_loss(of(x), target).backward()

    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(10):
        step(model)
        optimizer.step()
    variances = []
    for level in ablation_levels(2).values():
        converted = qmodules.QModule(copy.deepcopy(model), level)
        for _ in range(2):  # in which layers get their bits
            step(converted)
        variances.append(get_var(converted, partial(step, converted), REPEATS).variance)
    assert list(ablation_levels(2)) == ["per tensor", "per group", "+ per sample", "+ per layer"]
    assert variances == sorted(variances, reverse=True), variances


def test_spread_of_small_variances():
    """A relative variance of 1e-14 is lost in sums of squares of float32, and of float64 nearly; not in differences."""
    torch.manual_seed(0)
    base = torch.randn(1000)
    drawn = [base.double() + 1e-7 * torch.randn(1000, dtype=torch.float64) for _ in range(10)]
    spread = Spread()
    for gradient in drawn:
        spread.add(gradient, base.double())
    assert spread.variance == pytest.approx(torch.stack(drawn).var(0).sum().item(), rel=1e-9)
    assert Spread().variance == Spread().bias == 0


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_a_hook_computes():
    """``weight_norm``'s has a graph between the layer's parameters and the layer, which is gone through again for each
    repeat, and once more by the model's own backward."""
    torch.manual_seed(0)
    layer = torch.nn.utils.weight_norm(nn.Linear(256, 8))
    model = qmodules.QModule(nn.Sequential(layer, nn.ReLU(), nn.Linear(8, 4)), "L2")
    x = normal(16, 256)
    result = get_var(model, lambda: model(x).square().sum().backward(), repeats=2)
    assert [found.name for found in result.layers] == ["0", "2"]
    assert result.layers[0].measured > 0
