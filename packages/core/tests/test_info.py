"""``build_info`` and ``python -m actcore``."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import actcore
from actcore import _library, _native, info
from actcore.fused import FUSED_OPERATORS
from actcore.ops import GRAPH_OPERATORS, OPERATORS, WRITING_OPERATORS


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


def test_a_cuda_library_that_cannot_be_loaded_does_not_stop_the_import(tmp_path):
    """It is damaged here; a symbol that torch lacks raises the same."""
    ours = Path(_library.__file__).parent
    shutil.copytree(ours, tmp_path / "actcore", ignore=shutil.ignore_patterns("__pycache__", "_ops_cuda.so"))
    (tmp_path / "actcore" / "_ops_cuda.so").write_bytes(b"no library")
    program = f"""
import torch
torch.version.cuda = {_native.cuda_version!r}  # a torch for which the library was built
import actcore
print(actcore.build_info()["cuda_missing"])
print(actcore.missing_on(torch.device("cuda")) == actcore.build_info()["cuda_missing"])
print(actcore.compress(torch.ones(300), actcore.GroupAffine(bits=8)).decompress().sum())
"""
    result = run("-c", program, PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    reason, missing, total = result.stdout.splitlines()
    assert reason.startswith("actcore's CUDA operators cannot be loaded: ")
    assert "_ops_cuda.so" in reason
    assert (missing, total) == ("True", "tensor(300.)")
    assert result.stderr.count("CPU tensors work") == 1


AMPERE_AND_LATER = "80-real 90"
"""As the build makes them by default."""


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((7, 5), AMPERE_AND_LATER, False),
        ((8, 0), AMPERE_AND_LATER, True),
        ((8, 9), AMPERE_AND_LATER, True),  # machine code of its major version
        ((9, 0), AMPERE_AND_LATER, True),
        ((10, 3), AMPERE_AND_LATER, True),  # PTX
        ((12, 0), AMPERE_AND_LATER, True),
        ((8, 0), "90", False),
        ((8, 0), "86-real", False),
        ((10, 0), "90-real", False),
        ((10, 0), "90-virtual", True),
        ((12, 1), "80-real 120-real", True),
        ((7, 5), "native", True),
        ((9, 0), "90a-real", True),
    ],
)
def test_which_gpus_run_what_was_built(capability, architectures, runs):
    assert _library._runs_on(capability, architectures.split()) is runs


@pytest.fixture
def turing(monkeypatch):
    """A GPU that is too old, in the words in which torch tells of it."""
    monkeypatch.setattr(_library, "cuda_missing", "")
    monkeypatch.setattr(_native, "cuda_architectures", AMPERE_AND_LATER)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    yield
    _library._missing_on_gpu.cache_clear()


def test_a_gpu_that_is_too_old_is_named(turing, capsys):
    """Kernels that were not compiled for it fail when they are launched, with an error that names neither."""
    reason = actcore.missing_on(torch.device("cuda", 0))
    assert "Tesla T4 is of architecture 75" in reason
    assert "built for 80-real, 90;" in reason
    assert "-DCMAKE_CUDA_ARCHITECTURES=75" in reason
    assert info.devices() == [torch.device("cpu")]

    from actcore.__main__ import main

    assert main() == 0
    assert f"cuda {reason}" in capsys.readouterr().out


def test_the_floor_of_cmake_knows_cxx20_for_nvcc():
    """3.25.1 does not. It is named twice: a build without isolation has the one of the dependency group."""
    root = Path(__file__).parents[3]
    cmake = (root / "packages/core/CMakeLists.txt").read_text()
    asked = re.search(r"cmake_minimum_required\(VERSION ([\d.]+)\)", cmake)[1]
    assert f'"cmake>={asked}"' in (root / "pyproject.toml").read_text()
    assert tuple(map(int, asked.split("."))) >= (3, 25, 2)


def test_python_m_actcore_prints_the_facts_and_checks_every_operator():
    result = run("-m", "actcore")
    assert result.returncode == 0, result.stdout + result.stderr
    for name in actcore.build_info():
        assert name in result.stdout
    for operator in (*OPERATORS, *GRAPH_OPERATORS, *WRITING_OPERATORS, *FUSED_OPERATORS):
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
    assert not results["positive_mask.graph"]
    assert not results["bit_mask_compress.graph"]

    from actcore.__main__ import main

    assert main() == 1


def test_the_check_looks_at_what_is_written(monkeypatch):
    """Into given tensors. Here the reference inverts no factor."""
    given = info.reference.group_affine_standardized_compress_given
    monkeypatch.setattr(
        info.reference,
        "group_affine_standardized_compress_given",
        lambda *arguments: (*given(*arguments)[:2], torch.stack(arguments[6:8])),
    )
    wrong = [name for name, agrees in info.check_operators(torch.device("cpu")) if not agrees]
    assert wrong == ["group_affine_standardized_compress.given"]


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


def test_the_bindings_use_no_private_name_of_python():
    """Python 3.13 moved some to its internal headers, and actcore did not compile. Frames are read in 3.11 alone."""
    csrc = Path(__file__).parents[1] / "csrc"
    sources = {path.name: path.read_text("utf-8") for path in csrc.glob("bindings/*")}
    assert len(sources) > 20
    assert {name for name, text in sources.items() if re.search(r"\b_Py[A-Z]|Py_BUILD_CORE", text)} == {"frames.cpp"}
