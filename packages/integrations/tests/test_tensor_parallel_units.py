"""Exact plans of models that both tensor parallelism and FSDP2 shard, on four ranks."""

import pytest
import torch

from .two_ranks import run_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

CASES = [
    "tensor",
    "sequence, not resharded",
    "sequence, few rows",
    "sequence, mixed, accumulated",
    "no tensor parallelism, few rows",
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of four ranks found (see ``tensor_parallel_units_child.py``)."""
    return run_ranks(4, "tensor_parallel_units_child.py", tmp_path_factory.mktemp("ranks") / "meet", 300)


@pytest.mark.parametrize("case", CASES)
def test_a_step_is_the_plain_one(found, case):
    """Losses and gradients are equal bit for bit, something is recomputed, and no collective is repeated."""
    for rank in found:
        plain, ours = rank[case]["losses"]
        assert plain == ours
        assert rank[case]["equal"]
        assert rank[case]["recomputed"] > 0
        assert rank[case]["collectives"][0] == rank[case]["collectives"][1]


@pytest.mark.parametrize("case", CASES)
def test_a_plan_keeps_its_budget(found, case):
    """But for what FSDP2 gathers, and the buffers of its collectives, which no budget counts."""
    for rank in found:
        plain, ours = rank[case]["bytes"]
        assert ours <= 1.05 * rank[case]["planned"]
        assert ours <= 1.05 * 0.5 * plain


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("no ")])
def test_all_ranks_follow_the_same_plan(found, case):
    """No rank plans by rates that it has measured."""
    assert len({rank[case]["plan"] for rank in found}) == 1


def test_bounds_that_no_plan_keeps_raise(found):
    for rank in found:
        assert "error must be 0 for a model in tensor parallel, got 0.1" in rank["error"]
        assert "memory with error=0 must be at least" in rank["least"]
