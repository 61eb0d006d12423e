"""Each private name of torch is hidden in turn: what takes it says so, and all else works.

With ``ACTCORE_LONG=1`` (``nox -s versions``) each of them, otherwise some.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from integrations._utils import torch_names
from integrations._utils.torch_internals import NAMES

from .long_form import LONG

HERE = Path(__file__)
SOME = 36  # of these names, every one; the first is another each time that a name is added

# Whose module a call is in is read off Python's frames: without this, integrations cannot be imported, and says so.
NEEDED = "torch.nn.Module._call_impl.__code__"

CHOSEN = sorted(NAMES)[:: 1 if LONG else SOME]


@pytest.fixture(scope="module")
def outcomes():
    """What came of each feature, by the name that was hidden."""
    child, table = HERE.with_name("hidden_names_child.py"), Path(torch_names.__file__)
    command = [sys.executable, str(child), str(table), *CHOSEN]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert run.returncode == 0, run.stderr
    return {one.pop("path"): one for one in map(json.loads, run.stdout.splitlines())}


@pytest.mark.parametrize("path", CHOSEN)
def test_what_takes_it_says_so_and_all_else_works(outcomes, path):
    told = re.escape(f" needs {path}, which torch {torch.__version__} does not have")
    failed = {feature: error for feature, error in outcomes[path].items() if error}
    assert {feature: error for feature, error in failed.items() if not re.search(told, error)} == {}
    assert ("level" in outcomes[path]) == (path != NEEDED)
    if NAMES[path].feature != "a compressed model":
        assert "level" not in failed
    if NAMES[path].spared:
        assert failed == {}
