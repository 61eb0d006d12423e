"""What ``recompute=True`` gathers again from all ranks: each rank stores its shard, and all communicate alike."""

import pytest
import torch
from torch import nn

import integrations
from integrations.runtime.formulas.table import Formulas

from .libraries import TORCH
from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

GATHERS = {
    **dict.fromkeys(("one", "three", "three, dim 1", "through_local", "through_local, dim 1", "cast"), 1),
    **dict.fromkeys(("stored", "stored, dim 1", "of a part", "third step"), 1),
    "two forwards": 2,
    # Ranks differ in what they store.
    **dict.fromkeys(("repeated", "shown", "shown_later", "overwritten", "overwritten_first"), 1),
    "twice": 4,  # once for the three layers, and once for each where torch keeps the graph
    **dict.fromkeys(("read_before", "in_place", "uneven", "planned", "local"), 0),
}
"""By case: how often backward gathers tensors again."""
old = pytest.mark.skipif(
    TORCH < (2, 12), reason="before torch 2.12 no linear layer takes a DTensor sharded in the middle"
)
CASES = [pytest.param(case, marks=old) if "dim 1" in case else case for case in GATHERS]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``gathers_child.py``)."""
    return run_two_ranks("gathers_child.py", tmp_path_factory.mktemp("ranks") / "meet", 180)


@pytest.mark.parametrize("case", CASES)
def test_all_ranks_communicate_alike(ranks, case):
    """Also where one of them stores what the other recomputes. One that gathered alone would wait for the other."""
    plain, compressed = ranks[0][case]["orders"]
    assert ranks[1][case]["orders"] == [plain, compressed]
    gathers = [one for one in compressed if one[0] == "all_gather_into_tensor"]
    assert len(gathers) == GATHERS[case]
    assert [one for one in compressed if one not in gathers] == plain


@pytest.mark.parametrize("case", CASES)
def test_gradients(ranks, case):
    """Parameters that ranks have whole get the same gradient on all of them."""
    for found in ranks:
        assert found[case]["error"] < 0.02
        assert found[case]["sum"] == ranks[0][case]["sum"]


def test_a_shard_is_recomputed(ranks):
    """So it is rounded once, with the norm's input."""
    cases = {"one", "three", "three, dim 1", "through_local", "through_local, dim 1", "cast", "third step"}
    for found in ranks:
        for case in cases & found.keys():
            assert {tuple(row) for row in found[case]["stored"]} == {("recomputed", 0)}
        assert found["three"]["error"] < found["local"]["error"]


def test_a_shard_that_cannot_be_recomputed_is_stored(ranks):
    for found in ranks:
        [codec, nbytes], *_ = found["local"]["stored"]
        assert found["stored"]["stored"] == [[codec, nbytes // 2]]


def test_a_rank_stores_what_may_have_changed(ranks):
    """Only this rank, if only its memory was exposed."""
    shown, whole = ranks[0], ranks[1]
    [codec, nbytes], *_ = shown["local"]["stored"]
    assert shown["shown"]["stored"] == [[codec, nbytes + nbytes // 2], [codec, nbytes], [codec, nbytes]]
    assert shown["shown_later"]["stored"] == [["recomputed", 0], [codec, nbytes]]
    for case in ("shown", "shown_later"):
        assert {tuple(row) for row in whole[case]["stored"]} == {("recomputed", 0)}


def test_reading_one_outside_of_backward_raises(ranks):
    for found in ranks:
        assert "read outside of backward: to restore it, all ranks have to gather it together" in found["outside"]


def test_a_gradient_of_a_gradient_warns(ranks):
    for found in ranks:
        assert ["create_graph=True" in one for one in found["second derivative"]] == [True]


@pytest.mark.parametrize(
    ("options", "gathers"),
    [({}, True), ({"recompute": "local"}, False), ({"recompute": False}, False), ({"memory": "least"}, False)],
)
def test_when_nothing_is_gathered_again(monkeypatch, options, gathers):
    """Ranks may have plans of their own, of which one keeps what another one's plan does not."""
    asked = []
    monkeypatch.setattr(Formulas, "gather_again", lambda self: asked.append(self))
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64))
    model = integrations.compress_model(net, "lean", **options)
    model(torch.randn(64, 64)).sum().backward()
    assert bool(asked) is gathers
