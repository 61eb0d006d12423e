"""Libraries that tests use where they are there."""

import pytest
import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
"""The version of torch, such as ``(2, 10)``, for tests of what an older one cannot do."""


def library_or_skip(name):
    """The library, or a skip: it is not installed, or it cannot be imported beside this torch. torchvision, and timm
    with it, raises RuntimeError or OSError beside a torch that it was not built for, such as a build for the CPU."""
    return pytest.importorskip(name, exc_type=(ImportError, OSError, RuntimeError))
