"""Context parallel: each rank has a part of every sequence, and attention is a ring of the ranks, or gathers all keys.

On a CPU, torch's ring runs with the CPU's kernel in the place of CUDA's (see ``context_parallel_child.py``).
"""

import pytest
import torch

from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

BUDGETS = "1.0", "0.6"
ONE_RANK = {"context": "one rank", "context, FSDP2": "one rank", "all keys": "all keys, one rank"}
WAYS = tuple(ONE_RANK)
ATTENTION = "scaled_dot_product_attention"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found (see ``context_parallel_child.py``)."""
    return run_two_ranks("context_parallel_child.py", tmp_path_factory.mktemp("ranks") / "meet", 300)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_losses_and_gradients(found, level, way):
    """A loss is the plain one, and errors of gradients are those of one rank with whole sequences."""
    for ranks in found:
        one, several = ranks[level][ONE_RANK[way]], ranks[level][way]
        assert several["plain error"] < 1e-5  # torch's own: the ranks compute what one rank does
        assert several["losses"][0] == several["losses"][1]
        assert 0 < several["error"] < 1.15 * one["error"]  # a few hundred thousand roundings scatter by less


def rows_outside_attention(ranks, level, way):
    """The rows but those of attention and of the layer that reads its result, which may lie in the same memory."""
    return [row for row in ranks[level][way]["rows"] if row[1] != ATTENTION and not row[0].endswith(".out")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_each_tensor_outside_attention_is_stored_as_on_one_rank(found, level, way):
    """But for the size of groups, which follows from the shape of a rank's part."""

    def read(ranks, way):
        rows = rows_outside_attention(ranks, level, way)
        return [(*row[:3], row[3].partition(", group_size")[0]) for row in rows]

    for ranks in found:
        several, one = (rows_outside_attention(ranks, level, which) for which in (way, ONE_RANK[way]))
        if "FSDP2" in way and level == "lean":  # results that need a weight are stored if it is large: here none is
            assert len(several) == len(one)
        assert read(ranks, way) == read(ranks, ONE_RANK[way])
        before, after = (sum(row[place] for row in several) for place in (4, 5))
        before_of_one, after_of_one = (sum(row[place] for row in one) for place in (4, 5))
        assert before / after > 0.95 * before_of_one / after_of_one


@pytest.mark.parametrize("way", ["context", "context, FSDP2"])
def test_tensors_of_a_ring_are_kept_once(found, way):
    """Query, key and value are parts of one tensor. Backward normalizes over the exact ones."""
    for ranks in found:
        rows = [row for row in ranks["L1"][way]["rows"] if row[:2] == ["blocks.0.attend", ATTENTION]]
        assert {row[3] for row in rows} == {"kept"}
        inputs = [row[4:6] for row in rows if row[2] == "input"]
        assert inputs == [[inputs[0][0]] * 2, [0, 0], [0, 0]]


def test_keys_of_all_ranks_are_stored_in_few_bits(found):
    for ranks in found:
        one, several = (
            before / after
            for before, after in (ranks["L1"][way]["bytes"] for way in ("all keys, one rank", "all keys"))
        )
        assert several > 0.95 * one


@pytest.mark.parametrize("way", ["context", "all keys"])
@pytest.mark.parametrize("memory", BUDGETS)
def test_an_exact_plan_keeps_its_budget(found, memory, way):
    """Losses and gradients are the plain ones bit for bit."""
    for ranks in found:
        one, several = ranks["plan"]["one rank"], ranks["plan"][way]
        plan = several[memory]
        assert plan["losses"][0] == plan["losses"][1]
        assert plan["equal"]
        assert plan["measured"] <= 1.05 * plan["planned"]
        assert plan["measured"] <= 1.05 * float(memory) * several["plain"]
        factor, factor_of_one = (each["plain"] / each[memory]["measured"] for each in (several, one))
        assert factor > 0.95 * factor_of_one
        assert (plan["recomputed"] > 0) == (memory != "1.0")


@pytest.mark.parametrize("way", ["context", "context, FSDP2"])
def test_each_rank_follows_a_plan_of_its_own(found, way):
    """The ring of another rank consists of other operators, which rank 0's plan does not have."""
    assert [ranks["followed"][way] for ranks in found] == [[], []]


@pytest.mark.parametrize("way", WAYS)
def test_adaptive_bits(found, way):
    for ranks in found:
        one, several = (ranks["L2"][which] for which in (ONE_RANK[way], way))
        assert several["measured"]
        assert 0 < several["error"] < 1.15 * one["error"]
        original, stored = several["bytes"]
        assert stored < original / 2


@pytest.mark.parametrize("way", ["context", "all keys"])
def test_a_bound_on_the_error_is_not_measured(found, way):
    """A rank took a step by itself to measure it, and waited for the others in attention."""
    told = [message for ranks in found for message in ranks["error"][way]]
    assert told  # a rank whose plan rounds nothing has nothing to measure
    assert all("error=0.2 of" in one and "its forward communicates with other ranks" in one for one in told)
    assert all("error must be 0 for a model in context parallel, got 0.2" in ranks["refused"][way] for ranks in found)


@pytest.mark.parametrize("way", WAYS)
def test_the_loss_in_chunks_of_a_rank_s_part(found, way):
    """As on one rank: the logits never exist, and the loss differs from the plain one by the order of its sums."""
    for ranks in found:
        one, several = ranks["chunked"][ONE_RANK[way]], ranks["chunked"][way]
        assert "without logits" in several["exchanged"]
        assert several["losses"][1] == pytest.approx(several["losses"][0], rel=1e-6)
        assert 0 < several["error"] < 1.15 * one["error"]
