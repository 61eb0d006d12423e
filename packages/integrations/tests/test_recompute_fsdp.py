"""Models with a plan under ``fully_shard``: two processes train as plain ones do, bit for bit, and gather as often."""

import pytest
import torch

from integrations.capture.graphs.schedule import Schedule
from integrations.checkpoint import capture

from .recompute_nets import net
from .two_ranks import run_two_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

BEFORE = ("blocks", "root", "linear", "nested", "group", "mixed", "no reshard")
BEFORE += ("accumulated", "two forwards", "checkpointed")
AFTER = ("blocks", "nested", "mixed", "checkpointed")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    return run_two_ranks("recompute_fsdp_child.py", tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize(
    ("case", "planned"), [*((case, "before") for case in BEFORE), *((case, "after") for case in AFTER)]
)
def test_the_gradient_is_that_of_fully_shard_alone(ranks, case, planned):
    """With a plan that was made before the model was cut, or after; nothing is gathered once more for it, though
    something is repeated."""
    assert [rank[case][planned] for rank in ranks] == [[True, 0, True]] * 2


@pytest.mark.parametrize("case", ["parts", "different", "error", "other inputs", "graphs", "values"])
def test_a_cut_model(ranks, case):
    """Whose parts have plans of their own; of which each rank follows another plan; after an error in its forward; with
    inputs of other shapes; its graph; with stores of its values, exact and rounded."""
    assert [rank[case] for rank in ranks] == [True, True]


def test_ranks_make_the_same_plan(ranks):
    assert ranks[0]["plan"] == ranks[1]["plan"]


def test_a_plan_has_the_class_that_the_model_had_before(ranks):
    assert [rank["title"] for rank in ranks] == ["Model", "Model"]


def test_what_cannot_be_done_is_said(ranks):
    for rank in ranks:
        captured, read = rank["refused"]
        assert "make the plan before fully_shard, and apply it afterwards" in captured
        assert "but its storage was resized to 0" in read


@pytest.mark.parametrize("units", [{"0"}, {"0", "3", "4"}, {"0.conv1", "0", "4"}])
def test_no_segment_leaves_a_unit(units):
    model, args, _ = net("resnet")
    graph = capture(model, args)

    def owner(module):
        return max((unit for unit in units if f"{module}.".startswith(f"{unit}.")), key=len, default="")

    schedule = Schedule.of(graph, []).within(frozenset(units))
    owners = [owner(op.module) for op in graph.ops]
    assert len(set(owners)) == len(units) + 1
    for number, op in enumerate(schedule.ops):
        assert op.segment < 0 or owners[op.segment] == owners[number]
        for value in graph.ops[number].reads:
            if owners[graph.values[value].producer] != owners[number]:
                # Unless an operator that is never repeated overwrites it.
                reader = next((op for op in schedule.ops if schedule.becomes.get(value) in op.makes), None)
                assert value not in schedule.recomputed or reader.segment < 0
    assert schedule.recomputed
    assert schedule.recomputed < Schedule.of(graph, []).recomputed
    assert schedule.of_any_sizes().within(frozenset()).recomputed == schedule.recomputed
