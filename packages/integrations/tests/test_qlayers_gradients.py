"""Every Q-layer beside the layer of torch that it replaces, for every argument that the layer takes."""

import pytest
import torch
from torch import nn

from integrations.qmodules import LEVELS

from .nets import EIGHT_BITS, normal
from .qnets import errors, q_layer, step

CONV1 = [{}, {"stride": 2, "padding": 1}, {"padding": 2, "dilation": 2}, {"groups": 4, "bias": False}]
CONV2 = [
    {},
    {"stride": (2, 1), "padding": (1, 0)},
    {"dilation": (1, 2), "padding": "same"},
    {"padding": "valid"},
    {"padding": 1, "padding_mode": "reflect"},
    {"padding": (2, 1), "padding_mode": "replicate"},
    {"padding": (1, 2), "padding_mode": "circular"},
    {"padding": "same", "padding_mode": "reflect"},
    {"groups": 8},
    {"groups": 2, "bias": False, "stride": 2},
]
CONV3 = [{"padding": 1}, {"stride": 2, "groups": 2, "bias": False}, {"padding": 1, "padding_mode": "replicate"}]
TRANSPOSED = [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"dilation": 2, "groups": 2, "bias": False}]

IMAGES, VOLUMES, SIGNALS = normal(4, 8, 12, 12), normal(2, 8, 6, 7, 6), normal(4, 8, 40)
LAST = IMAGES.contiguous(memory_format=torch.channels_last)


def seeded(layer, *args, **kwargs):
    torch.manual_seed(1)
    made = layer(*args, **kwargs)
    for number, parameter in enumerate(made.parameters()):  # norms begin with ones and zeros
        parameter.data += normal(*parameter.shape, seed=number) / 4
    return made


