"""A decoder of transformers on two ranks of FSDP2, in mixed precision, at lean and with a loss in chunks."""

import pytest
import torch

from .libraries import library_or_skip
from .two_ranks import run_two_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

BFLOAT16 = 2**-8
"""A rounding of bfloat16, relative."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    library_or_skip("transformers")
    return run_two_ranks("guests_fsdp_child.py", tmp_path_factory.mktemp("ranks") / "store")


@pytest.mark.parametrize(
    ("case", "loss", "error"),
    [
        ("exact, float32", 1e-6, 256 * 2**-24),  # sums in another order
        # The plain loss takes logits that were rounded, and rounds their gradient; in chunks neither is.
        ("exact", BFLOAT16, 4 * BFLOAT16),
        ("lean", BFLOAT16, 0.15),  # what test_ecosystems.py allows for 4 to 8 bits
        ("lean, compressed after", BFLOAT16, 0.15),
        ("lean, checkpointed", BFLOAT16, 0.15),
    ],
)
def test_ranks_get_the_gradient_of_fully_shard_alone(ranks, case, loss, error):
    first, second = (rank[case] for rank in ranks)
    assert first["sum"] == second["sum"]  # of the averaged gradients: the ranks agree
    for rank in (first, second):
        assert rank["loss"] <= loss
        assert rank["error"] <= error
        assert "without logits" in rank["exchanged"]
        assert rank["ratio"] > (1.5 if "lean" in case else 0)
