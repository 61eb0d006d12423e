"""``tools/gpu.sh build``: in which way actcore is built, and what is told of a build that fails."""

import subprocess
import sysconfig

import pytest

from bench.gpu import build, building, facts
from bench.gpu.cases import Done
from bench.gpu.results import FAILED
from bench.results.machine import Machine

MACHINE = Machine("a GPU", 16, "Linux", {"torch": "2.11.0"}, "0123456789abc", False, "tools/gpu.sh build", "today")
SETTINGS = {"device": "cuda", "seed": 0}


LOG = """-- Looking for strerror_r - found
csrc/cuda/pool.cu(12): error: identifier "x" is undefined
ninja: build stopped: subcommand failed.
"""


def test_the_first_error_of_a_build_is_told():
    [row] = build._built(Done(1, LOG, 9.0))
    assert (row.outcome, row.reason) == (FAILED, 'csrc/cuda/pool.cu(12): error: identifier "x" is undefined')
    [cmake] = build._built(Done(1, "-- error_t: found\nCMake Error at CMakeLists.txt:3 (find_package):\n", 9.0))
    assert cmake.reason.startswith("CMake Error at")
    [over] = build._built(Done(-9, LOG, 330.0, over=True))
    assert over.reason == "ended after 330 s, its time was over"


@pytest.fixture
def ways(monkeypatch):
    """In which it was tried to build, each of which works."""
    tried = []
    monkeypatch.setattr(building, "_configured", lambda options: tried.append(("prepared", options)))
    monkeypatch.setattr(building, "_with_cmake", lambda site, folder: tried.append("CMake"))
    monkeypatch.setattr(building, "_with_pip", lambda site, options: tried.append(("pip", options)))
    monkeypatch.setattr(building, "version", lambda package: "1.1.2")
    return tried


def test_cmake_is_asked_first(ways, tmp_path):
    """pip came first; where it failed late, all was compiled again within the same limit."""
    assert building.build(tmp_path, "90-real") == "CMake"
    options = {"ACTCORE_WITH_CUDA": "ON", "CMAKE_CUDA_ARCHITECTURES": "90-real"}
    assert ways == [("prepared", options), "CMake"]
    assert building.build(tmp_path, "", "pip") == "pip"
    assert ways[2:] == [("pip", {"ACTCORE_WITH_CUDA": "OFF"})]


def test_where_cmake_cannot_be_asked_a_new_scikit_build_core_is(ways, monkeypatch, tmp_path):
    def fail(options):
        raise FileNotFoundError("cmake")

    monkeypatch.setattr(building, "_configured", fail)
    assert building.build(tmp_path, "90-real") == "pip"
    monkeypatch.setattr(building, "version", lambda package: "0.11.6")
    with pytest.raises(FileNotFoundError):
        building.build(tmp_path, "90-real")


def test_what_does_not_compile_is_not_compiled_again(ways, monkeypatch, tmp_path):
    def fail(site, folder):
        raise subprocess.CalledProcessError(1, "cmake --build")

    monkeypatch.setattr(building, "_with_cmake", fail)
    with pytest.raises(subprocess.CalledProcessError):
        building.build(tmp_path, "90-real")
    assert len(ways) == 1  # prepared


def test_facts_say_what_a_build_needs(monkeypatch, tmp_path):
    """Also of what lies with CUDA alone, where the stage `sanitize` takes it from."""
    monkeypatch.setattr(facts, "_CUDA", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert facts.facts()["compute-sanitizer"] == "compute-sanitizer is not there"
    tool = tmp_path / "compute-sanitizer"
    tool.write_text("#!/bin/sh\necho Version 2026\n")
    tool.chmod(0o755)
    found = facts.facts()
    assert found["compute-sanitizer"] == "Version 2026"
    assert found["Python.h"].endswith(sysconfig.get_path("include"))
