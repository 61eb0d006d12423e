import gc
import importlib
import os
import threading
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from integrations.capture.costs import calibrating

from .heap import fake_tensors
from .inductor_kernels import empty_kernels
from .lanes import take_cpu_for_gpu
from .long_form import LONG
from .machine_rates import recorded
from .nets import assert_nothing_active


def pytest_addoption(parser):
    """The first four are of tests that measure many subjects: ``test_sweep.py`` and ``test_operator_database.py``."""
    options = parser.getgroup("recorded measurements")
    options.addoption("--record", type=Path, metavar="FILE", help="measure all, into a record of actcore-bench")
    options.addoption("--subject", action="append", default=[], metavar="NAME", help="measure these alone; repeatable")
    options.addoption("--level", default=None, help="of the sweep; default: L1")
    options.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="of the sweep; default: cpu")
    parser.addoption(
        "--rates", default="recorded", choices=("recorded", "measured"), help="by which tests plan; default: recorded"
    )


def pytest_configure(config):
    """Many models here are made so that nothing can be compressed; test_never_silent.py is about the warning."""
    config.addinivalue_line("filterwarnings", "ignore:.*nothing is stored in fewer bytes:UserWarning")
    if "PYTEST_XDIST_WORKER" in os.environ:  # workers are told the width of the terminal, which tables would take
        os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """The tensors are small: threads would only wait for each other."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def recorded_rates(request):
    """Plans are those of one machine: what tests expect of them must not depend on how fast, or busy, another is."""
    with pytest.MonkeyPatch.context() as patch:
        if request.config.getoption("--rates", "recorded") == "recorded":
            patch.setattr(calibrating, "_measured", recorded)
        yield


@pytest.fixture(autouse=True)
def nothing_is_left_active():
    """Whatever a test does, hooks and modes are balanced after it."""
    yield
    enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)  # so that the tests after this one do not fail, too
    assert enabled
    assert_nothing_active()


@pytest.fixture(scope="module")
def mesh():
    """A mesh of one rank, which is this process."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.fixture
def asked(request):
    """The option of a name; ``None`` where this file was not among pytest's arguments, and options are unknown."""
    return lambda name: request.config.getoption(f"--{name}", None)


@pytest.fixture
def measured(asked):
    """``measured(kind, settings, subjects, measure)``: what ``measure`` returns for each. ``--record`` writes it."""
    if asked("record") is None:
        return lambda kind, settings, subjects, measure: [measure(subject) for subject in subjects]
    return partial(importlib.import_module("bench.recorded_tests.write").measure_subjects, asked("record").absolute())


@pytest.fixture
def alone(monkeypatch):
    """No threads that other tests have left: what such may have changed, a capture does not roll back."""
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.current_thread()])


@pytest.fixture(scope="module")
def no_fakes():
    """No fake tensors are left by a module's tests; compilers hold those of others."""
    before = set(map(id, known := fake_tensors()))
    yield
    assert not [found for found in fake_tensors() if id(found) not in before]
    del known


@pytest.fixture(scope="module")
def captured_once():
    """``fit`` captures and plans once for trainings of a module's tests that are alike."""
    from integrations.estimate.fit import stage_ranks

    from .known_profiles import KNOWN, KnownProfiles

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_ranks, "Profiles", KnownProfiles)
        yield
    KNOWN.clear()


@pytest.fixture
def payloads(monkeypatch):
    """Weak references to every tensor in which something was stored, in order."""
    from integrations.runtime import replay_cache
    from integrations.tracing.storage.regions import Region

    made = []

    def noting(compress, parts):
        def noted(*args, **kwargs):
            stored = compress(*args, **kwargs)
            made.extend(weakref.ref(part) for part in parts(stored))
            return stored

        return noted

    monkeypatch.setattr(Region, "_compress", noting(Region._compress, lambda compressed: compressed.payload))
    # Of what is stored as a step before.
    monkeypatch.setattr(replay_cache, "COMPRESS", noting(replay_cache.COMPRESS, tuple))
    monkeypatch.setattr(replay_cache, "MASK", noting(replay_cache.MASK, lambda returned: returned[:1]))
    monkeypatch.setattr(replay_cache, "SIGNS", noting(replay_cache.SIGNS, lambda mask: (mask,)))
    return made


@pytest.fixture
def lane(monkeypatch):
    """Offload without a GPU."""
    return take_cpu_for_gpu(monkeypatch)


@pytest.fixture
def following_takes_no_time(monkeypatch):
    """Python's time for a forward that follows a plan counts as none: it is several times a step of models so small."""
    from integrations.capture.costs.calibrating import calibrated
    from integrations.planner import plan_with_stores

    def rating(device, dtype):
        rates = calibrated(device, dtype)
        return replace(rates, host=replace(rates.host, follow=0.0))

    monkeypatch.setattr(plan_with_stores, "calibrated", rating)


@pytest.fixture
def no_garbage_collection():
    """Reference counting alone has to free what is dropped."""
    importlib.import_module("torch._dynamo")  # a function of torch.fx that this calls keeps all its callers in a cycle
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def fresh_compiler(monkeypatch):
    """Nothing is compiled yet, and of what is compiled nothing stays.

    Collections that follow leave out what is alive here, most of which the compiler has imported. Dynamo does not take
    20 milliseconds for each graph to find out how long its guards run.
    """
    from torch._dynamo import guards

    monkeypatch.setattr(guards, "profile_guard_manager", lambda *arguments: 0.0)
    torch.compiler.reset()
    gc.collect()
    gc.freeze()
    yield
    torch.compiler.reset()


@pytest.fixture
def quick_kernels():
    """Inductor's kernels without vector instructions, which take less time to compile, but for the long form: graphs,
    strides and plans are the same."""
    from torch._inductor import config

    with config.patch({"cpp.simdlen": None if LONG else 1}):
        yield


@pytest.fixture(name="empty_kernels")
def _empty_kernels():
    """For tests of plans and of bytes that are alive."""
    with empty_kernels():
        yield


@pytest.fixture
def nothing_expected():
    """Inductor's settings are the user's after every test, and no plan waits for a graph."""
    import torch._inductor.config

    from integrations.runtime.compiled import partition

    yield
    assert torch._inductor.config.custom_partitioner_fn is None
    assert torch._inductor.config.allow_buffer_reuse
    assert torch._inductor.config._post_fusion_custom_pass is None
    assert getattr(partition._here, "plan", None) is None


@pytest.fixture
def divided(monkeypatch):
    """The plans by which graphs are divided."""
    from integrations.runtime.compiled import partition

    found, count = [], partition.count_peak

    def noted(forward, backward, outputs, plan, stored):
        found.append(plan)
        return count(forward, backward, outputs, plan, stored)

    monkeypatch.setattr(partition, "count_peak", noted)
    return found
