"""Gradients that carry rounding noise: unbiased, and as noisy as the codec says, not more.

The parameter gradient of an operator that is linear in its saved input x is ``sum_n c_n x_n`` for every element, with
coefficients c that no rounding touches. Stored in b bits, x_n is rounded at random to a neighbour on its group's grid,
independently of the others. With position t = (x - low) / step, of which a random byte decides (so t counts in 1/256),
and fraction f of t:

* mean: low + step * t, off by at most step / 512;
* variance: f (1 - f) step**2.

So the gradient's mean is ``gradient(mean)`` and its variance ``gradient(variance)`` with c squared.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import integrations

from .nets import Net, normal

DRAWS = 400
Z = 6  # exceeded by a normal deviate once in 5e8; a test compares at most 4096


def rounding(x, bits, group_size=256):
    """Mean, variance and half a random byte's step of each element, in float64."""
    flat = x.detach().double().reshape(-1)
    padded = torch.cat([flat, flat[-1:].expand(-flat.numel() % group_size)]).view(-1, group_size)
    low, high = padded.amin(1, keepdim=True), padded.amax(1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    position = ((padded - low) / step * 256).round() / 256
    fraction = position - position.floor()
    values = low + step * position, fraction * (1 - fraction) * step**2, (step / 512).expand_as(padded)
    return [value.reshape(-1)[: flat.numel()].view_as(x) for value in values]


def draws(model, x, upstream):
    """The parameter's gradient in many steps of one model: float64[draws, ...]."""
    [parameter] = model.parameters()
    found = torch.empty(DRAWS, *parameter.shape, dtype=torch.float64)
    for draw in found:
        parameter.grad = None
        model(x).backward(upstream)
        draw.copy_(parameter.grad)
    return found


def assert_as_predicted(found, exact, predicted, independent):
    """``predicted``: mean, variance and bias bound of the gradient. ``independent``: how many of its elements have
    noise of their own; the others only repeat it."""
    mean, variance, bias = predicted
    standard_error = (variance / DRAWS).sqrt()
    # float32 sums of the gradient itself: N terms, each rounded, off by at most N * eps / 2 of their absolute sum; the
    # absolute sum is below 8 standard deviations per sqrt(N) here, so 1e-4 of the gradient's scale is far above it.
    arithmetic = 1e-4 * exact.abs().max()
    assert ((found.mean(0) - mean).abs() <= Z * standard_error + arithmetic).all(), "the mean is not the predicted one"
    assert ((found.mean(0) - exact).abs() <= bias + Z * standard_error + arithmetic).all(), "biased"
    # A sample variance of D near-normal draws has relative standard deviation sqrt(2 / (D - 1)).
    ratio = (found.var(0) / variance).mean().item()
    tolerance = Z * math.sqrt(2 / (DRAWS - 1) / independent)
    assert abs(ratio - 1) <= tolerance, f"measured / predicted variance is {ratio:.3f}, expected 1 +- {tolerance:.3f}"


def conv_weight(x, g):
    return torch.nn.grad.conv2d_weight(x, (8, 4, 3, 3), g, padding=1)


# name: forward on an activation h, the parameter's shape, h's shape, the gradient from (h, upstream), independent noise
LINEAR_OPERATORS = {
    "linear": (F.linear, (16, 32), (128, 32), lambda x, g: g.T @ x, 32),
    "linear on sequences": (F.linear, (16, 32), (4, 32, 32), lambda x, g: torch.einsum("bno,bni->oi", g, x), 32),
    "matmul": (torch.matmul, (32, 16), (128, 32), lambda x, g: x.T @ g, 32),
    "operator @": (lambda h, w: h @ w, (32, 16), (128, 32), lambda x, g: x.T @ g, 32),
    "matmul from the right": (lambda h, w: w @ h, (16, 128), (128, 32), lambda x, g: g @ x.T, 128),
    "bmm": (torch.bmm, (4, 32, 8), (4, 64, 32), lambda x, g: x.mT @ g, 128),
    "addmm": (lambda h, w: torch.addmm(torch.zeros(16), h, w), (32, 16), (128, 32), lambda x, g: x.T @ g, 32),
    "einsum": (lambda h, w: torch.einsum("ni,io->no", h, w), (32, 16), (128, 32), lambda x, g: x.T @ g, 32),
    "conv2d": (lambda h, w: F.conv2d(h, w, padding=1), (8, 4, 3, 3), (4, 4, 12, 12), conv_weight, 4),
}


CASES = [(name, "L1", 4) for name in LINEAR_OPERATORS] + [("linear", "L1.1", 8), ("conv2d", "L1.2", 2)]


@pytest.mark.parametrize(("name", "level", "bits"), CASES)
def test_weight_gradients_of_linear_operators(name, level, bits):
    operator, shape, input_shape, gradient, independent = LINEAR_OPERATORS[name]
    model = Net(lambda self, x: operator(x.clone(), self.weight), weight=normal(*shape, seed=1))
    x = normal(*input_shape) + 3
    upstream = normal(*model(x).shape, seed=2)
    integrations.compress_model(model, level)

    found = draws(model, x, upstream)
    mean, variance, bias = rounding(x, bits, 128 if bits <= 4 else 256)
    g = upstream.double()
    predicted = gradient(mean, g), gradient(variance, g**2), gradient(bias, g.abs())
    assert_as_predicted(found, gradient(x.double(), g), predicted, independent)


@pytest.mark.parametrize("group_size", [32, 64, 1024])
def test_smaller_groups_make_smaller_noise(group_size):
    """The option reaches the codec: the noise is that of the group size asked for."""
    model = Net(lambda self, x: F.linear(x.clone(), self.weight), weight=normal(16, 32))
    x, upstream = normal(128, 32, seed=1), normal(128, 16, seed=2)
    integrations.compress_model(model, "L1", group_size=group_size)
    mean, variance, bias = rounding(x, 4, group_size)
    g = upstream.double()
    predicted = g.T @ mean, g.T**2 @ variance, g.T.abs() @ bias
    assert_as_predicted(draws(model, x, upstream), g.T @ x.double(), predicted, 32)


@pytest.mark.parametrize(("level", "bits"), [("L1", 8), ("L1.2", 4)])
def test_a_product_keeps_product_bits(level, bits):
    model = Net(lambda self, x: x.clone() * self.weight, weight=normal(256))
    x, upstream = normal(32, 256, seed=1), normal(32, 256, seed=2)
    integrations.compress_model(model, level)
    mean, variance, bias = rounding(x, bits)
    g = upstream.double()
    predicted = (g * mean).sum(0), (g**2 * variance).sum(0), (g.abs() * bias).sum(0)
    assert_as_predicted(draws(model, x, upstream), (g * x).sum(0), predicted, 256)


@pytest.mark.parametrize("level", ["L1", "L1.2"])
def test_a_norm_keeps_eight_bits_and_its_statistics(level):
    """With mean and 1/std kept exactly, the scale's gradient is linear in x: coefficients g * rstd, offset by -mean."""
    model = Net(lambda self, x: F.layer_norm(x.clone(), (64,), self.weight), weight=normal(64))
    x, upstream = normal(128, 64, seed=1), normal(128, 64, seed=2)
    integrations.compress_model(model, level)
    rstd = (x.double().var(1, correction=0, keepdim=True) + 1e-5).rsqrt()
    mean, variance, bias = rounding(x, 8, group_size=64)  # a row
    g = upstream.double() * rstd
    center = x.double().mean(1, keepdim=True)
    exact = (g * (x - center)).sum(0)
    predicted = (g * (mean - center)).sum(0), (g**2 * variance).sum(0), (g.abs() * bias).sum(0)
    assert_as_predicted(draws(model, x, upstream), exact, predicted, 64)


def test_a_bias_and_what_lies_below_get_exact_gradients():
    """A linear layer's rounded input enters only its own weight's gradient."""
    weights = {f"w{i}": normal(64, 64, seed=i) / 8 for i in range(3)} | {"bias": normal(64, seed=9)}

    def forward(self, x):
        h = F.linear(x, self.w0)
        h = F.linear(h, self.w1, self.bias)
        return F.linear(h, self.w2)

    gradients = {}
    for level in ("L0", "L1.2"):
        model = integrations.compress_model(Net(forward, **weights), level)
        model(normal(32, 64, seed=5)).sum().backward()
        gradients[level] = {name: p.grad for name, p in model.named_parameters()}
    for name, same in (("w0", True), ("bias", True), ("w1", False), ("w2", False)):
        assert torch.equal(gradients["L0"][name], gradients["L1.2"][name]) is same, name


# ---- slopes ----

# name: operator, what of its input is saved, the gradient's factor; squares have a norm's 8 bits at L1.2, too
PROPORTIONAL = {
    "square": (torch.square, lambda h: h, 2),
    "power of 2": (lambda h: h**2, lambda h: h, 2),
    "exp": (torch.exp, torch.exp, 1),
    "exp2": (torch.exp2, torch.exp2, math.log(2)),
}


SLOPES = [(name, "L1", 8) for name in PROPORTIONAL] + [(name, "L1.2", 4) for name in ("exp", "exp2")]


@pytest.mark.parametrize(("name", "level", "bits"), [*SLOPES, ("square", "L1.2", 8)])
def test_a_slope_proportional_to_what_is_saved_is_unbiased(name, level, bits):
    operator, saved, factor = PROPORTIONAL[name]
    model = Net(lambda self, x: operator(x + self.offset), offset=torch.zeros(256))
    x, upstream = normal(32, 256, seed=1), normal(32, 256, seed=2)
    integrations.compress_model(model, level)
    mean, variance, bias = rounding(saved(x), bits)
    g = factor * upstream.double()
    predicted = (g * mean).sum(0), (g**2 * variance).sum(0), (g.abs() * bias).sum(0)
    assert_as_predicted(draws(model, x, upstream), (g * saved(x)).sum(0), predicted, 256)


@pytest.mark.parametrize("scale", [1, 8])
def test_softmaxs_gradient_is_off_by_the_roundings_variance(scale):
    """dx = y (g - sum(g y)) has one term that is quadratic in one rounding: the mean is off by -g var(y)."""
    model = Net(lambda self, x: F.softmax(x + self.offset, -1), offset=torch.zeros(8, 256))
    x, upstream = scale * normal(8, 256, seed=1), normal(8, 256, seed=2)
    integrations.compress_model(model, "L1")
    y, g = x.softmax(-1), upstream.double()
    mean, variance, _ = rounding(y, 8)
    predicted = mean * (g - (g * mean).sum(1, keepdim=True)) - g * variance
    found = draws(model, x, upstream)
    standard_error = found.std(0) / math.sqrt(DRAWS)
    # A rounding that happened in no draw has no spread: an element within 1 / DRAWS of a step may be off by as much.
    unseen = (g.abs() + g.abs().max()) * 2 / DRAWS * (y.amax(1, keepdim=True) - y.amin(1, keepdim=True)) / 255
    assert ((found.mean(0) - predicted).abs() <= Z * standard_error + Z * unseen + 1e-6).all()


@pytest.mark.parametrize("operator", [F.gelu, F.silu, F.softplus])
def test_a_smooth_slopes_bias_is_second_order(operator):
    """Taylor: slope(x + d) = slope + change d + curvature d**2 / 2, and the mean of d is 0, of d**2 the variance."""
    model = Net(lambda self, x: operator(x + self.offset), offset=torch.zeros(8, 256))
    x = 2 * normal(8, 256, seed=1)
    integrations.compress_model(model, "L1", pointwise_bits=4)
    grid = torch.arange(-10, 10, 1e-2, dtype=torch.float64, requires_grad=True)
    values = operator(grid)
    derivatives = []
    for _ in range(3):
        [values] = torch.autograd.grad(values.sum(), grid, create_graph=True)
        derivatives.append(values.abs().max().item())
    _, change, curvature = derivatives
    _, variance, bias = rounding(x.clamp(-5, 5) if operator is F.gelu else x, 4)
    [exact] = torch.autograd.grad(operator(h := x.double().requires_grad_()).sum(), h)
    found = draws(model, x, torch.ones(8, 256)).mean(0)
    bound = curvature * variance / 2 + change * (bias + Z * (variance / DRAWS).sqrt())
    # Roundings of probability below 1 / DRAWS may not have happened: as far as they weigh, they move less than this.
    step = bias * 512
    assert ((found - exact).abs() <= bound + change * Z * step / DRAWS + 2e-4).all()


@pytest.mark.parametrize("exponent", [2, 2.5, 3, 4])
def test_the_slope_of_a_power_is_that_within_a_step(exponent):
    """No element moves by a step, so its slope is one that the power has within a step of it: up to the arithmetic, of
    which a power takes a few roundings."""
    h = normal(32, 256, seed=1).abs() + 0.5
    model = Net(lambda self, zero: (self.w + zero) ** exponent, w=h)
    integrations.compress_model(model, "L1.1")
    model(torch.zeros(())).sum().backward()
    step = (h.view(-1, 256).amax(1) - h.view(-1, 256).amin(1)).view(32, 1) / 255
    low, high = (exponent * (h + by) ** (exponent - 1) for by in (-step, step))
    found = model.w.grad
    assert ((found >= low * (1 - 1e-6)) & (found <= high * (1 + 1e-6))).all()
    assert (found != exponent * h ** (exponent - 1)).any()
