"""Models in tensor and sequence parallel, whose activations are DTensors or parts of them."""

import pytest
import torch
from torch import nn

from integrations.capture.graphs.sharding import find_noise_rank

from .long_form import LONG
from .nets import mlp
from .two_ranks import run_ranks, run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

BUDGETS = ("1.0", "0.6", "0.4") if LONG else ("1.0", "0.4")
GATHER = "c10d_functional.all_gather_into_tensor"


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each of two ranks found (see ``tensor_parallel_child.py``)."""
    return run_two_ranks("tensor_parallel_child.py", tmp_path_factory.mktemp("ranks") / "meet", 300)


@pytest.mark.parametrize("way", ["tensor", "sequence"])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_losses_and_gradients(found, level, way):
    """A loss is the plain one, and errors of gradients are those of one rank."""
    for ranks in found:
        one, several = ranks[level]["one rank"], ranks[level][way]
        assert several["losses"][0] == several["losses"][1]
        assert several["error"] < 1.15 * one["error"]  # a few hundred thousand roundings scatter by less


@pytest.mark.parametrize(
    ("level", "way"), [("L1", "tensor"), ("L1", "sequence"), ("lean", "tensor"), ("lean", "tensor, whole")]
)
def test_backward_repeats_no_collective(found, level, way):
    for ranks in found:
        plain, compressed = ranks[level][way]["collectives"]
        assert plain == compressed
        assert plain


def test_lean_gathers_inputs_again_in_sequence_parallel(found):
    """Those of the first layer of both blocks, and of the last layer."""
    for ranks in found:
        plain, compressed = ranks["lean"]["sequence"]["collectives"]
        assert compressed == {**plain, GATHER: plain[GATHER] + 3}


@pytest.mark.parametrize("way", ["tensor", "sequence"])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_parameters_that_all_ranks_have_get_the_same_gradient(found, level, way):
    """With noise of their own, ranks had other gradients for norms and embeddings, which drifted apart."""
    assert [ranks[level][way]["spread"] for ranks in found] == [0.0, 0.0]
    assert found[0][level]["one rank"]["spread"] > 0  # nothing tells ranks with plain models that they are to agree


@pytest.mark.parametrize(
    ("case", "way"),
    [
        ("L1", "tensor"),
        ("L1", "sequence"),
        ("lean", "sequence"),
        ("lean, 256 features", "tensor"),
        ("lean, 256 features", "sequence"),
    ],
)
def test_as_many_times_less_is_kept_as_on_one_rank(found, case, way):
    """In tensor parallel, norms weigh more on a rank, which has their inputs whole. At lean, statistics and bounds of
    groups take an eighth of their bytes at 64 features, and little at 256."""
    for ranks in found:
        one, several = (
            before / after for before, after in (ranks[case][which]["bytes"] for which in ("one rank", way))
        )
        assert several > 0.95 * one


@pytest.mark.parametrize("way", ["tensor", "sequence"])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_each_tensor_is_stored_as_on_one_rank(found, level, way):
    """What differs is the size of groups, which follows from the shape of a rank's part, and the loss."""

    def read(which):
        rows = [row for row in found[0][level][which]["rows"] if row[0]]  # the loss is in no module
        return [(*row[:3], row[3].partition(", group_size")[0]) for row in rows]

    assert read(way) == read("one rank")


def test_dtensors_are_recomputed_as_parts_are(found):
    """The input of a row-wise layer is recomputed from that of the activation."""
    for ranks in found:
        parts, whole = ranks["lean"]["tensor"], ranks["lean"]["tensor, whole"]
        assert whole["losses"] == parts["losses"]
        assert whole["spread"] == 0.0
        assert whole["error"] == pytest.approx(parts["error"], rel=1e-5)  # they round alike, and sum in another order
        assert [row[:5] for row in whole["rows"]] == [row[:5] for row in parts["rows"]]
        assert whole["bytes"] == parts["bytes"]


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_compressed_before_it_is_parallel(found, way):
    for ranks in found:
        before, after = ranks["L1, compressed before"][way], ranks["L1"][way]
        assert before == after


