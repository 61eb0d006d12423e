"""Compiled models under DistributedDataParallel and ``fully_shard``: the gradient of one process, and kept budgets."""

import pytest
import torch

from .two_ranks import run_two_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

WAYS = ("replicated", "sharded", "sharded in blocks", "sharded and compiled in blocks")
PLAIN = 2 * 64 * (32 + 32 + 64 + 64) * 4
"""Bytes that a rank saves plainly: of each block, the inputs of its layers."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    return run_two_ranks("compiled_ranks_child.py", tmp_path_factory.mktemp("ranks") / "store", timeout=300)


@pytest.mark.parametrize("way", WAYS)
def test_a_level_stores_and_the_gradient_is_that_of_one_process(ranks, way):
    for rank in ranks:
        found = rank[f"{way}, level"]
        assert 0 < found["error"] < 0.15
        assert 0 < found["stored"] < PLAIN / 3


def test_a_plan_is_counted_where_torch_would_split_the_graph(ranks):
    """Inductor was not recognized behind DistributedDataParallel's optimizer, and nothing was counted."""
    for rank in ranks:
        found = rank["replicated, plan"]
        assert found["error"] < 1e-5
        assert 0 < found["peak"] <= found["budget"]


@pytest.mark.parametrize("way", ["sharded", "sharded and compiled in blocks"])
def test_a_plan_is_followed_in_shards(ranks, way):
    for rank in ranks:
        found = rank[f"{way}, plan"]
        assert found["error"] < 1e-5
        assert 0 < found["stored"] < PLAIN


def test_a_plan_raises_where_shards_break_the_graph(ranks):
    for rank in ranks:
        assert "the forward has a graph break" in rank["sharded in blocks, plan"]["raised"]
