"""Compression in processes that import ``torch._dynamo`` late: when they first compile, or never."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .late_compiler_child import WAYS

CHILD = Path(__file__).with_name("late_compiler_child.py")


@pytest.fixture(scope="module")
def found():
    """What the child prints, of ways that begin with or without ``torch._dynamo``."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    command = [sys.executable, str(CHILD)]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, timeout=300, check=True)
    return json.loads(child.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_it_makes_no_difference(way, found):
    late, early = found["late"][way], found["early"][way]
    assert (late["there"], early["there"]) == (False, True)
    if way != "inside":
        assert late["steps"] == early["steps"]
        return
    # The region's inputs are kept as they are, where they are rounded to 4 bits otherwise.
    assert [step[0] for step in late["steps"]] == [step[0] for step in early["steps"]]
    for step, exact in zip(late["steps"], early["steps"], strict=True):
        assert step == pytest.approx(exact, rel=0.05)


def test_to_import_it_imports_no_compiler(found):
    assert found["imported"] == []
