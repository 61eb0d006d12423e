"""accelerate, transformers' Trainer and Lightning's ModelParallelStrategy shard a model with FSDP2, on two ranks.

The model is compressed before they shard it, or afterwards. On a CPU, accelerate leaves its FSDP plugin out; the ranks
have it do what it does on a GPU (``as_on_a_gpu`` of ``trainers_fsdp_child.py``).
"""

import json

import pytest
import torch

from .guest_nets import LEAN
from .libraries import library_or_skip
from .two_ranks import run_forked_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

LIBRARIES = ("accelerate", "accelerate, bf16", "transformers", "lightning")
WAYS, WHEN = ("L1", "lean", "exact plan"), ("before", "after")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    library_or_skip("transformers")
    folder = tmp_path_factory.mktemp("ranks")
    run_forked_ranks("trainers_fsdp_child.py", folder, "transformers", "accelerate", "lightning.pytorch")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def of_ranks(ranks, library, way, when):
    name = f"{library}, {way}, {when}"
    if name not in ranks[0]:
        pytest.skip(f"{library.partition(',')[0]} is not installed")
    return [rank[name] for rank in ranks]


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_losses_and_gradients(ranks, library, way, when):
    """Beside the same training without compression: an exact plan's are equal, bit for bit, in all steps; at a level
    the first loss is, and the first gradient within what one rank is allowed."""
    found = of_ranks(ranks, library, way, when)
    assert found[0]["sum"] == found[1]["sum"]  # of the averaged gradients: the ranks agree
    for rank in found:
        assert rank["sharded"]
        expected, losses = rank["losses"]
        if way == "exact plan":
            assert (losses, rank["error"], rank["weights"]) == (expected, 0, True)
            assert rank["recomputed"] > 0
        else:
            assert losses[0] == expected[0]
            assert 0 < rank["error"] <= LEAN


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("library", LIBRARIES)
def test_bytes(ranks, library, way):
    """As on one rank, and the same whether the model is compressed before or after. A plan for FSDP2 keeps what passes
    from one unit to another, so its bytes follow from the units."""
    before, after = (of_ranks(ranks, library, way, when) for when in WHEN)
    for rank, (early, late) in zip(ranks, zip(before, after, strict=True), strict=True):
        assert early["bytes"] == late["bytes"]
        if way != "exact plan" and library != "accelerate, bf16":
            assert late["bytes"] == rank["one rank"][way]
        original, stored = late["bytes"]
        assert stored < original


@pytest.mark.parametrize("way", ["L1", "exact plan"])
@pytest.mark.parametrize("library", ["accelerate", "transformers", "lightning"])
def test_a_resumed_run_ends_with_the_same_weights(ranks, library, way):
    """From each library's own checkpoint of a sharded model; nothing warns of an optimizer whose state is loaded."""
    assert [rank["resumed"] for rank in of_ranks(ranks, library, way, "after")] == [True, True]
