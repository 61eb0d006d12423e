"""The images that are trained on: a subset of CIFAR-10, or scikit-learn's digits."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.errors import BenchError
from integrations._utils.archives import arrays_in

DATASETS = ("auto", "cifar10", "digits")
FILE = "cifar10_subset.npz"

_LARGEST = 1 << 28  # bytes of a file's arrays: all of CIFAR-10 has 184 million
_DIGITS_FOR_TRAINING = 1437  # of 1,797, as many parts as CIFAR-10's subset has


@dataclass(frozen=True)
class Images:
    """Images of ten classes.

    Attributes:
        name: what they are called in tables: ``"CIFAR-10 subset"``, ``"digits"``.
        x: ``Float32[Tensor, "images channels height width"]``, each channel of mean 0 and variance 1.
        y: ``Int64[Tensor, "images"]``, the classes.
        test_x, test_y: the same of the test images, scaled as the others were.
    """

    name: str
    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    def __str__(self) -> str:
        _, channels, height, width = self.x.shape
        return (
            f"{self.name} ({len(self.x):,} images for training, {len(self.test_x):,} for test, "
            f"{channels} x {height} x {width})"
        )


def load(dataset: str, data_root: Path | None = None, tell: Callable[[str], None] = print) -> Images:
    """The images of that name. ``"auto"`` is CIFAR-10's subset where it is at hand, otherwise the built-in digits.

    Args:
        dataset: one of ``DATASETS``.
        data_root: folder with ``cifar10_subset.npz`` in it; default: ``ACTCORE_DATA``.
        tell: is given one line if the built-in digits stand in for what is not at hand.

    Raises:
        BenchError: the name is unknown; the folder was named and lacks the file; the file is damaged.
    """
    if dataset not in DATASETS:
        raise BenchError(f"dataset must be one of {', '.join(DATASETS)}, got {dataset!r}")
    if dataset == "digits":
        return digits()
    folder = data_root or (Path(os.environ["ACTCORE_DATA"]) if os.environ.get("ACTCORE_DATA") else None)
    if folder is not None and (folder / FILE).is_file():
        return cifar10(folder / FILE)
    where = f"in {folder}" if folder else "at hand: neither --data-root nor ACTCORE_DATA names a folder"
    if dataset == "cifar10" or data_root is not None:
        raise BenchError(f"there is no {FILE} {where}; name a folder that has it, or use --dataset digits")
    tell(f"The built-in digits are used: there is no {FILE} {where}.")
    return digits()


def cifar10(file: Path) -> Images:
    """CIFAR-10 (Krizhevsky, 2009) from a NumPy archive: ``train_images`` and ``test_images`` as uint8 of shape (images,
    3, 32, 32), ``train_labels`` and ``test_labels`` from 0 to 9.

    Raises:
        BenchError: the file cannot be read or holds something else.
    """
    try:
        found = arrays_in(file, _LARGEST)
        arrays = [found[f"{part}_{what}"] for part in ("train", "test") for what in ("images", "labels")]
    except (OSError, ValueError, KeyError) as error:
        raise BenchError(
            f"{file} is not an image archive ({error}); download it again, or use --dataset digits"
        ) from error
    for images, labels in (arrays[:2], arrays[2:]):
        fits = labels.ndim == 1 and images.dtype == np.uint8 and images.shape == (len(labels), 3, 32, 32)
        if not (fits and len(labels) > 0 and np.isin(labels, range(10)).all()):
            raise BenchError(
                f"{file} must hold uint8 images of shape (n, 3, 32, 32), with labels from 0 to 9, got {images.dtype} "
                f"of shape {images.shape} with {labels.dtype} of shape {labels.shape}; download it again"
            )
    return _scaled("CIFAR-10 subset", *arrays)


def digits() -> Images:
    """scikit-learn's 1,797 digits of 8 x 8 pixels, always split in the same way."""
    from sklearn.datasets import load_digits  # which takes seconds to import

    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0)).numpy()
    x, y = found.images[order][:, None], found.target[order]
    cut = _DIGITS_FOR_TRAINING
    return _scaled("digits", x[:cut], y[:cut], x[cut:], y[cut:])


def _scaled(name: str, *arrays: NDArray[np.generic]) -> Images:
    images, labels, test_images, test_labels = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
    x = images.float()
    mean, deviation = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return Images(
        name, (x - mean) / deviation, labels.long(), (test_images.float() - mean) / deviation, test_labels.long()
    )
