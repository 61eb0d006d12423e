"""``recompute=True``: what a cheap operator makes of what is stored waits as a formula, and backward gets just that."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .formula_nets import FEATURES, Between, close, expected, inputs, step

ONES = torch.linspace(0.5, 1.5, FEATURES)

FUNCTIONS = {
    "relu": F.relu,
    "relu in place": lambda h: F.relu(h.clone(), inplace=True),
    "relu, by position": lambda h: F.relu(h.clone(), True),
    "relu_": lambda h: h.clone().relu_(),
    "silu": F.silu,
    "silu in place": lambda h: F.silu(h.clone(), inplace=True),
    "leaky_relu, by position": lambda h: F.leaky_relu(h.clone(), 0.2, True),
    "gelu": F.gelu,
    "gelu, tanh": lambda h: F.gelu(h, approximate="tanh"),
    "gelu, written out": lambda h: 0.5 * h * (1 + torch.tanh(0.8 * (h + 0.04 * h**3))),
    "mish": F.mish,
    "hardswish": F.hardswish,
    "elu": F.elu,
    "softplus": F.softplus,
    "sigmoid": torch.sigmoid,
    "tanh": lambda h: h.tanh(),
    "swish, written out": lambda h: h * h.sigmoid(),
    "squares": lambda h: h.square(),
    "third powers": lambda h: h.pow(3),
    "sum with a number": lambda h: h + 1,
    "sum with itself": lambda h: h + h.relu(),
    "added in place": lambda h: h.clone().add_(2),
    "multiplied in place": lambda h: h.clone().mul_(0.5),
    "augmented": lambda h: h.relu().__iadd__(1),
    "from a number": lambda h: 1 - h,
    "by a number": lambda h: h / 3,
    "negative": lambda h: -h,
    "clamped": lambda h: h.clamp(-1, 1),
    "hardtanh, in place": lambda h: F.hardtanh(h.clone(), -1.0, 1.0, True),
    "concatenated": lambda h: torch.cat([h[:, :40].relu(), h[:, 40:]], dim=1),
    "gated": lambda h: F.glu(torch.cat([h, h], dim=-1)),
    "to float64 and back": lambda h: h.double().relu().float(),
    "contiguous": lambda h: h.t().contiguous().relu().t(),
    "layer norm": lambda h: F.layer_norm(h, (FEATURES,), ONES, ONES),
    "rms norm": lambda h: F.rms_norm(h, (FEATURES,)),
    "rms norm, with a weight": lambda h: F.rms_norm(h, (FEATURES,), ONES),
    "group norm": lambda h: F.group_norm(h.view(16, -1), 1).view(h.shape),
    "view": lambda h: h.relu().view(-1, 2, FEATURES // 2).flatten(1),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS.keys())
def test_backward_gets_the_function_of_what_is_stored(function):
    net = Between(function)
    x = inputs(net)
    h, found, gradient, row = step(net, x)
    assert row.codec == "recomputed", row
    assert row.stored_bytes == 0
    assert close(found, expected(gradient, function(h)))
    exact = net.before(x).detach()
    assert not torch.equal(h, exact)
    assert not close(found, expected(gradient, function(exact)))


def test_a_norm_that_is_written_out_is_of_its_exact_statistic():
    net = Between(lambda h: h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * ONES)
    x = inputs(net)
    h, found, gradient, row = step(net, x)
    assert row.codec == "recomputed"
    exact = net.before(x).detach()
    wanted = h * torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + 1e-6) * ONES
    assert close(found, expected(gradient, wanted))


IN_DTYPES = {"relu": F.relu, "silu": F.silu, "norm": lambda h: F.layer_norm(h, (FEATURES,))}


@pytest.mark.parametrize("function", IN_DTYPES.values(), ids=IN_DTYPES.keys())
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_in_every_dtype(function, dtype):
    net = Between(function, dtype=dtype)
    h, found, gradient, row = step(net, inputs(net))
    assert row.codec == "recomputed"
    assert close(found, expected(gradient, function(h)))


def test_a_batch_norm_is_of_the_batchs_statistics_and_leaves_the_running_ones_alone():
    norm = nn.BatchNorm1d(FEATURES)
    net = Between(lambda h: F.relu(norm(h), inplace=True))
    x = inputs(net)
    h, found, gradient, row = step(net, x)
    assert row.codec == "recomputed"
    assert norm.num_batches_tracked == 3
    exact = net.before(x).detach()
    mean, variance = exact.mean(0), exact.var(0, correction=0)
    once = nn.BatchNorm1d(FEATURES)
    for _ in range(3):
        once(exact)
    assert torch.equal(norm.running_mean, once.running_mean)
    wanted = F.relu((h - mean) / (variance + norm.eps).sqrt())
    assert (found - expected(gradient, wanted)).abs().max() <= 1e-5 * expected(gradient, wanted).abs().max()


def test_what_an_activation_overwrites_is_recomputed_as_it_was_before():
    """SiLU in place saves a copy of its input, which a norm has made, and not its result."""
    norm, act = nn.BatchNorm1d(FEATURES), nn.SiLU(inplace=True)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.before, self.norm, self.act, self.after = nn.Linear(32, FEATURES), norm, act, nn.Linear(FEATURES, 8)

        def forward(self, x):
            return self.after(self.act(self.norm(self.before(x))))

    model, x = Block(), torch.randn(512, 32)
    model(x).square().sum().backward()
    exact = [one.grad.clone() for one in model.parameters()]
    integrations.compress_model(model, "L1.1", recompute=True)
    for _ in range(2):
        model.zero_grad()
        model(x).square().sum().backward()
    rows = integrations.compression(model).report().rows
    assert [row.codec for row in rows if row.module == "act"] == ["recomputed"]
    # 8 bits are a step of 1/255 of a range of 8 deviations: 0.01 each, and two of them.
    for one, other in zip(model.parameters(), exact, strict=True):
        if other.abs().max() > 1e-3:  # a bias before a norm has none
            assert (one.grad - other).norm() <= 0.03 * other.norm()


def test_autocasts_copies_of_one_tensor_are_none_at_all():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.LayerNorm(FEATURES)
            self.query, self.key = nn.Linear(FEATURES, 16), nn.Linear(FEATURES, 16)

        def forward(self, x):
            h = self.norm(x * 1.0)
            return self.query(h) + self.key(h)

    model, x = Heads(), torch.randn(4, 64, FEATURES, requires_grad=True)

    def grads():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().sum().backward()
        return [one.grad.clone() for one in model.parameters()]

    exact = grads()
    integrations.compress_model(model, "L1", recompute=True)
    for _ in range(3):
        found = grads()
    rows = [row for row in integrations.compression(model).report().rows if row.operator == "linear" and not row.owner]
    assert [row.codec for row in rows] == ["recomputed", "recomputed"]
    assert all("to, layer_norm" in row.why for row in rows)
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() <= 0.02 * other.norm()


def test_what_an_operator_puts_into_another_order_is_stored():
    """A product of a matrix and a batch of them may copy the batch, cast and transposed, for itself."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.LayerNorm(FEATURES)
            self.left = nn.Parameter(torch.randn(16, 64))

        def forward(self, x):
            return torch.einsum("oi,bif->fbo", self.left, self.norm(x * 1.0)), self.left @ self.norm(x * 1.0)

    model, x = Product(), torch.randn(4, 64, FEATURES, requires_grad=True)

    def grad():
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            one, other = model(x)
            (one.float().square().sum() + other.float().square().sum()).backward()
        return model.left.grad.clone()

    exact = grad()
    integrations.compress_model(model, "L1.1", recompute=True)
    assert (grad() - exact).norm() <= 0.02 * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_rms_norm_of_torch_whose_input_is_stored_for_others_too(dtype):
    """Of bfloat16 it saves the input cast to float32 as well, which is not what it returns."""
    norm = nn.RMSNorm(FEATURES, dtype=dtype)
    net = Between(norm, dtype=dtype)
    x = inputs(net)
    h, found, gradient, row = step(net, x)
    assert row.codec == "recomputed"
    assert close(found, expected(gradient, norm(h)))
    through = norm.weight.grad.clone()
    norm.weight.grad = None
    told, output = net(x)
    torch.autograd.backward([told, output], [torch.ones_like(told), gradient])
    # 8 bits of a row are a step of 1/255 of six deviations.
    assert (through - norm.weight.grad).norm() <= 0.03 * norm.weight.grad.norm()
