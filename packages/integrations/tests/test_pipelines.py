"""Budgets of the stages of a pipeline, with two ranks. A stage holds several micro-batches at once."""

import pytest

from .two_ranks import run_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``pipeline_child.py``)."""
    return run_two_ranks("pipeline_child.py", tmp_path_factory.mktemp("ranks") / "store", timeout=300)


@pytest.mark.parametrize("budget", ["tight", "wide"])
def test_a_stage_keeps_to_its_budget_in_every_step(ranks, budget):
    """The bytes are those of all operators of the step, with the buffers that the stage sends and receives."""
    for found, in_flight in zip(ranks, (2, 1), strict=True):
        one = found["peaks"][budget]
        assert one["in_flight"] == in_flight
        assert one["planned"] <= one["memory"]
        assert max(one["peaks"]) <= 1.05 * one["memory"]
        assert one["equal"]


@pytest.mark.parametrize("budget", ["tight", "wide"])
def test_a_stage_uses_its_budget(ranks, budget):
    """Without compression it takes more than the budget. It takes as much as planned, because all of its micro-batches
    are there when the peak is reached."""
    one = ranks[0]["peaks"][budget]
    assert one["plain"] > one["memory"]
    assert max(one["peaks"]) >= 0.99 * one["planned"]


def test_plans_count_the_micro_batches_that_the_schedule_has_in_flight(ranks):
    first, second = (found["counted"] for found in ranks)
    assert (first["1F1B"], second["1F1B"]) == ([[2, 2]], [[1, 1]])
    assert (first["GPipe"], second["GPipe"]) == ([[4, 4]], [[4, 4]])
    assert first.keys() == second.keys() == {"1F1B", "GPipe", "interleaved", "zero bubble", "V"}
    for planned, found in (count for one in (first, second) for counts in one.values() for count in counts):
        assert planned == found


def test_refusals_name_the_bytes_and_how_many_are_in_flight(ranks):
    for found in ranks:
        refused = found["refused"]
        assert "memory with error=0 and in_flight=4 must be at least" in refused["too little"]
        assert "has 1 forward in flight" in refused["more than said"]
        assert "Pass in_flight=2" in refused["more than said"]
