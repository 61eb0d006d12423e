"""transformers' Trainer, accelerate and Lightning in the environment that torchrun makes, with two gloo processes."""

import json

import pytest
import torch

from .two_ranks import run_forked_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available(), reason="torch was built without torch.distributed"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    run_forked_ranks("trainers_child.py", folder, "transformers", "accelerate", "lightning.pytorch")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("case", ["transformers", "accelerate", "lightning", "lightning, net"])
def test_two_processes_train_and_resume(ranks, case):
    """Both have the same weights after each run; and a run that is resumed right after its step was measured, before
    the ranks have agreed on a plan, ends with the weights of one without a break."""
    if case not in ranks[0]:
        pytest.skip(f"{case.split(',')[0]}, or what it needs, is not installed")
    one, other = (rank[case] for rank in ranks)
    assert one["weights"] == other["weights"]
    assert [one["resumed"], other["resumed"]] == [True, True]
    assert [one["plans"], other["plans"]] == [True, True]
    assert one["steps"] == other["steps"] == [4, 4]
    assert min(one["ratio"], other["ratio"]) > 1.5
