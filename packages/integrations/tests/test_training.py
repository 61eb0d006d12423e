"""Small real models, trained beside an untouched twin from the same weights, on the same batches."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import assert_nothing_active, normal

CLASSES = 4
STEPS = 100


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down, self.dropout = nn.Linear(width, 2 * width), nn.Linear(2 * width, width), nn.Dropout(0.1)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.dropout(self.down(F.gelu(self.up(x))))


MODELS = {
    "mlp": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(),
        nn.Linear(64, CLASSES),
    ),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 16)), nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.GroupNorm(4, 16), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(400, CLASSES),
    ),
    "transformer": lambda: nn.Sequential(
        nn.Linear(16, 32), Block(32), nn.LayerNorm(32), nn.Flatten(), nn.Linear(512, CLASSES)
    ),
    "recurrent": lambda: Last(nn.GRU(16, 32, batch_first=True), nn.Linear(32, CLASSES)),
}  # fmt: skip


class Last(nn.Module):
    def __init__(self, recurrent, head):
        super().__init__()
        self.recurrent, self.head = recurrent, head

    def forward(self, x):
        return self.head(F.relu(self.recurrent(x)[0][:, -1]))


def batches():
    """Noisy copies of one 16 x 16 picture per class."""
    pictures = normal(CLASSES, 16, 16, seed=1)
    for step in range(STEPS):
        labels = torch.arange(32) % CLASSES
        yield pictures[labels] + 2 * normal(32, 16, 16, seed=100 + step), labels


def train(model):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for x, labels in batches():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


@pytest.mark.parametrize("level", ["L1", "L1.2"])
@pytest.mark.parametrize("name", MODELS)
def test_learns_as_its_untouched_twin_does(name, level):
    """Both begin near ln 4. Over the last 40 steps the mean losses agree within four of the twin's standard errors,
    which noise of the twin's own size would exceed once in 200 cases, or within 0.01 where both are near zero."""
    torch.manual_seed(0)
    model = MODELS[name]()
    twin = copy.deepcopy(model)
    expected = train(twin)
    found = train(integrations.compress_model(model, level, min_bytes=0))
    assert abs(found[0] - expected[0]) < 1e-6  # the first forward is before any rounding
    assert expected[-40:].mean() < 0.5 * expected[0]
    band = max(4 * expected[-40:].std() / 40**0.5, 0.01)
    assert abs(found[-40:].mean() - expected[-40:].mean()) < band
    assert integrations.compression(model).step == STEPS
    assert integrations.compression(model).report().ratio > 1
    assert_nothing_active()


def test_a_block_around_the_whole_step_learns_too():
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for x, labels in batches():
        with integrations.compress(model, "L1", min_bytes=0):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), labels)
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-40:]) / 40 < 0.5 * losses[0]
