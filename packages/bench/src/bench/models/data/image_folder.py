"""A folder of images in the form of ImageNet: ``train/CLASS/*`` and ``val/CLASS/*``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bench.errors import BenchError
from bench.models.subject import needs

DATASET = "imagefolder"  # as the command line calls it

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels
_MARGIN = 256 / 224  # of the shorter side, from whose middle images for test are cut
_PARTS = ("train", "val")


@dataclass(frozen=True)
class ImageFolder:
    """Images for training and for test.

    Attributes:
        name: of the folder.
        train, test: torchvision's ``ImageFolder`` each: training images are cut out at random and mirrored.
        size: height and width of the images that a model gets.
        workers: processes that read images; 0: the process itself.
    """

    name: str
    train: Any
    test: Any
    size: int
    workers: int

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.train.classes)

    def steps(self, batch: int) -> int:
        """Of an epoch. A last batch that is not a whole one is left out, unless it is the only one."""
        return max(1, len(self.train) // batch)

    def batches(self, batch: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and classes of an epoch, in an order of the generator's. What is cut out is drawn from torch's own
        generator without workers, and from seeds of the given one with some."""
        whole = len(self.train) >= batch
        loader = DataLoader(
            self.train, batch, shuffle=True, drop_last=whole, num_workers=self.workers, generator=generator
        )
        yield from loader

    def tests(self, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images for test, and their classes."""
        yield from DataLoader(self.test, batch, num_workers=self.workers)

    def __str__(self) -> str:
        return (
            f"image folder {self.name} ({len(self.train):,} images for training, {len(self.test):,} for test, "
            f"{self.classes:,} classes, {self.size} x {self.size})"
        )


def load(root: Path | None, size: int, workers: int) -> ImageFolder:
    """The images of a folder.

    Args:
        root: with ``train/`` and ``val/`` in it.
        size, workers: as in ``ImageFolder``.

    Raises:
        BenchError: there is no such folder, it has no images, or its parts have different classes.
        MissingLibrary: torchvision is not installed.
    """
    if root is None:
        raise BenchError(f"--data-root must name a folder with train/ and val/ in it for --dataset {DATASET}")
    lacking = [part for part in _PARTS if not (root / part).is_dir()]
    if lacking:
        raise BenchError(
            f"there is no {' and no '.join(f'{part}/' for part in lacking)} in {root}; name another folder"
        )
    datasets, transforms = needs("torchvision.datasets"), needs("torchvision.transforms")
    finish = [transforms.ToTensor(), transforms.Normalize(_MEAN, _DEVIATION)]
    train = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), *finish]
    test = [transforms.Resize(round(_MARGIN * size)), transforms.CenterCrop(size), *finish]
    try:
        found = [
            datasets.ImageFolder(str(root / part), transforms.Compose(steps))
            for part, steps in zip(_PARTS, (train, test), strict=True)
        ]
    except FileNotFoundError as error:
        raise BenchError(f"{root} holds no images in folders of classes ({error}); name another folder") from error
    if found[0].classes != found[1].classes:
        raise BenchError(
            f"train/ and val/ of {root} must have the same classes, got {len(found[0].classes)} and "
            f"{len(found[1].classes)} of which {len(set(found[0].classes) & set(found[1].classes))} are in both"
        )
    train_set, test_set = found
    return ImageFolder(root.resolve().name, train_set, test_set, size, workers)
