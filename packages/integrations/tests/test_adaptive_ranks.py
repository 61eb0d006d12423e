"""Two processes train one model: their plan is the same, and ranks that run other tensors say so."""

from pathlib import Path

import pytest
import torch

from .forks import Fork

CHILD = Path(__file__).with_name("adaptive_child.py")

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    outputs = [folder / f"rank{rank}.pt" for rank in range(2)]
    children = [Fork(CHILD, str(rank), str(folder / "store"), str(output)) for rank, output in enumerate(outputs)]
    try:
        for child in children:
            _, errors = child.communicate(timeout=300)
            assert child.returncode == 0, errors
    finally:
        for child in children:
            child.kill()
    return [torch.load(output, weights_only=True) for output in outputs]


@pytest.mark.parametrize("case", ["loop", "adapt"])
def test_ranks_share_a_plan(ranks, case):
    first, second = (rank[case] for rank in ranks)
    assert first["said"] == second["said"] == ""
    assert first["plan"] is not None
    assert first["plan"] == second["plan"]


def test_ranks_that_disagree_name_the_tensor_on_both(ranks):
    for rank in ranks:
        assert "three: linear input" in rank["disagree"]["said"]
        assert "rank 0 alone" in rank["disagree"]["said"]
        assert rank["disagree"]["plan"] is None


def test_stages_of_a_pipeline_plan_for_themselves(ranks):
    """A rank waited for the others in front of a forward, and they for what it was to send."""
    assert [rank["stage"]["plan"] for rank in ranks] == [True, True]