@pytest.mark.parametrize("way", ["tensor", "sequence"])
@pytest.mark.parametrize("memory", BUDGETS)
def test_an_exact_plan_keeps_its_budget(found, memory, way):
    """Losses and gradients are the plain ones bit for bit, and as many times less is kept as on one rank."""
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


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_a_budget_that_no_plan_keeps_raises(found, way):
    for ranks in found:
        assert "memory with error=0 must be at least" in ranks["plan"][way]["refused"]


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_a_plan_beside_a_level(found, way):
    """Ranks round alike, and find the same plan."""
    for ranks in found:
        one, several = ranks["plan at L1"]["one rank"], ranks["plan at L1"][way]
        assert several["losses"][0] == several["losses"][1]
        assert 0 < several["error"] < 1.15 * one["error"]
        assert several["spread"] == 0.0
        assert any(row[3] == "recomputed" for row in several["rows"])


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_a_bound_on_the_error_raises(found, way):
    """Ranks would have other plans, and other gradients for parameters that all of them have."""
    for ranks in found:
        assert "error must be 0 for a model in tensor parallel, got 0.1" in ranks["error"][way]


@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_adaptive_levels_raise(found, way):
    for ranks in found:
        assert "level must have fixed bits for a model in tensor parallel, got 'L2'" in ranks["L2"][way]


@pytest.mark.parametrize("layers", ["layers", "linear"])
def test_layers_that_store_for_themselves_raise_for_dtensors(found, layers):
    for ranks in found:
        assert f"({layers}=" in ranks["layers"][layers]
        assert "store plain tensors, got a DTensor of shape (16, 32" in ranks["layers"][layers]


def test_few_bit_activations_of_local_tensors_train(found):
    """Between a column-wise and a row-wise layer there are no DTensors."""
    assert [ranks["layers"]["activations"] for ranks in found] == ["", ""]


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """What each of four ranks found, two in tensor parallel times two with parts of the parameters."""
    return run_ranks(4, "tensor_parallel_child.py", tmp_path_factory.mktemp("ranks") / "meet", 600)


@pytest.mark.skipif(not LONG, reason="one of the long forms: set ACTCORE_LONG=1")
@pytest.mark.parametrize("way", ["tensor", "sequence"])
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_four_ranks(four, level, way):
    """Losses are the plain ones, ranks that have the same parameters get the same gradients, and as many times less is
    kept as on one rank. The error is no larger: rounding noise of ranks with the same batch is averaged."""
    for ranks in four:
        one, several = ranks[level]["one rank"], ranks[level][way]
        assert several["losses"][0] == several["losses"][1]
        assert several["error"] < 1.15 * one["error"]
        assert several["spread"] == 0.0
        assert several["collectives"] == four[0][level][way]["collectives"]
        factor, factor_of_one = (before / after for before, after in (several["bytes"], one["bytes"]))
        assert (level, way) == ("lean", "tensor") or factor > 0.95 * factor_of_one


@pytest.mark.skipif(not LONG, reason="one of the long forms: set ACTCORE_LONG=1")
@pytest.mark.parametrize("way", ["tensor", "sequence"])
def test_four_ranks_compressed_before(four, way):
    for ranks in four:
        assert ranks["L1, compressed before"][way] == ranks["L1"][way]


@pytest.fixture
def last_of_four():
    """Makes this process rank 3 of a group of four in which no other rank is there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=3, world_size=4)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("last_of_four")
def test_ranks_with_the_same_data_round_alike():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = mlp(32, 2)
    assert find_noise_rank(model) == 3
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    assert find_noise_rank(fully_shard(mlp(32, 2), mesh=mesh["data"])) == 3
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel()})
    assert find_noise_rank(model) == 2
    fully_shard(model, mesh=mesh["data"])
    assert find_noise_rank(model) == 2
    fully_shard(everywhere := mlp(32, 2))
    assert find_noise_rank(everywhere) == 3
    assert find_noise_rank(nn.Sequential(model, everywhere)) == 2
