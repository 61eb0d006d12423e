"""The loss in chunks of models whose last layer the ranks share: in tensor parallel, or a unit of ``fully_shard``."""

import pytest
import torch

from .two_ranks import run_two_ranks

if not torch.distributed.is_available():
    pytest.skip("torch was built without torch.distributed", allow_module_level=True)

# Sums of 1,024 rows and classes in float64, which round to half units of 2^-53, through four products.
SUMS = 1e-12


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``sharded_head_child.py``)."""
    return run_two_ranks("sharded_head_child.py", tmp_path_factory.mktemp("ranks") / "meet", timeout=300)
