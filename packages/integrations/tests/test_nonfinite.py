"""NaN and Inf in an activation: gradients are not finite, as in plain training, so that a scaler skips the step."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import normal

X = normal(48, 64)

pytestmark = pytest.mark.filterwarnings("ignore:Poisoned at .*(offloaded|fewer bytes)")


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
