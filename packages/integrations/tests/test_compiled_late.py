"""Compression in processes that import ``torch._dynamo`` late: when they first compile, or never."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .late_compiler_child import WAYS

CHILD = Path(__file__).with_name("late_compiler_child.py")


def run(when):
    """What the child prints of all ways, with ``torch._dynamo`` imported at first or not."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, str(CHILD), when, *WAYS]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=300, check=True)
    return json.loads(child.stdout)


@pytest.fixture(scope="module")
def early():
    return run("early")


@pytest.fixture(scope="module")
def late():
    return run("late")


@pytest.mark.parametrize("way", WAYS)
def test_it_makes_no_difference(way, early, late):
    assert (late[way]["there"], early[way]["there"]) == (False, True)
    found, expected = late[way]["steps"], early[way]["steps"]
    if way != "inside":
        assert found == expected
        return
    # The region's inputs are kept as they are, where they are rounded to 4 bits otherwise.
    assert [step[0] for step in found] == [step[0] for step in expected]
    assert all(step == pytest.approx(exact, rel=0.05) for step, exact in zip(found, expected, strict=True))


def test_to_import_it_imports_no_compiler(late):
    assert late["imported"] == []
