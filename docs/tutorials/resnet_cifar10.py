"""ResNet on CIFAR-10: one line for a model of timm.

A convolution keeps its input for backward, and so does a batch norm; a ReLU keeps its output. In a ResNet that is
nearly all of the memory of training: the weights are small, and the images many. Two ways to keep less, a line each:

    compress_model(model, level="L1")
        watches what autograd saves and stores it by the operator that saved it: inputs of convolutions in 4 bits, of
        norms in 8, the signs of ReLUs in one, exactly. Begin with this: it takes any model as it is.

    compress_model(model, level="L1", layers="q")
        exchanges convolutions, norms, ReLUs and pools for Q-layers, which keep their inputs themselves, in 2 bits on
        average: more for the samples and layers whose rounding the gradient feels most. Level L1 stores what is left.
        Take it where memory counts more than noise in the gradient.

Run it:

    pip install "actcore-integrations[timm]"
    python docs/tutorials/resnet_cifar10.py              # minutes on 2 cores
    python docs/tutorials/resnet_cifar10.py --layers q
    python docs/tutorials/resnet_cifar10.py --quick      # seconds, two steps: what CI runs

The report lists the parts of the model. Look at "before" to see where the memory goes: layer1, whose images are still
large. And at "times smaller": a ReLU's signs take a 32nd, a norm's input a quarter, and with Q-layers a good deal less.
"""

import argparse
import os
import time
from pathlib import Path

import numpy as np
import rich
import timm
import torch
import torchvision
from torch import Tensor, nn

from integrations.timm import compress_model, compression

BATCH = 128  # images

Labelled = tuple[Tensor, Tensor]  # images of shape (n, 3, 32, 32), and their classes


def main() -> None:
    """Trains twice from the same weights, and prints both runs."""
    parser = argparse.ArgumentParser(description="A ResNet on CIFAR-10, with compressed activations and without.")
    parser.add_argument("--layers", choices=["q"], help="exchange layers for Q-layers")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--quick", action="store_true", help="two steps, and no download")
    options = parser.parse_args()
    steps = 2 if options.quick else options.steps

    training, test = load(options.quick)
    plain, plain_seconds = train(new_model(), training, steps)

    model = new_model()
    compress_model(model, level="L1", layers=options.layers)  # the one line
    model, seconds = train(model, training, steps)
    report = compression(model).report()

    rich.print(report.table(depth=1))
    for name, net, kept, spent in (
        ("as it is:  ", plain, report.original_bytes, plain_seconds),
        ("compressed:", model, report.stored_bytes, seconds),
    ):
        print(f"{name}  accuracy {accuracy(net, test):.1%}, {kept:,} bytes kept for backward, {spent:.0f} s")


def new_model() -> nn.Module:
    """A thin ResNet with a stem for small images and random weights, always the same."""
    torch.manual_seed(0)
    # Pretrained, for larger images: timm.create_model("resnet50", pretrained=True, num_classes=10)
    model = timm.create_model("resnet18", num_classes=10, channels=(16, 32, 64, 128), stem_width=16, stem_type="deep")
    model.maxpool = nn.Identity()
    return model


def train(model: nn.Module, data: Labelled, steps: int) -> tuple[nn.Module, float]:
    """An ordinary loop: the model, and the seconds that it took."""
    torch.manual_seed(1)  # the same batches in both runs
    images, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
    start = time.perf_counter()
    for _ in range(steps):
        batch = torch.randint(len(images), (BATCH,))
        loss = nn.functional.cross_entropy(model(mirrored(images[batch])), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return model, time.perf_counter() - start


@torch.no_grad()
def accuracy(model: nn.Module, data: Labelled) -> float:
    """On images that it has not seen. In ``eval()`` a compressed model runs as any other."""
    model.eval()
    images, labels = data
    guesses = torch.cat([model(part).argmax(1) for part in images.split(BATCH)])
    model.train()
    return (guesses == labels).float().mean().item()


def mirrored(images: Tensor) -> Tensor:
    """Images, half of them mirrored: there are few to learn from."""
    return torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)


def load(quick: bool) -> tuple[Labelled, Labelled]:
    """Images to train on, and to test with; each channel of mean 0 and variance 1."""
    subset = Path(os.environ.get("ACTCORE_DATA", "."), "cifar10_subset.npz")
    if subset.is_file():  # some thousand of CIFAR-10's
        file = np.load(subset)
        images, labels, test_images, test_labels = (
            torch.from_numpy(file[name]) for name in ("train_images", "train_labels", "test_images", "test_labels")
        )
    elif quick:
        print("Noise stands in for CIFAR-10, which is not downloaded for a quick run.")
        images, labels = torch.randint(256, (BATCH, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (BATCH,))
        test_images, test_labels = images, labels
    else:
        parts = [torchvision.datasets.CIFAR10("cifar10", train=train, download=True) for train in (True, False)]
        images, test_images = (torch.from_numpy(part.data).permute(0, 3, 1, 2) for part in parts)
        labels, test_labels = (torch.tensor(part.targets) for part in parts)
    images, test_images = images.float(), test_images.float()
    mean, deviation = images.mean((0, 2, 3), keepdim=True), images.std((0, 2, 3), keepdim=True)
    return ((images - mean) / deviation, labels.long()), ((test_images - mean) / deviation, test_labels.long())


if __name__ == "__main__":
    main()
