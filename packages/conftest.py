"""What the tests of all packages share."""

import gc
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch


def pytest_configure(config):
    """The first backward decides whether autograd has threads for devices. If it has, no forked process can run one.

    Where torch is built for CUDA and there is no GPU, it has them if a ``FakeTensorMode`` came before that backward.
    """
    torch.ones(1, requires_grad=True).sum().backward()
    # Captures and compilers make so many objects that collections took a tenth of the time. Fewer find as much garbage.
    gc.set_threshold(10_000, 10, 10)


@pytest.fixture(autouse=True, scope="session")
def seeds_are_of_devices_that_are_there():
    """Of others, ``torch.manual_seed`` keeps each seed with a trace of the stack, for when they are initialized.

    That took a millisecond each time, and half the time of the tests that go through torch's database of operators.
    """
    with pytest.MonkeyPatch.context() as patch:
        for devices in (torch.cuda, torch.xpu, torch.mtia):
            if hasattr(devices, "manual_seed_all") and not devices.is_available():  # mtia's has none in torch 2.10
                patch.setattr(devices, "manual_seed_all", lambda seed: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def collections_are_of_a_modules_own():
    """Garbage collections look through what a module's tests make, and not through all that was imported before.

    Many tests collect garbage so that they can count memory, and each of those collections took half a second or more
    beside torch, transformers and timm: the tests of ``bench systems`` spent 60 of their 81 seconds so.
    """
    gc.collect()
    gc.freeze()


_FORK_FOR_EACH_REQUEST = """
import gc, io, os, sys
from integrations.capture.costs import timed_call

gc.freeze()
while size := sys.stdin.buffer.readline():
    request = sys.stdin.buffer.read(int(size))
    if fork := os.fork():
        print("ended", os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1]), flush=True)
    else:
        sys.stdin = io.TextIOWrapper(io.BytesIO(request))
        timed_call.main()
        os._exit(0)
"""


@pytest.fixture(scope="session")
def _measuring():
    """Runs what measures workspaces in forks of one process, which has the allocator's settings and imports torch."""
    servers = []

    def run(command, input, env, capture_output):
        if not servers:
            command = [sys.executable, "-W", "ignore", "-c", _FORK_FOR_EACH_REQUEST]
            servers.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env))
        [server] = servers
        server.stdin.write(b"%d\n%s" % (len(input), input))
        server.stdin.flush()
        *lines, ended = read_answer(server.stdout)
        return subprocess.CompletedProcess(command, int(ended.split()[1]), b"".join(lines), b"")

    def read_answer(lines):
        for line in lines:
            yield line
            if line.startswith(b"ended"):
                return

    yield run
    for server in servers:
        server.communicate()


@pytest.fixture(scope="session")
def _measured():
    """What calls of operators took, by what is asked."""
    return {}


@pytest.fixture
def measured_once(monkeypatch, _measured, _measuring):
    """Measure the workspaces of like calls once, and not in each test anew, in forks that do not import torch again.

    test_recompute_workspaces.py tests measurements in processes of their own, as users have them.
    """
    from integrations.capture.costs import workspaces

    on_cpu = workspaces._on_cpu

    def once(calls):
        setting = repr(workspaces.setting())
        new = [call for call in calls if (setting, call) not in _measured]
        if new:
            found = on_cpu(new)
            _measured.update({(setting, call): found.get(place) for place, call in enumerate(new)})
        costs = {place: _measured[setting, call] for place, call in enumerate(calls)}
        return {place: cost for place, cost in costs.items() if cost is not None}

    monkeypatch.setattr(workspaces, "subprocess", SimpleNamespace(run=_measuring))
    monkeypatch.setattr(workspaces, "_on_cpu", once)
