"""accelerate, transformers' Trainer and Lightning's ModelParallelStrategy shard a model with FSDP2, on two ranks.

The model is compressed before they shard it, or afterwards; without ``ACTCORE_LONG=1`` not each way is at both times.
On a CPU, accelerate leaves its FSDP plugin out; the ranks
have it do what it does on a GPU (``as_on_a_gpu`` of ``trainers_fsdp_child.py``).
"""

import itertools
import json

import pytest
import torch

from .guest_nets import LEAN
from .libraries import library_or_skip
from .long_form import LONG
from .two_ranks import run_forked_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)

BOTH = ("before", "after")
WHEN = {
    "accelerate": {"L1": BOTH, "lean": ("before",), "exact plan": ("after",)},
    "accelerate, bf16": {"L1": ("before",), "lean": ("after",), "exact plan": ("before",)},
    "transformers": {"L1": BOTH, "lean": ("after",), "exact plan": ("after",)},
    "lightning": {"L1": ("after",), "lean": ("before",), "exact plan": BOTH},
}
CASES = {
    (library, way): [(library, way, when) for when in (BOTH if LONG else some)]
    for library, ways in WHEN.items()
    for way, some in ways.items()
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    library_or_skip("transformers")
    folder = tmp_path_factory.mktemp("ranks")
    (folder / "cases.json").write_text(json.dumps([*itertools.chain(*CASES.values())]))
    run_forked_ranks("trainers_fsdp_child.py", folder, "transformers", "accelerate", "lightning.pytorch")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def of_ranks(ranks, library, way, when):
    name = f"{library}, {way}, {when}"
    if name not in ranks[0]:
        pytest.skip(f"{library.partition(',')[0]} is not installed")
    return [rank[name] for rank in ranks]


@pytest.mark.parametrize(("library", "way", "when"), [*itertools.chain(*CASES.values())])
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


@pytest.mark.parametrize(("library", "way"), list(CASES))
def test_bytes(ranks, library, way):
    """As on one rank, and the same whether the model is compressed before or after. A plan for FSDP2 keeps what passes
    from one unit to another, so its bytes follow from the units."""
    found = [of_ranks(ranks, *case) for case in CASES[library, way]]
    for rank, times in zip(ranks, zip(*found, strict=True), strict=True):
        [(original, stored)] = {tuple(one["bytes"]) for one in times}
        if way != "exact plan" and library != "accelerate, bf16":
            assert [original, stored] == rank["one rank"][way]
        assert stored < original


@pytest.mark.parametrize("way", ["L1", "exact plan"])
@pytest.mark.parametrize("library", ["accelerate", "transformers", "lightning"])
def test_a_resumed_run_ends_with_the_same_weights(ranks, library, way):
    """From each library's own checkpoint of a sharded model; nothing warns of an optimizer whose state is loaded."""
    assert [rank["resumed"] for rank in of_ranks(ranks, library, way, "after")] == [True, True]
