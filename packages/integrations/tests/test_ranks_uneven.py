"""Two ranks that do not do the same under DistributedDataParallel: plans of their own, fewer batches, a death."""

import json

import pytest
import torch

from .two_ranks import run_torchrun

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What both ranks found before rank 1 died, and what they did after torchrun had started them again."""
    folder = tmp_path_factory.mktemp("ranks")
    run_torchrun("uneven_child.py", folder, "--max-restarts=1", "--monitor-interval=0.1")
    return {
        when: [json.loads((folder / f"{when}.{rank}.json").read_text()) for rank in range(2)]
        for when in ("first", "restarted")
    }


def test_two_exact_plans_on_two_ranks_train_as_plain_ranks_do(found):
    """A plan says what waits for backward on its own rank, and no other has to know: nothing is refused."""
    one, other = found["first"]
    assert one["exact"]["plan"] != other["exact"]["plan"]
    assert {rank["exact"]["weights"] for rank in (one, other)} == {one["plain"]}


def test_two_rounding_plans_on_two_ranks_leave_one_model(found):
    """Each rank's gradient has its own plan's error; ranks take the mean of both."""
    one, other = found["first"]
    assert one["rounding"]["plan"] != other["rounding"]["plan"]
    assert one["rounding"]["weights"] == other["rounding"]["weights"] != one["plain"]


@pytest.mark.parametrize(("level", "count"), [("L1", 3), ("lean", 3), ("L2", 2)])
def test_a_rank_that_has_no_more_batches_joins(found, level, count):
    """It has the weights of the one that goes on, and no noise is drawn for what it does not do. At L2, each rank
    plans from its own measurement: who has joined answers nobody."""
    one, other = (rank["joined"] for rank in found["first"])
    assert (one[level]["steps"], other[level]["steps"]) == (count, count + 2)
    assert one["plain"]["weights"] == other["plain"]["weights"]
    assert one[level]["weights"] == other[level]["weights"] != one["plain"]["weights"]


def test_a_rank_without_any_batch_joins_one_that_plans(found):
    one, other = (rank["joined"]["memory"] for rank in found["first"])
    assert (one["steps"], other["steps"]) == (0, 2)
    assert one["weights"] == other["weights"]


@pytest.mark.parametrize("level", ["L1", "lean", "L1.2", "L2"])
def test_ranks_that_are_started_again_end_as_they_would_have(found, level):
    """Bit for bit, from weights, the optimizer's state and the handle's."""
    undisturbed = [rank["undisturbed"][level] for rank in found["first"]]
    assert [rank[level] for rank in found["restarted"]] == undisturbed
    assert undisturbed[0] == undisturbed[1]
