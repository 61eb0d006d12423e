"""Libraries that only some models or ways need."""

from __future__ import annotations

import importlib
from typing import Any

from bench.errors import MissingLibrary


def needs(name: str, extra: str = "models") -> Any:
    """Import a library that only some models need, or some ways to train.

    Args:
        name: of the module.
        extra: of this package, that brings it.

    Raises:
        MissingLibrary: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # torchvision raises the latter beside a torch that is not its own
        raise MissingLibrary(
            f"{name} cannot be imported ({error}); pip install actcore-bench[{extra}], or leave out what needs it"
        ) from error
