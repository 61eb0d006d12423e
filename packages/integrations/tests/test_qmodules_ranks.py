"""Q-layers in two processes: DistributedDataParallel with SyncBatchNorm on the CPU (see ``qmodules_child.py``)."""

import pytest
import torch
from torch import nn

from integrations import qmodules

from .nets import EIGHT_BITS, normal
from .qnets import q_layer, step
from .two_ranks import run_two_ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return run_two_ranks("qmodules_child.py", tmp_path_factory.mktemp("ranks") / "meet")


# The first layer's error is of what the norm passes on, too. At L0 it is that of sums in float32 in another order.
@pytest.mark.parametrize(("shares", "error"), [("equal", 2 * EIGHT_BITS), ("unequal", 2 * EIGHT_BITS), ("off", 1e-5)])
def test_statistics_and_gradients_are_those_of_the_whole_batch(ranks, shares, error):
    for rank in ranks:
        result = rank[shares]
        assert result["layer"] == "QSyncBatchNorm"
        assert max(result["errors"]) <= error
        assert max(result["statistics"]) < 1e-5  # in float32, over 512 values
    assert ranks[0][shares]["sums"] == ranks[1][shares]["sums"]


def test_ranks_round_independently(ranks):
    assert ranks[0]["rounded"] != ranks[1]["rounded"]


def test_alone_it_is_a_batch_norm_of_any_number_of_dimensions():
    for shape in [(20, 8), (4, 8, 40), (4, 8, 6, 6), (2, 8, 4, 4, 4)]:
        (expected, _), (output, _) = (
            step(m, normal(*shape)) for m in (nn.SyncBatchNorm(8), qmodules.QSyncBatchNorm(8))
        )
        assert torch.equal(output, expected)
    assert type(q_layer(nn.SyncBatchNorm(8)).to_module()) is nn.SyncBatchNorm
