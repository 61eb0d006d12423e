"""The small models that long runs train, and inputs of many shapes for them."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES, WIDTH, WORDS = 10, 16, 48
SIDES = 8, 50  # of images, from and below
BATCHES = 1, 9


class Images(nn.Module):
    """Convolutions with norms, a pool, a dropout and a head, for images of any size."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.GELU(), nn.AdaptiveAvgPool2d(4)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(128, 64), nn.SiLU(), nn.Dropout(0.2), nn.Linear(64, CLASSES))

    def forward(self, x):
        return self.head(self.features(x))


class Words(nn.Module):
    """A block of a transformer between an embedding and a head, for sequences of any length."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.norm2 = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, WORDS)

    def forward(self, tokens):
        x = self.embedding(tokens)
        parts = self.heads(self.norm(x)).unflatten(-1, (3, 2, WIDTH // 2)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return self.head(x + self.drop(self.down(F.gelu(self.up(self.norm2(x))))))


def layers(width=64, depth=4):
    """Linear layers and GELU, for inputs that a plan is made for."""
    return nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.GELU())))


class Segments(nn.Module):
    """Two segments under torch's checkpoints."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers(), layers()

    def forward(self, x):
        return checkpoint(self.second, checkpoint(self.first, x, use_reentrant=False), use_reentrant=False)


class Shapes:
    """Inputs of the shapes that a run asks for, one after the other: each image's is new until ``count`` have come.

    There are 8 x 42 x 42 = 14112 of them, three times as many as the largest cache of the library has entries.
    """

    def __init__(self, generator, count):
        shapes = [(b, h, w) for b in range(*BATCHES) for h in range(*SIDES) for w in range(*SIDES)]
        order = torch.randperm(len(shapes), generator=generator).tolist()
        self._shapes = [shapes[place] for place in order[:count]]
        self._generator, self._next = generator, 0

    def images(self):
        """Images and labels."""
        batch, *sides = self._shapes[self._next % len(self._shapes)]
        self._next += 1
        x = torch.randn(batch + 1, 1, *sides, generator=self._generator)
        return x, torch.randint(CLASSES, (batch + 1,), generator=self._generator)

    def words(self):
        """Sequences, and the words that follow."""
        batch, length, _ = self._shapes[self._next % len(self._shapes)]
        self._next += 1
        tokens = torch.randint(WORDS, (batch, 2 * length + 1), generator=self._generator)
        return tokens[:, :-1], tokens[:, 1:]

    def rows(self, rows=256, width=64):
        """Rows of features, which a plan was made for, or fewer."""
        self._next += 1
        return torch.randn(rows - self._next % 32, width, generator=self._generator)
