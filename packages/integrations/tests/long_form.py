"""Whether the tests that have a long form run in it: nox's sessions of the tag ``reliability`` ask for that."""

import os
from collections.abc import Collection
from itertools import cycle, islice, product
from typing import Any

LONG = os.environ.get("ACTCORE_LONG") == "1"


def some_of(*axes: Collection[Any]) -> list[tuple[Any, ...]]:
    """Every combination of the axes' values in the long form, otherwise as few as have every value of each axis."""
    if LONG:
        return list(product(*axes))
    return list(islice(zip(*map(cycle, axes), strict=True), max(map(len, axes))))
