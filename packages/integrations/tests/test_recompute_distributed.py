"""Models with a plan under DistributedDataParallel: two processes train as plain ones do, bit for bit."""

import pytest
import torch

from .two_ranks import run_two_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

CASES = ("plain", "static_graph", "find_unused_parameters", "gradient_as_bucket_view", "no_sync")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    return run_two_ranks("recompute_ddp_child.py", tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize("planned", ["before", "after"])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_plain_ddps(ranks, case, planned):
    """With a plan that was applied before the model was wrapped, or after."""
    assert [rank[f"{case}, {planned}"] for rank in ranks] == [True, True]


def test_ranks_with_batches_of_different_sizes(ranks):
    assert [rank["uneven"] for rank in ranks] == [True, True]


@pytest.mark.parametrize("kind", ["in place", "differentiable", "functional", "gathered"])
def test_what_a_collective_writes_in_the_forward_is_kept(ranks, kind):
    """The schemas of collectives do not tell that they write their arguments."""
    assert [rank[kind] for rank in ranks] == [True, True]


def test_ranks_make_the_same_plan(ranks):
    assert ranks[0]["plan"] == ranks[1]["plan"]


def test_ranks_that_come_together_follow_one_plan(ranks):
    """Rank 0's, whose rates, sensitivities and measured error are those of its own data."""
    ours, others = (rank["bounded"] for rank in ranks)
    assert ours == others
    assert len(ours) > 1
    assert 0 < ours[-1] <= 0.2


def test_ranks_measure_in_the_same_steps(ranks):
    """Whatever one of them does between its steps: takes its state, or runs the model without
    DistributedDataParallel."""
    ours, others = (rank["measured unevenly"] for rank in ranks)
    assert ours == others
    assert ours[0] is None or ours[0][0] == 0
    assert ours[-1][0] == 10


def test_no_step_aside_is_taken_of_a_forward_that_talks_to_other_ranks(ranks):
    """Its collectives would be paired with those of other forwards. Ranks ask each other once, whatever comes later."""
    for rank in ranks:
        measured, why, seen, asked = rank["talking"]
        assert measured is None
        assert "its forward communicates with other ranks" in why
        assert (seen, asked) == (4, 1)


def test_no_rank_waits_where_planning_fails_on_another(ranks):
    """If planning fails on rank 0, rank 0 raises, and the other rank plans alone. Otherwise only rank 0 plans."""
    ((again, twice), (ours, once)), ((alone, one), (others, none)) = (rank["failing"] for rank in ranks)
    assert again
    assert alone
    assert ours
    assert ours == others
    assert (twice, once, one, none) == (2, 1, 1, 0)


def test_what_no_plan_keeps_to_is_said_on_all_ranks(ranks):
    ours, others = (rank["refused"] for rank in ranks)
    assert ours == others
    assert ours


def test_ranks_that_do_not_come_together_plan_for_themselves(ranks):
    """With inputs of other shapes, and where one rank's forward comes before the other's."""
    assert [rank["bounded, uneven"] for rank in ranks] == [True, True]
    assert ranks[0]["alone"]
