"""Every operator returns the CPU's bits for small tensors that begin and end anywhere.

compute-sanitizer runs this file (``tools/gpu.py sanitize``): a read or write outside of a tensor is an error there.
"""

import pytest
import torch

import actcore
from actcore.ops import CPU_OPERATORS

from .operator_calls import call_all

COUNTING = ("next_stream", "region_stream", "enter_region")
"""Operators that return another number in each call."""


@pytest.mark.cuda
def test_on_a_gpu():
    if actcore.build_info()["cuda_missing"]:
        pytest.skip(f"no CUDA operators: {actcore.build_info()['cuda_missing']}")
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    assert call_all(torch.device("cuda"), quick=False).wrong == []


def test_every_operator_is_called():
    calls = call_all(torch.device("cpu"), quick=True)
    every = {name.partition("::")[2] for name in torch._C._dispatch_get_all_op_names() if name.startswith("actcore::")}
    every = {name for name in every if not name.startswith((*COUNTING, *CPU_OPERATORS, "_"))}
    assert every - calls.names == set()
    assert calls.wrong == []


def test_a_wrong_result_is_found():
    calls = call_all(torch.device("cpu"), quick=True)
    calls.device = torch.device("meta")
    calls._placed = lambda tensor: tensor + 1
    calls("positive_mask", torch.tensor([-0.5]))
    assert calls.wrong == ["positive_mask, float32[1]"]
    calls.standardized(torch.arange(64.0), 4, 32, True, 1, 2, 8, 8, 0)
    _, codes, statistics = calls.wrong
    assert codes.startswith("group_affine_standardized_compress, float32[64]")
    assert statistics.startswith("group_affine_standardized_compress, the statistics of float32[64]")
