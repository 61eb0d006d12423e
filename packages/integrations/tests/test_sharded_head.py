"""The loss in chunks of models whose last layer the ranks share: in tensor parallel, or a unit of ``fully_shard``."""

import itertools

import pytest
import torch

from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

from .sharded_head_nets import BATCH, LENGTH, TENSOR, UNITS, WIDTH, WORDS, entropy

# Sums of 1,024 rows and classes in float64, which round to half units of 2^-53, through four products.
SUMS = 1e-12
ROWS = BATCH * LENGTH


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``sharded_head_child.py``)."""
    return run_two_ranks("sharded_head_child.py", tmp_path_factory.mktemp("ranks") / "meet", timeout=300)


WHOLE = [case for cases in (TENSOR, UNITS) for case in cases if entropy in cases[case]]
IN_CHUNKS = [case for case in (*TENSOR, *UNITS) if case not in WHOLE]


def require_equal(found):
    """Requires the losses, of a step or of several, and the gradients of one rank's plain model."""
    losses = found["losses"]
    for exact, *others in losses if isinstance(losses[0], list) else [losses]:
        assert others == pytest.approx([exact] * len(others), rel=SUMS, abs=0)
    assert found["error"] <= SUMS


@pytest.mark.parametrize("case", IN_CHUNKS)
def test_losses_and_gradients(ranks, case):
    """Those of a model on one rank, in tensor parallel, and of several steps in a unit of fully_shard. A chunk has 128
    of 1,024 rows, and the whole step takes less than this rank's logits of all rows."""
    for rank in ranks:
        found = rank[case]
        require_equal(found)
        assert found["said"] == "Exchanged: a loss in chunks of 128 rows, without logits."
        assert found["peak"] < found["logits"]
        assert found.get("whole", False) == (case == "group, kept")  # the weight, between forward and backward


@pytest.mark.parametrize("case", WHOLE)
def test_an_operation_that_needs_whole_logits(ranks, case):
    for rank in ranks:
        found = rank[case]
        require_equal(found)
        assert "though the logits were made, for softmax()" in found["said"]


def test_tensor_parallel_in_fully_shard(ranks):
    for rank in ranks:
        assert len(rank["both"]) == 3
        for found in itertools.chain.from_iterable(rank["both"]):
            require_equal(found)
            assert "without logits" in found["said"]


def test_beside_a_level(ranks):
    """The rest of the model is rounded alike, up to the order of sums."""
    for rank in ranks:
        plain, chunked = rank["lean"]
        require_equal({"losses": chunked["losses"], "error": abs(chunked["error"] - plain["error"])})
        # In place of half of the softmax, the gradients of half of the layer and of its input are kept.
        softmax, layer, given = (8 * count for count in (ROWS * WORDS // 2, (WIDTH + 1) * WORDS // 2, ROWS * WIDTH))
        assert chunked["stored"] <= plain["stored"] - softmax + layer + given


def test_beside_a_plan(ranks):
    for rank in ranks:
        for found in rank["planned"]:
            require_equal(found)
            assert "without logits" in found["said"]


def test_a_plan_does_not_make_the_chunks_of_a_shard_larger(ranks):
    """Ranks may follow different plans, and their chunks exchange sums."""
    for rank in ranks:
        planned, rows = rank["planned chunks"]
        assert planned == rows == 128


def test_a_plan_does_not_choose_it(ranks):
    """Ranks may have different plans, and would wait for each other."""
    for rank in ranks:
        for exact, loss, rows in rank["by plan"]:
            assert loss == pytest.approx(exact, rel=SUMS, abs=0)
            assert rows is None


def test_the_last_stage_of_a_pipeline(ranks):
    """torch asks whether its output is a view, and detaches it."""
    for rank in ranks:
        require_equal(rank["pipeline"])
    last = ranks[1]["pipeline"]
    assert "without logits" in last["said"]
    assert last["peak"] < last["logits"]


def test_the_function_takes_dtensors(ranks):
    for rank in ranks:
        for found in rank["function"]:
            require_equal(found)


@pytest.mark.parametrize(
    ("case", "told"),
    [
        ("plain hidden", "in tensor parallel, hidden and weight must both be DTensors"),
        ("sharded hidden", "hidden must be placed as (Replicate(),) on the mesh of weight, got (Shard(dim=0),)"),
        ("rows of weight", "the weight is a DTensor placed as (Shard(dim=1),) on a mesh of shape (2,), and must be"),
        ("plain bias", "the bias is a plain tensor, and the other parameter a DTensor"),
        ("no classes", "a rank has none of the 1 classes"),
        ("sharded labels", "labels must be a plain tensor, or placed as (Replicate(),) on the mesh of weight"),
        ("label", "labels must be classes from 0 to 63"),
        ("rowwise", "loss must be 'full' for this model: a loss in chunks cannot use its last Linear, because the"),
    ],
)
def test_what_is_not_supported_raises(ranks, case, told):
    for rank in ranks:
        assert told in rank["refused"][case]


def test_logits_that_ranks_must_gather_are_not_read_after_their_loss(ranks):
    """One rank that reads them alone would wait for the others. Its own part of them it may read."""
    for rank in ranks:
        assert rank["read afterwards"]["sharded"] == [""]
        for function, told in zip(("argmax", "exp"), rank["read afterwards"]["replicated"], strict=True):
            assert told.startswith(f"{function}() needs whole logits after their loss")
            assert "loss='full'" in told


def test_a_loss_after_the_weights_have_changed_raises(ranks):
    for rank in ranks:
        for told in (*rank["too late"], rank["replaced"]):
            assert "chunked logits must be read before the weights" in told
