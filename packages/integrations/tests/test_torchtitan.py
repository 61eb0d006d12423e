"""torchtitan's Trainer with two ranks, where it is installed."""

import importlib.util
import json

import pytest

from .two_ranks import run_torchrun

titan = pytest.mark.skipif(importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed")
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
@pytest.mark.parametrize("mesh", MESHES)
def test_plans_are_exact(ranks, mesh):
    for found in ranks:
        for one, other in zip(found[f"{mesh} plain"], found[f"{mesh} plan"], strict=True):
            assert (other[LOSS], other[NORM]) == (one[LOSS], one[NORM])


@titan
def test_a_resumed_run_rounds_as_one_without_a_break(ranks):
    for found in ranks:
        assert found["resumed"] == found["whole"][1:]


@pytest.mark.skipif(importlib.util.find_spec("torchtitan") is not None, reason="torchtitan is installed")
def test_without_torchtitan_the_error_says_what_to_install():
    with pytest.raises(ImportError, match="integrations.torchtitan needs torchtitan, which is not installed"):
        importlib.import_module("integrations.torchtitan")
