"""What a small model learns of scikit-learn's digits, compressed and not, from the same beginning in the same order."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn

import integrations

LEVELS = "L1", "lean"
BATCH = 64


def digits():
    """The 1797 images of 8 x 8 and their labels, as those to learn from and those to judge by."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return (x[order[:1344]], y[order[:1344]]), (x[order[1344:]], y[order[1344:]])


def learned(level, seed, epochs):
    """The loss on the images that were not learned from. The seed decides weights, batches and rounding."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 10)
    )
    if level is not None:
        integrations.compress_model(model, level, seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    (x, y), (other, wanted) = digits()
    order = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(epochs):
            for rows in torch.randperm(len(x), generator=order).split(BATCH):
                optimizer.zero_grad()
                F.cross_entropy(model(x[rows]), y[rows]).backward()
                optimizer.step()
    with torch.no_grad():
        return F.cross_entropy(model.eval()(other), wanted).item()