LINEAR = [
    *((seeded(nn.Conv1d, 8, 16, 3, **options), SIGNALS) for options in CONV1),
    *((seeded(nn.Conv2d, 8, 16, 3, **options), IMAGES) for options in CONV2),
    *((seeded(nn.Conv3d, 8, 16, 3, **options), VOLUMES) for options in CONV3),
    *((seeded(nn.ConvTranspose1d, 8, 16, 3, **options), SIGNALS) for options in TRANSPOSED),
    *((seeded(nn.ConvTranspose2d, 8, 16, 3, **options), IMAGES) for options in TRANSPOSED),
    *((seeded(nn.ConvTranspose3d, 8, 16, 3, **options), VOLUMES) for options in TRANSPOSED),
    (seeded(nn.Conv2d, 8, 16, (4, 2), padding="same", dilation=(1, 3)), IMAGES),  # one place more at one side
    (seeded(nn.Conv2d, 8, 16, 3), IMAGES[:1]),
    (seeded(nn.Conv2d, 8, 16, 3), IMAGES[0]),
    (seeded(nn.Conv2d, 8, 16, 3, padding=1), LAST),
    (seeded(nn.Conv1d, 8, 16, 3, padding="same"), SIGNALS[0]),
    (seeded(nn.ConvTranspose2d, 8, 16, 3), IMAGES[0]),
    *((seeded(nn.Linear, 64, 16), normal(*shape, 64)) for shape in [(), (16,), (4, 9), (2, 3, 5), (2, 3, 2, 2)]),
    (seeded(nn.Linear, 100, 16, bias=False), normal(1, 100)),
    (seeded(nn.Linear, 64, 16), normal(64, 9).t()),
]
NORMS = [
    (seeded(nn.BatchNorm1d, 8), SIGNALS),
    (seeded(nn.BatchNorm1d, 64), normal(20, 64)),
    (seeded(nn.BatchNorm2d, 8), IMAGES),
    (seeded(nn.BatchNorm2d, 8), LAST),
    (seeded(nn.BatchNorm2d, 8), IMAGES[:1]),
    (seeded(nn.BatchNorm2d, 8, affine=False), IMAGES),
    (seeded(nn.BatchNorm2d, 8, track_running_stats=False), IMAGES),
    (seeded(nn.BatchNorm2d, 8, momentum=None, eps=0.1), IMAGES),
    (seeded(nn.BatchNorm3d, 8), VOLUMES),
    (seeded(nn.SyncBatchNorm, 8), IMAGES),  # of one process
    (seeded(nn.LayerNorm, 12), IMAGES),
    (seeded(nn.LayerNorm, (12, 12), bias=False), IMAGES),
    (seeded(nn.LayerNorm, 64, elementwise_affine=False), normal(9, 64)),
    (seeded(nn.GroupNorm, 2, 8), IMAGES),
    (seeded(nn.GroupNorm, 4, 8), LAST),
    (seeded(nn.GroupNorm, 8, 8, affine=False), SIGNALS),
    (seeded(nn.GroupNorm, 1, 8), VOLUMES),
    (seeded(nn.RMSNorm, 12), IMAGES),
    (seeded(nn.RMSNorm, (12, 12), eps=0.1, elementwise_affine=False), IMAGES),
]
SMOOTH = [(nn.GELU(), IMAGES), (nn.GELU("tanh"), LAST), (nn.SiLU(), VOLUMES), (nn.GELU(), IMAGES * 4)]
EXACT = [
    (nn.ReLU(), IMAGES),
    (nn.ReLU(), LAST),
    (nn.LeakyReLU(), IMAGES.round(decimals=1)),  # with zeros
    (nn.LeakyReLU(-0.5), VOLUMES),
    (nn.LeakyReLU(0.3), SIGNALS.double().round(decimals=1)),
    (nn.MaxPool1d(3), SIGNALS),
    (nn.MaxPool1d(4, 2, padding=1, dilation=2), SIGNALS[0]),
    (nn.MaxPool2d(2), IMAGES),  # without a stride
    (nn.MaxPool2d((3, 2), (2, 3), padding=1, dilation=(1, 2), ceil_mode=True), IMAGES),
    (nn.MaxPool2d(5, 1), LAST),
    (nn.MaxPool3d(2, padding=1), VOLUMES),
    (nn.MaxPool1d([3]), SIGNALS),
    (nn.MaxPool2d([3, 2], stride=[2]), IMAGES),
    (nn.MaxPool2d((17,), 1, padding=8), IMAGES),  # 289 places, and torch's own
    (nn.AvgPool2d([2, 3], padding=[1, 0]), IMAGES),
    (nn.AvgPool2d((2,)), IMAGES),
    (nn.AdaptiveAvgPool2d([3, 2]), IMAGES),
    (nn.AdaptiveAvgPool2d([1, 1]), IMAGES),
    (nn.AvgPool2d(2), IMAGES),
    (nn.AvgPool2d((3, 2), (2, 1), padding=1, ceil_mode=True, count_include_pad=False), LAST),
    (nn.AvgPool2d(3, divisor_override=2), IMAGES[0]),
    (nn.AdaptiveAvgPool2d((3, None)), IMAGES),
    (nn.AdaptiveAvgPool2d(5), LAST),
    (nn.AdaptiveAvgPool2d(1), IMAGES[0]),
    (seeded(nn.Embedding, 50, 7, padding_idx=3), torch.arange(200).view(8, 25) % 50),
    (seeded(nn.Embedding, 300, 7, scale_grad_by_freq=True), torch.arange(60) // 3),
    (seeded(nn.Embedding, 50, 7, max_norm=1.0), torch.arange(40)),
]


def name(case):
    layer, x = case
    return f"{layer} {'x'.join(map(str, x.shape))}{'' if x.is_contiguous() else ' strided'}"


def get_bits(values):
    """For a comparison in which NaN and the zeros' signs count."""
    return values.contiguous().view(torch.int64 if values.dtype == torch.float64 else torch.int32)


@pytest.mark.parametrize(("layer", "x"), LINEAR + NORMS + SMOOTH, ids=map(name, LINEAR + NORMS + SMOOTH))
def test_at_8_bits_the_values_are_torchs_and_the_gradients_close(layer, x):
    expected, gradients = step(layer, x)
    output, found = step(q_layer(layer), x)
    assert torch.equal(output, expected)
    assert output.stride() == expected.stride()
    assert max(errors(gradients, found)) <= EIGHT_BITS
    assert [gradient.dtype for gradient in found] == [gradient.dtype for gradient in gradients]
    rounded = [not torch.equal(a, b) for a, b in zip(gradients, found, strict=True)]
    assert any(rounded) or x.numel() < 100  # so it is not torch's own layer that ran


# But for the last, of whose gradient torch orders the sums by the input's strides.
@pytest.mark.parametrize(("layer", "x"), LINEAR[:-1], ids=map(name, LINEAR[:-1]))
def test_of_linear_layers_only_the_weights_gradient_is_rounded(layer, x):
    (_, (to_x, _, *to_bias)), (_, (found, _, *bias)) = step(layer, x), step(q_layer(layer), x)
    assert torch.equal(found, to_x)
    assert all(map(torch.equal, bias, to_bias))


@pytest.mark.parametrize(("layer", "x"), EXACT, ids=map(name, EXACT))
def test_what_needs_no_rounding_is_torchs_bit_for_bit(layer, x):
    expected, gradients = step(layer, x)
    output, found = step(q_layer(layer, LEVELS["L3"]), x)
    for a, b in zip([expected, *gradients], [output, *found], strict=True):
        assert torch.equal(get_bits(a), get_bits(b))
        assert a.stride() == b.stride()


ALL = [*LINEAR[::4], *NORMS[::3], *SMOOTH, *EXACT[::3], (nn.Dropout(0.4), IMAGES)]


@pytest.mark.parametrize(("layer", "x"), ALL, ids=map(name, ALL))
@pytest.mark.parametrize("way", ["L0", "eval"])
def test_at_l0_and_in_eval_it_is_torchs_layer(layer, x, way):
    plain, layer = (q_layer(layer).to_module(), q_layer(layer, LEVELS["L0" if way == "L0" else "L3"]))
    plain.train(way == "L0")
    layer.train(way == "L0")
    (expected, gradients), (output, found) = step(plain, x), step(layer, x)
    assert torch.equal(output, expected)
    assert all(map(torch.equal, gradients, found))
    if layer.training:
        assert all(map(torch.equal, plain.buffers(), layer.buffers()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("layer", "x"), [LINEAR[4], LINEAR[-6], NORMS[2], NORMS[10], NORMS[17]], ids=lambda value: type(value).__name__
)
def test_other_dtypes(layer, x, dtype):
    """bfloat16 itself rounds to 2**-9 of a value, and a group's bounds with it; twice the error covers that."""
    layer, x = q_layer(layer).to_module().to(dtype), x.to(dtype)
    (expected, gradients), (output, found) = step(layer, x), step(q_layer(layer), x)
    assert torch.equal(output, expected)
    assert max(errors(gradients, found)) <= EIGHT_BITS * (2 if dtype == torch.bfloat16 else 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_rms_norms_default_eps_is_that_of_the_dtype_torch_computes_in(dtype):
    """The mean square is below every eps; that of bfloat16 is 65,536 times float32's. See test_other_dtypes."""
    layer, x = nn.RMSNorm(64, dtype=dtype), (normal(16, 64) * 1e-4).to(dtype)
    (expected, gradients), (output, found) = step(layer, x), step(q_layer(layer), x)
    assert torch.equal(output, expected)
    assert max(errors(gradients, found)) <= 2 * EIGHT_BITS


@pytest.mark.parametrize(("layer", "x"), [*LINEAR[4:14], *NORMS[:3]], ids=map(name, [*LINEAR[4:14], *NORMS[:3]]))
def test_a_frozen_layer_and_a_frozen_input(layer, x):
    """Of a frozen layer the gradient of the input is left, and a frozen input leaves that of the weight."""
    plain, layer = q_layer(layer).to_module(), q_layer(layer)
    for module in (plain, layer):
        module.requires_grad_(False)
    given = [x.clone().requires_grad_() for _ in range(2)]
    found = [torch.autograd.grad(random_sum(m(v)), v)[0] for m, v in zip((plain, layer), given, strict=True)]
    assert errors(*([gradient] for gradient in found))[0] <= EIGHT_BITS
    for module in (plain, layer):
        module.requires_grad_()
        random_sum(module(x)).backward()
    gradients = [[p.grad for p in module.parameters()] for module in (plain, layer)]
    assert max(errors(*gradients)) <= EIGHT_BITS
    assert all(map(torch.equal, plain.buffers(), layer.buffers()))


@pytest.mark.parametrize("layer", [nn.LayerNorm(12), nn.GroupNorm(8, 8)])
def test_the_part_of_a_gradient_that_a_norm_takes_away_stays_away(layer):
    """A constant, a hundred times as large as the rest. With statistics that are not the stored input's, 100 times the
    mean of the elements' errors would be left of it, as large as all else."""
    found = []
    for module in (layer, q_layer(layer)):
        x = IMAGES.clone().requires_grad_()
        output = module(x)
        output.backward(100 + normal(*output.shape, seed=1))
        found.append([x.grad])
    assert errors(*found)[0] <= EIGHT_BITS


def random_sum(output):
    return (output * normal(*output.shape, seed=9)).sum()


def test_dropout_keeps_its_mean_and_passes_gradients_where_it_kept():
    layer, x = q_layer(nn.Dropout(0.25), LEVELS["L3"]), torch.ones(1 << 16, requires_grad=True)
    torch.manual_seed(0)
    output = layer(x)
    output.sum().backward()
    assert torch.equal(x.grad, output.detach())
    kept = (output != 0).double().mean().item()
    assert abs(kept - 0.75) < 5 * (0.75 * 0.25 / (1 << 16)) ** 0.5  # 5 standard deviations of a binomial rate
    torch.manual_seed(0)
    assert torch.equal(layer(x), output)


@pytest.mark.parametrize("options", [{}, {"batch_first": True, "dropout": 0.2}, {"kdim": 24, "vdim": 24}])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention(options, need_weights):
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(64, 4, **options)
    inputs = [normal(12, 10, 64)] + [normal(12, 10, 24, seed=seed) for seed in (1, 2) if "kdim" in options]
    mask = nn.Transformer.generate_square_subsequent_mask(10 if "batch_first" in options else 12)

    class Joined(nn.Module):
        """Output and weights as one tensor."""

        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def forward(self, query, key=None, value=None):
            key, value = (query if other is None else other for other in (key, value))
            output, weights = self.attention(query, key, value, need_weights=need_weights, attn_mask=mask)
            return output if weights is None else torch.cat([output.flatten(), weights.flatten()])

    (expected, gradients), (output, found) = (step(Joined(m), *inputs) for m in (layer, q_layer(layer)))
    assert torch.equal(output, expected)
    # Those of the projections' weights have the errors of their inputs, and of query, key and value.
    assert max(errors(gradients, found)) <= 2 * EIGHT_BITS
