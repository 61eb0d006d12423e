"""``build_info`` and ``python -m actcore``."""

import os
import re
import subprocess
import sys

import pytest
import torch

import actcore
from actcore import info
from actcore.fused import FUSED_OPERATORS
from actcore.ops import OPERATORS


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | environment,
    )


def test_build_info_holds_plain_values_under_documented_names():
    facts = actcore.build_info()
    assert set(facts) == {
        "version",
        "built_with_torch",
        "torch",
        "compiler",
        "cpu_kernels",
        "runnable_cpu_kernels",
        "threads",
        "cuda_version",
        "cuda_architectures",
        "cuda_missing",
    }
    assert facts["version"] == actcore.__version__
    assert facts["torch"] == torch.__version__
    assert facts["threads"] == torch.get_num_threads()
    assert facts["cpu_kernels"] in facts["runnable_cpu_kernels"]
    assert facts["runnable_cpu_kernels"][-1] == "portable"
    assert facts["compiler"]
    assert facts["built_with_torch"]


def test_cuda_is_either_loaded_or_missing_for_a_reason():
    facts = actcore.build_info()
    if facts["cuda_missing"]:
        assert "CUDA" in facts["cuda_missing"] or "nvcc" in facts["cuda_missing"] or "CPU" in facts["cuda_missing"]
    else:
        assert facts["cuda_version"]
        assert facts["cuda_architectures"]


def test_python_m_actcore_prints_the_facts_and_checks_every_operator():
    result = run("-m", "actcore")
    assert result.returncode == 0, result.stdout + result.stderr
    for name in actcore.build_info():
        assert name in result.stdout
    for operator in (*OPERATORS, *FUSED_OPERATORS):
        assert any(line.split() == ["cpu", operator, "ok"] for line in result.stdout.splitlines()), operator


def test_the_check_fails_when_an_operator_disagrees(monkeypatch):
    """A reference that is wrong in one bit stands for a kernel that is."""
    right = info.reference.pack_bits

    def wrong(codes, bits):
        packed = right(codes, bits)
        packed[-1] ^= 1
        return packed

    monkeypatch.setattr(info.reference, "pack_bits", wrong)
    results = dict(info.check_operators(torch.device("cpu")))
    assert not results["pack_bits"]
    assert not results["positive_mask"]
    assert results["unpack_bits"]

    from actcore.__main__ import main

    assert main() == 1


def test_unknown_kernels_raise_with_the_names_that_run_here():
    result = run("-c", "import actcore; actcore.build_info()", ACTCORE_CPU="pentium")
    assert result.returncode != 0
    assert "ACTCORE_CPU must name kernels that run on this processor" in result.stderr
    assert "portable), got 'pentium'; unset it to take the fastest" in result.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="a limit of a process's memory takes Linux")
def test_what_finds_no_memory_says_so():
    """The headers of torch 2.10 and 2.11 have no words for it: the error named a call of torch's C interface."""
    script = (
        "import resource, torch, actcore\n"
        "packed = torch.zeros(2**23, dtype=torch.uint8)\n"
        "actcore.unpack_bits(packed[:1], 1, 8)\n"  # what a first call loads
        "resource.setrlimit(resource.RLIMIT_DATA, (1, 1))\n"
        "actcore.unpack_bits(packed, 1, 2**26)\n"  # 64 MiB, which glibc takes from nothing that it has
    )
    assert re.search("out of memory|can't allocate memory", run("-c", script).stderr.splitlines()[-1])
