"""NaN and Inf in an activation: gradients are not finite, as in plain training, so that a scaler skips the step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import normal

X = normal(48, 64)

pytestmark = pytest.mark.filterwarnings("ignore:(Poisoned|MaskedAttention) at .*(offloaded|fewer bytes)")


class Poisoned(nn.Module):
    """Every kind of codec below and above an activation with one value that is not finite."""

    def __init__(self, value):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.scale, self.norm, self.dropout = nn.Parameter(torch.ones(64)), nn.LayerNorm(64), nn.Dropout(0.5)
        self.value = value

    def forward(self, x):
        h = F.relu(self.layers[0](x))
        poison = torch.zeros_like(h)
        poison[7, 9] = self.value
        h = self.dropout(F.relu(self.layers[1](h + poison)))
        return self.layers[2](self.norm(h * self.scale)).square()


def finite(model):
    torch.manual_seed(1)
    model.zero_grad()
    model(X).mean().backward()
    return {name: bool(p.grad.isfinite().all()) for name, p in model.named_parameters()}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("level", [level for level in integrations.LEVELS if level != "L0"])
def test_gradients_are_as_little_finite_as_plain_ones(level, value):
    model = Poisoned(value)
    plain = finite(copy.deepcopy(model))
    assert False in plain.values()
    compressed = finite(integrations.compress_model(model, level, min_bytes=0))
    assert not [name for name in plain if compressed[name] and not plain[name]]


@pytest.mark.parametrize("level", integrations.LEVELS)
def test_the_scaler_skips_the_step_and_training_goes_on(level):
    model = integrations.compress_model(Poisoned(float("nan")), level)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step():
        before = copy.deepcopy(model.state_dict())
        optimizer.zero_grad()
        scaler.scale(model(X).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        return all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    assert step()
    assert scaler.get_scale() == 512.0
    model.value = 0.0
    assert not step()
    assert all(p.isfinite().all() for p in model.parameters())


class MaskedAttention(nn.Module):
    """Of some queries a mask leaves no key; what is made of them is dropped after the softmax, as torch.masked does."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))
        self.mask = torch.ones(48, 48, dtype=torch.bool).tril(-1)  # the first has nothing before it
        self.mask[20] = False

    def forward(self, x):
        scores = self.query(x) @ self.key(x).mT / 8
        weights = scores.masked_fill(~self.mask, -torch.inf).softmax(-1)
        return weights.where(self.mask, 0.0) @ self.value(x)


@pytest.mark.parametrize("level", integrations.LEVELS)
def test_a_row_of_a_softmax_that_is_not_a_number_leaves_other_rows_alone(level):
    """A row is shorter than a group, and a group has several."""
    model = MaskedAttention()
    assert all(finite(copy.deepcopy(model)).values())
    integrations.compress_model(model, level, min_bytes=0)
    assert all(finite(model).values())


@pytest.mark.parametrize("bits", [2, 8])
def test_gradients_beside_a_row_that_is_not_a_number_are_as_exact_as_the_bits(bits):
    scores = normal(48, 48).masked_fill(torch.arange(48)[:, None] % 5 == 1, -torch.inf).requires_grad_()
    dropped = ~scores.isfinite()
    gradient = normal(48, 48)

    def backward():
        probabilities = scores.softmax(-1)
        (found,) = torch.autograd.grad(probabilities.masked_fill(dropped, 0.0), scores, gradient)
        return found[~dropped].view(-1, 48)

    exact = backward()
    with integrations.compress(nn.Identity(), "L1", pointwise_bits=bits, min_bytes=0):
        rounded = backward()
    # As docs/reference/operators.md bounds it: an element is off by at most d |g| + (2 + d) d sum |g|, with d a step,
    # here of the least number of codes that are left, and of a range below 1.
    step, size = 1 / (2**bits - 2), gradient[~dropped].view(-1, 48).abs()
    assert not torch.equal(exact, rounded)
    assert ((exact - rounded).abs() <= step * size + (2 + step) * step * size.sum(1, keepdim=True)).all()
