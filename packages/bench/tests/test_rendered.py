"""Every recorded result renders as the text that it rendered before: tables, notes and header."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bench.cli import suites

from .rendering import printed

RESULTS = Path(__file__).parents[1] / "results"
DIGESTS = Path(__file__).with_suffix(".sha256")
"""A line for each file: the SHA-256 of what ``python -m bench show FILE`` prints, and the file's name.

Where a change of the text is meant, compare both texts, and write the digest that the failure prints.
"""


def recorded() -> dict[str, str]:
    """Digests by the name of the file."""
    lines = (line.split() for line in DIGESTS.read_text().splitlines())
    return {name: digest for digest, name in lines}


@pytest.mark.parametrize("name", recorded())
def test_a_recorded_result_renders_as_before(name):
    digest = hashlib.sha256(printed(suites.load(RESULTS / name)).encode()).hexdigest()
    assert digest == recorded()[name], f"`python -m bench show {name}` prints another text"
