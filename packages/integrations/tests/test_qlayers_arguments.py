"""Arguments and inputs of Q-layers at the edges: in place, complex, empty, and what torch refuses."""

import pytest
import torch
from torch import nn

from integrations.qmodules import LEVELS

from .nets import EIGHT_BITS, normal
from .qnets import errors, q_layer, step

IMAGES, SIGNALS = normal(4, 8, 12, 12), normal(4, 8, 40)


@pytest.mark.parametrize("layer", [nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.SiLU(True), nn.Dropout(0.5, True)])
def test_in_place_layers_write_where_torchs_do(layer):
    x = normal(30, 40)
    leaf = x.clone().requires_grad_()
    inside = leaf * 1
    output = q_layer(layer, LEVELS["L3"])(inside)
    assert output.data_ptr() == inside.data_ptr()
    output.sum().backward()
    assert leaf.grad is not None
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        q_layer(layer)(x.clone().requires_grad_())


@pytest.mark.parametrize("layer", [nn.ReLU(True), nn.LeakyReLU(0.1, True), nn.SiLU(True), nn.Dropout(0.0, True)])
def test_in_place_on_a_view_the_rest_of_the_tensor_keeps_its_gradient(layer):
    found = []
    for module in (layer, q_layer(layer)):
        leaf = normal(8, 64).requires_grad_()
        whole = leaf * 1
        module(whole[2:5])
        (whole * normal(8, 64, seed=9)).sum().backward()
        found.append((whole.detach(), leaf.grad))
    (expected, gradient), (output, other) = found
    assert torch.equal(output, expected)
    assert torch.equal(other[:2], gradient[:2])
    assert torch.equal(other[5:], gradient[5:])
    assert errors([gradient[2:5]], [other[2:5]])[0] <= EIGHT_BITS


@pytest.mark.parametrize("level", ["L2", "L3", "swap"])
@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (nn.Linear(64, 4, dtype=torch.complex64), normal(8, 64, dtype=torch.complex64)),
        (nn.Conv2d(8, 4, 3, dtype=torch.complex64), normal(2, 8, 12, 12, dtype=torch.complex64)),
    ],
    ids=["linear", "conv"],
)
def test_complex_layers_are_torchs(layer, x, level):
    found = []
    for module in (layer, q_layer(layer, LEVELS[level])):
        given = x.clone().requires_grad_()
        output = module(given)
        gradients = torch.autograd.grad(output.real.sum() + output.imag.square().sum(), [given, *module.parameters()])
        found.append([output, *gradients])
    assert all(map(torch.equal, *found))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("shape", [(0, 5), (4, 0), (2, 0, 5), (2, 3, 0)])
@pytest.mark.parametrize("features", [0, 3])
def test_linear_layers_without_samples_or_features(shape, features):
    layer, x = nn.Linear(shape[-1], features), normal(*shape)
    (expected, gradients), (output, found) = step(layer, x), step(q_layer(layer), x)
    assert torch.equal(output, expected)
    assert all(map(torch.equal, gradients, found))


REFUSED = [
    (nn.Conv2d(8, 16, 3), IMAGES[0, 0]),
    (nn.Conv2d(8, 16, 3), IMAGES[:, :4]),
    (nn.Conv2d(8, 16, 3), IMAGES.double()),
    (nn.Conv2d(8, 16, 13), IMAGES),
    (nn.Conv2d(8, 16, 3, padding=12, padding_mode="reflect"), IMAGES),
    (nn.ConvTranspose2d(8, 16, 3, output_padding=1), IMAGES),
    (nn.Linear(64, 16), IMAGES),
    (nn.Linear(12, 16), IMAGES.double()),
    (nn.BatchNorm2d(4), IMAGES),
    (nn.BatchNorm2d(8), SIGNALS),
    (nn.BatchNorm1d(8), normal(1, 8)),
    (nn.LayerNorm(10), IMAGES),
    (nn.GroupNorm(2, 4), IMAGES),
    (nn.RMSNorm(10), IMAGES),
    (nn.MaxPool2d(2, padding=2), IMAGES),
    (nn.MaxPool2d(13), IMAGES),
    (nn.MaxPool2d((2, 2, 2)), IMAGES),
    (nn.MaxPool1d(3), IMAGES),
    (nn.AvgPool2d(2, padding=2), IMAGES),
    (nn.AvgPool2d(13), IMAGES),
    (nn.AvgPool2d((2, 2, 2)), IMAGES),
    (nn.AdaptiveAvgPool2d((3,)), IMAGES),
    (nn.AdaptiveAvgPool2d(3), normal(3, 4)),
    (nn.Embedding(5, 3), torch.arange(9)),
]


@pytest.mark.parametrize(("layer", "x"), REFUSED, ids=lambda value: str(getattr(value, "shape", value)))
def test_what_torch_refuses_is_refused_in_torchs_words(layer, x):
    with pytest.raises(Exception) as expected:  # noqa: PT011  # torch's choice
        step(layer, x)
    with pytest.raises(expected.type) as found:
        step(q_layer(layer), x)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("layer", [nn.Linear(12, 4), nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)])
def test_tensors_of_inference_mode_get_torchs_own_answer(layer):
    """They have no version counter, which was all that our error said."""
    with torch.inference_mode():
        x = IMAGES * 1
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        q_layer(layer)(x)
