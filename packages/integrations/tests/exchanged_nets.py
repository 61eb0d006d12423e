"""Models whose layers are exchanged for ones that store for themselves, and their reports."""

import torch
from torch import nn

import integrations

from .nets import normal

IMAGES, TOKENS = normal(16, 3, 16, 16), normal(8, 20, 32)
CHANNELS_LAST = IMAGES.to(memory_format=torch.channels_last)
EXCHANGED = {"activations": "fewbit", "linear": 0.3, "layers": "q"}


def make_report(model, x, level="L1", **options):
    """Of the second forward: the first makes tables of steps, which a cache keeps from then on."""
    integrations.compress_model(model, level, **options)
    for _ in range(2):
        torch.manual_seed(1)
        model(x).sum().backward()
    return integrations.compression(model).report()


def free(report):
    """Rows of what autograd alone keeps."""
    return [row for row in report.rows if not row.owner]


def images(layer, features=4 * 14 * 14):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), layer, nn.Conv2d(16, 4, 3), nn.Flatten(), nn.Linear(features, 5)
    )


class Tokens(nn.Module):
    """Four layers save one tensor."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.outer = nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 8)
        self.query, self.key, self.value = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x):
        x = self.norm(self.inner(x))
        return self.outer(nn.functional.gelu(x + self.value(torch.tanh(self.query(x))) * self.key(x)))


class Attention(nn.Module):
    def __init__(self, weights):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.weights = nn.Linear(32, 32), weights
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)

    def forward(self, x):
        x = self.linear(x)
        return self.attention(x, x, x, need_weights=self.weights)[0]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places, self.linear = nn.Embedding(100, 32), nn.Embedding(100, 32), nn.Linear(32, 100)

    def forward(self, x):
        return self.linear(self.words(x) + self.places((x * 3) % 100))
