"""Libraries that tests use where they are there."""

import pytest


def library_or_skip(name):
    """The library, or a skip: it is not installed, or it cannot be imported beside this torch. torchvision, and timm
    with it, raises RuntimeError or OSError beside a torch that it was not built for, such as a build for the CPU."""
    return pytest.importorskip(name, exc_type=(ImportError, OSError, RuntimeError))
