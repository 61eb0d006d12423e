"""The images of ``python -m bench vision``: CIFAR-10's subset from a file, and the digits that stand in for it."""

import numpy as np
import pytest
import torch

from bench.errors import BenchError
from bench.models.data import images


def arrays(train=6, test=4):
    generator = np.random.default_rng(0)
    return {
        f"{part}_{what}": found
        for part, count in (("train", train), ("test", test))
        for what, found in (
            ("images", generator.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)),
            ("labels", generator.integers(0, 10, count)),
        )
    }


def test_an_archive_is_read_and_scaled(tmp_path, monkeypatch):
    content = arrays()
    np.savez(tmp_path / images.FILE, **content)
    monkeypatch.setenv("ACTCORE_DATA", str(tmp_path))
    for found in (images.load("cifar10", tmp_path), images.load("auto")):
        assert found.name == "CIFAR-10 subset"
        torch.testing.assert_close(found.x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(found.x.std((0, 2, 3)), torch.ones(3))
        assert found.y.tolist() == content["train_labels"].tolist()
        assert found.test_x.shape == (4, 3, 32, 32)
    pixels = torch.from_numpy(content["train_images"]).float()
    scaled = (torch.from_numpy(content["test_images"]).float() - pixels.mean((0, 2, 3), True)) / pixels.std(
        (0, 2, 3), keepdim=True
    )
    torch.testing.assert_close(found.test_x, scaled)


def test_digits_are_always_split_alike(monkeypatch):
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    told = []
    found = images.load("auto", tell=told.append)
    assert str(found) == "digits (1,437 images for training, 360 for test, 1 x 8 x 8)"
    assert torch.equal(found.x, images.digits().x)
    assert "neither --data-root nor ACTCORE_DATA" in told[0]


def change(content, key, value):
    return {**content, key: value}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: {"train_images": content["train_images"]}, "is not an image archive"),
        (lambda content: change(content, "train_labels", content["train_labels"][:-1]), "must hold uint8"),
        (lambda content: change(content, "test_labels", np.full(4, 10)), "labels from 0 to 9"),
        (lambda content: change(content, "train_images", content["train_images"].astype(np.float32)), "float32"),
        (lambda content: change(content, "test_labels", np.array([None] * 4)), "is not an image archive"),  # a pickle
    ],
)
def test_a_damaged_archive_is_refused(tmp_path, damage, message):
    np.savez(tmp_path / images.FILE, **damage(arrays()))
    with pytest.raises(BenchError, match=message):
        images.load("cifar10", tmp_path)


def test_what_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    (tmp_path / images.FILE).write_bytes(b"no zip")
    with pytest.raises(BenchError, match="is not an image archive"):
        images.load("auto", tmp_path)
    with pytest.raises(BenchError, match="neither --data-root"):
        images.load("cifar10")
    with pytest.raises(BenchError, match="dataset must be one of"):
        images.load("mnist")
