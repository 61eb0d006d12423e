"""A rank that dies while a plan is made for all: the other one gets an error, and its model is as it was."""

import json
from pathlib import Path

import pytest
import torch

from .forks import Fork

CHILD = Path(__file__).with_name("faults_ranks_child.py")
pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


@pytest.mark.parametrize("dies", [0, 1])
def test_a_rank_that_dies_while_planning(dies, tmp_path):
    """Rank 0 dies while it plans, or rank 1 while it waits for the plan. Gloo tells the other within its timeout."""
    meet = f"{tmp_path / 'meet'}@{dies}"
    ranks = [Fork(CHILD, meet, WORLD_SIZE="2", RANK=str(rank)) for rank in range(2)]
    try:
        out, errors = ranks[1 - dies].communicate(timeout=120)
        assert ranks[1 - dies].returncode == 0, errors
        ranks[dies].communicate(timeout=120)
        assert ranks[dies].returncode == 1
    finally:
        for process in ranks:
            process.kill()
    found = json.loads(out.splitlines()[-1])
    assert "RuntimeError" in found["told"]
    assert "peer" in found["told"]  # gloo's words: closed, or reset, by peer
    rest = {name: value for name, value in found.items() if name != "told"}
    assert rest == dict.fromkeys(("in time", "as before", "no gradient", "at rest", "goes on alone", "planned"), True)
