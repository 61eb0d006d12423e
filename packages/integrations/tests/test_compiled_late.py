"""Compression in processes that import ``torch._dynamo`` late: when they first compile, or never."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .late_compiler_child import WAYS

CHILD = Path(__file__).with_name("late_compiler_child.py")


def started(*arguments):
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def printed(process):
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return output


@pytest.fixture(scope="module")
def early():
    return json.loads(printed(started(CHILD, "early", *WAYS)))


@pytest.mark.parametrize("way", WAYS)
def test_it_makes_no_difference(way, early):
    late = json.loads(printed(started(CHILD, "late", way)))
    assert (late["there"], early["there"]) == (False, True)
    found, expected = late["steps"][way], early["steps"][way]
    if way != "inside":
        assert found == expected
        return
    # The region's inputs are kept as they are, where they are rounded to 4 bits otherwise.
    assert [step[0] for step in found] == [step[0] for step in expected]
    assert all(step == pytest.approx(exact, rel=0.05) for step, exact in zip(found, expected, strict=True))


def test_to_import_it_imports_no_compiler():
    heavy = ["torch._dynamo", "sympy", "torch.distributed.tensor", "torch.utils.flop_counter"]
    code = "import sys, torch\nbefore = set(sys.modules)\nimport actcore, integrations, integrations.fewbit\n"
    code += f"print(*[name for name in {heavy} if name in sys.modules.keys() - before])"
    assert printed(started("-c", code)).split() == []
