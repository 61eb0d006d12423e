"""torchtitan's Trainer with two ranks, where it is installed."""

import importlib.util
import json
import sys
import types
from pathlib import Path

import pytest

from .two_ranks import run_torchrun

titan = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
ROOT = Path(__file__).parents[3]
MESHES = ["fsdp", "tp", "tp, whole norms", "dtensor", "pp", "one"]
LOSS, NORM = "loss_metrics/global_avg_loss", "grad_norm"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``torchtitan_child.py``)."""
    folder = tmp_path_factory.mktemp("ranks")
    run_torchrun("torchtitan_child.py", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@titan
@pytest.mark.parametrize("level", ["L1", "lean"])
@pytest.mark.parametrize("mesh", MESHES)
def test_levels_store_less_and_train_alike(ranks, mesh, level):
    for found in ranks:
        plain, compressed = found[f"{mesh} plain"], found[f"{mesh} {level}"]
        assert [step[LOSS] for step in compressed] == pytest.approx([step[LOSS] for step in plain], rel=1e-2)
        assert all(step["compression/ratio"] > 4 for step in compressed)
        assert compressed[0]["spread"] == 0


@titan
def test_dtensors_are_stored_as_parts_are(ranks):
    for found in ranks:
        parts, dtensors = found["tp L1"][0], found["dtensor L1"][0]
        for name in ("compression/original(GiB)", "compression/stored(GiB)"):
            assert dtensors[name] == parts[name]


@titan
def test_lean_stores_as_many_times_less_with_dtensors_as_on_one_rank(ranks):
    """Tensors that are gathered in another way than by DTensors are not gathered again."""
    for found in ranks:
        ratios = {mesh: found[f"{mesh} lean"][0]["compression/ratio"] for mesh in ("one", "tp", "dtensor")}
        assert ratios["dtensor"] > 0.95 * ratios["one"]
        assert ratios["tp"] < ratios["dtensor"]


@titan
@pytest.mark.parametrize("mesh", MESHES)
def test_plans_are_exact(ranks, mesh):
    for found in ranks:
        for one, other in zip(found[f"{mesh} plain"], found[f"{mesh} plan"], strict=True):
            assert (other[LOSS], other[NORM]) == (one[LOSS], one[NORM])


@titan
def test_plans_that_round_train_a_pipeline(ranks):
    """A process crashed in backward, before measurements waited for the micro-batches in flight. The gradients of a
    measurement were added to those of the first step, while the stage's units had their parameters gathered."""
    for found in ranks:
        plain, rounded = found["pp plain"], found["pp rounded plan"]
        for name in (LOSS, NORM):
            assert [step[name] for step in rounded] == pytest.approx([step[name] for step in plain], rel=1e-2)


@titan
@pytest.mark.parametrize(("mesh", "counts"), [("pp", (2, 1)), ("fsdp", (1, 1))])
def test_plans_count_the_micro_batches_in_flight(ranks, mesh, counts):
    for found, count in zip(ranks, counts, strict=True):
        assert found[f"{mesh} plan"][0]["in_flight"] == [count]


@titan
@pytest.mark.parametrize("mesh", ["tp", "tp, whole norms"])
def test_plans_recompute_in_tensor_parallel(ranks, mesh):
    """Collectives write into tensors that they are given there, and gloo completes some by operators of its own."""
    for found in ranks:
        assert all(step["compression/ratio"] > 1.2 for step in found[f"{mesh} plan"])


@titan
@pytest.mark.parametrize("way", ["L1", "plan"])
def test_blocks_that_torchtitan_compiles(ranks, way):
    for found in ranks:
        plain, compressed = found["fsdp plain, compiled"], found[f"fsdp {way}, compiled"]
        # Inductor may fuse a plan's graphs otherwise, and rounds sums in another order then.
        limits = {"rel": 1e-2} if way == "L1" else {"rel": 1e-5}
        assert [step[LOSS] for step in compressed] == pytest.approx([step[LOSS] for step in plain], **limits)
        assert [step[NORM] for step in compressed] == pytest.approx([step[NORM] for step in plain], **limits)


@titan
def test_a_resumed_run_rounds_as_one_without_a_break(ranks):
    for found in ranks:
        assert found["resumed"] == found["whole"][1:]


@titan
def test_a_checkpoint_of_another_compression_raises(ranks):
    from integrations.torchtitan import _State

    for found in ranks:
        assert "the checkpoint is of a run at L1" in found["another level"]
    with pytest.raises(ValueError, match="the checkpoint's compression is of 2 ranks, and there are 1"):
        _State([]).load_state_dict({"ranks": 2})


@titan
def test_the_example_of_the_docs_is_a_configuration(monkeypatch):
    from torchtitan.config import ConfigManager

    page = (ROOT / "docs" / "how-to" / "distributed.md").read_text("utf-8")
    module = types.ModuleType("my_configs")
    exec(page.partition("## torchtitan")[2].partition("```python")[2].partition("```")[0], vars(module))
    monkeypatch.setitem(sys.modules, "my_configs", module)
    arguments = ["--module", "my_configs", "--config", "llama3_8b_compressed", "--training.steps", "7"]
    found = ConfigManager().parse_args(arguments)
    assert found.activation_checkpoint.level == "L1"
    assert found.training.steps == 7
    assert {type(found.checkpoint).__module__, type(found.metrics).__module__} == {"integrations.torchtitan"}


@titan
@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"level": "L9"}, ValueError, "level must be one of"),
        ({"memory": -1}, ValueError, "memory must be above 0"),
        ({"levels": "L1"}, ValueError, "options of a level are .* got .levels."),
        ({"loss": "chunked"}, TypeError, "torchtitan has its own loss in chunks"),
        ({"memory": "40GiB", "options": {"memory": "10GiB"}}, TypeError, "options must be options of the level"),
    ],
)
def test_bad_arguments_raise_where_the_configuration_is_made(arguments, error, told):
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    from integrations.torchtitan import compress_config

    with pytest.raises(error, match=told):
        compress_config(llama3_debugmodel(), **arguments)


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is not None, reason="torchtitan is installed")
def test_without_torchtitan_the_error_says_what_to_install():
    with pytest.raises(ImportError, match=r"integrations\.torchtitan needs torchtitan, which is not installed"):
        importlib.import_module("integrations.torchtitan")
