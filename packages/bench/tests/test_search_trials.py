"""Trials of ``python -m bench search``: the limit, in real processes, and what ends a process."""

import os
import sys
from dataclasses import replace

import pytest
import torch

from bench.suites.search import trial as trials
from bench.suites.search.dimensions import dimensions
from bench.suites.search.processes import Trials, ended
from bench.suites.search.trial import Request, out_of_memory, take
from bench.units import GIB
from bench.ways.general import PLAIN

LIMITED = pytest.mark.skipif(sys.platform != "linux", reason="a process's memory can be limited on Linux alone")
REQUEST = Request("gcn-layers", PLAIN, 48, "cpu", GIB, threads=1, seed=0)


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: ..."), True),
        (RuntimeError("std::bad_alloc"), True),
        (RuntimeError("could not create a primitive"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ZeroDivisionError("division by zero"), False),
    ],
)
def test_out_of_memory_is_told_apart(error, short):
    assert out_of_memory(error) is short
    outer = ValueError("a hook failed")
    outer.__cause__ = error
    assert out_of_memory(outer) is short


@pytest.mark.parametrize(
    ("code", "errors", "short"),
    [
        (-9, "", True),  # Linux ends what is too large for the machine
        (137, "", True),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", True),
        (1, "Traceback ...\nMemoryError", True),
        (-6, "terminate called after throwing an instance of 'std::out_of_range'", False),
        (-11, "", False),
        (1, "ModuleNotFoundError: No module named 'x'", False),
    ],
)
def test_how_a_process_ended_is_told_apart(code, errors, short):
    trial = ended(7, code, errors)
    assert (trial.value, trial.fits, trial.crashed) == (7, False, not short)
    assert f"code {code}" in trial.failure


def test_a_trial_without_a_limit(monkeypatch):
    monkeypatch.setattr(trials, "limit", lambda device, nbytes: None)  # it could not be lifted from this process
    trial = take(replace(REQUEST, way="L2", value=2))
    assert trial.fits
    assert trial.finite
    assert len(trial.step_seconds) == trials.TIMED
    assert trial.items == 1000
    assert trial.throughput > 0
    assert "already" in take(replace(REQUEST, way="save_on_cpu", value=2)).does_not_apply

    def broken(*given):
        raise ZeroDivisionError("of this model")

    monkeypatch.setattr(trials, "dimensions", broken)
    trial = take(REQUEST)
    assert trial.crashed
    assert "ZeroDivisionError: of this model" in trial.failure


@LIMITED
def test_plain_fails_where_compressed_finishes():
    # Half of what autograd alone would keep, beside weights, gradients and the optimizer's state: what holds all of it
    # cannot fit, whatever else it takes. L1 keeps it in an eighth or so, and has the rest for what its steps take.
    subject = dimensions("cpu")["gcn-layers"].make(REQUEST.value)
    x, _ = subject.inputs
    weights = sum(parameter.nbytes for parameter in subject.model.parameters())
    # Three tensors of a layer: the norm's input, the nonlinearity's result and dropout's factor, in all but the last.
    least = 3 * (REQUEST.value - 1) * x.shape[0] * 64 * 4
    limit = 3 * weights + least // 2
    with Trials() as made:
        plain = made.take(replace(REQUEST, memory_limit=limit))
        ours = made.take(replace(REQUEST, memory_limit=limit, way="L1"))
        broken = made.take(replace(REQUEST, way="no such way"))
        after = made.take(replace(REQUEST, value=2))
    assert not plain.fits
    assert not plain.crashed
    assert plain.failure
    assert ours.fits
    assert ours.finite
    assert broken.crashed
    assert "KeyError" in broken.failure
    assert after.fits  # the process that forks has survived all of them


NOISY = """
import sys
from bench.suites.search import processes

processes.prepare = lambda way, device, family: print("a library says hello")
processes.serve(sys.argv[1], iter(sys.stdin))
"""


@LIMITED
def test_what_a_library_prints_is_no_answer(monkeypatch, tmp_path):
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]))
    with Trials("noisy") as made:
        assert made.take(replace(REQUEST, value=2)).fits


def test_a_process_that_cannot_begin_is_said():
    with Trials("bench.suites.search.no_such_module") as made:
        trial = made.take(REQUEST)
        assert trial.crashed
        assert "No module named" in trial.failure
        assert made.take(REQUEST).crashed  # a new process is started, and says the same
