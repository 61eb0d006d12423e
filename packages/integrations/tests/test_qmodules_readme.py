"""ActNN's README example, with its imports changed and nothing else, trains a small convolutional network."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from integrations import qmodules as actnn
from integrations.qmodules import QScheme, config

from .nets import normal


@pytest.fixture(autouse=True)
def settings():
    yield
    actnn.set_optimization_level("L3")
    QScheme.num_samples = QScheme.batch = None


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 4),
    )


def data():
    """Noise with a mean of its own in one of four quarters."""
    labels = torch.arange(64) % 4
    images = normal(64, 3, 8, 8)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[:, 4 * (label // 2) :, 4 * (label % 2) :][:, :4, :4] += 1
    return TensorDataset(images, labels)


def train(model, loader, epochs=6):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for indices, (images, labels) in loader:
            QScheme.batch = indices
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


@pytest.mark.parametrize("level", ["L0", "L1", "L2", "L3", "L3.1", "L4", "L5", "swap"])
def test_the_example(level):
    model = network()

    actnn.set_optimization_level(level)
    model = actnn.QModule(model)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print(model)

    norm = "BatchNorm2d" if level == "L1" else "QBatchNorm2d"
    for name in ("QConv2d", norm, "QReLU", "QLinear"):
        assert f": {name}(" in printed.getvalue()
    losses = train(model, actnn.DataLoader(data(), batch_size=16))
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])


def test_layers_chosen_by_hand():
    actnn.set_optimization_level("L3")
    model = nn.Sequential(
        actnn.QConv2d(3, 16, 3, padding=1),
        actnn.QBatchNorm2d(16),
        actnn.QReLU(),
        actnn.QMaxPool2d(2),
        nn.Flatten(),
        actnn.QLinear(256, 4, group=1),
    )
    losses = train(model, actnn.DataLoader(data(), batch_size=16))
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])


def test_with_the_gradients_of_samples():
    actnn.set_optimization_level("L3")
    config.use_gradient = True
    QScheme.num_samples = 64
    model = actnn.QModule(network())
    losses = train(model, actnn.DataLoader(data(), batch_size=16, shuffle=True))
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])


def test_in_8_bits_where_2_are_too_few():
    actnn.set_optimization_level("L2")
    actnn.config.activation_compression_bits = [8]
    model = actnn.QModule(network())
    losses, exact = (train(net, actnn.DataLoader(data(), batch_size=16)) for net in (model, network()))
    # 24 steps of gradients that are 2 % off, whose errors are as often one way as the other
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(exact), rtol=0.1, atol=0.1)
