"""Faults inside of steps: torch's allocator fails, an operator or a call of a torch function raises, the user presses
Ctrl-C. What is the thread's, the model's and the user's is as before, and the next step is that of an undisturbed twin.

With ``ACTCORE_LONG=1`` (``nox -s faults``) a fault is put in every place of a step, otherwise in some.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import integrations
from integrations._utils.out_of_memory import is_out_of_memory
from integrations.tracing import hook_stack
from integrations.tracing.tracker import CallTracker

from .fault_ways import WAYS, X, step
from .faults import AtCall, AtFunction, AtOperator, Trial, counting_alone, places
from .long_form import LONG

HERE = Path(__file__).parent
QUICK = 3  # places of each way in the quick form
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*offload"),
    # An interrupt in a destructor is Python's to swallow, and one in a callback of the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def made(way, steps=4):
    """A model after some steps: it repeats what these have decided, and follows a plan. In a plan's first three
    forwards, the state before them is kept, too."""
    model = WAYS[way]().train()
    for _ in range(steps):
        step(model)
    return model


@pytest.mark.parametrize("kind", [AtOperator, AtFunction, AtCall])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_anywhere(way, kind):
    model, twin, counts = made(way), made(way), kind()
    with counts:
        step(model)
    step(twin)
    assert counts.seen or way == "plain"  # which runs nothing of ours
    trial = Trial(model, twin, interrupts=kind is AtCall)
    with counting_alone():
        for place in places(counts.seen, QUICK):
            error = KeyboardInterrupt("here")
            fault = kind(place, error)
            reached = trial.fail(place, fault, lambda found, error=error: found is error)
            assert reached or kind is AtCall or fault.seen < place  # in a destructor; in a step that has fewer
            trial.go_on(place)
    assert trial.told == []


class AtRead(AtFunction):
    """Raises an error in place of the nth read of a tensor from C, while the calls of a forward are followed; counts
    them, and notes of which kind they are."""

    def __init__(self, place=0, error=None):
        super().__init__(place, error)
        self.kinds = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        caller = sys._getframe(1)
        if caller.f_code is not CallTracker.__torch_function__.__code__ or func is caller.f_locals["func"]:
            return func(*args, **(kwargs or {}))
        self.kinds.append(str(getattr(func, "__self__", func)))
        return super().__torch_function__(func, types, args, kwargs)


def test_an_interrupt_in_each_kind_of_read_of_a_tensor():
    """A function mode of the user's sees what C reads of a tensor to tell whether it is as before."""
    model, twin, counts = made("lean"), made("lean"), AtRead()
    with counts:
        step(model)
    step(twin)
    chosen = [at for at, kind in enumerate(counts.kinds) if counts.kinds.index(kind) == at or LONG]
    assert len(chosen) > 5
    trial = Trial(model, twin)
    with counting_alone():
        for place in (at + 1 for at in chosen):
            error = KeyboardInterrupt("here")
            assert trial.fail(place, AtRead(place, error), lambda found, error=error: found is error)
            trial.go_on(place)
    assert trial.told == []


class Noting(AtCall):
    """Notes of each place the file in which it is."""

    def __init__(self):
        super().__init__()
        self.files = []

    def _note(self, frame, event, argument):
        super()._note(frame, event, argument)
        self.files += [Path(frame.f_code.co_filename).name] * (self.seen - len(self.files))


def in_block(model):
    with integrations.compress(model, "L1"):
        step(model)


def in_two_blocks(model):
    with integrations.compress(model[6], "L1"):
        in_block(model)


def under_hooks(model):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        loss = model(X).square().mean()
    loss.backward()


def compiled(model):
    torch.compile(model, backend="eager")(X).square().mean().backward()


PLACED = {
    "block": ("plain", in_block),
    "block in a block": ("plain", in_two_blocks),
    "hooks around": ("level", under_hooks),
    "compiled": ("level", compiled),
}


@pytest.mark.parametrize("place", PLACED)
def test_an_interrupt_where_a_session_begins_or_ends(place):
    """In a block, in a block inside of a block, among the user's own hooks, and under torch.compile."""
    way, work = PLACED[place]
    model = made(way, 0)
    for _ in range(3):
        work(model)
    with Noting() as counts:
        work(model)
    trial = Trial(model, model, interrupts=True)
    trial.work, trial.compares = work, False
    trial.whole = lambda values: values  # what a step leaves is the subject of the other tests
    chosen = [
        at for at, file in enumerate(counts.files, 1) if file in ("hook_stack.py", "running_session.py", "forward.py")
    ]
    assert chosen
    with counting_alone():
        for at in chosen if LONG else chosen[:: -(-len(chosen) // 40)]:
            error = KeyboardInterrupt("here")
            trial.fail(at, AtCall(at, error), lambda found, error=error: found is error)
            assert trial.told == []
            work(model)


def test_a_hook_that_stays_is_seen(monkeypatch):
    """The tests above can fail."""
    monkeypatch.setattr(hook_stack.OnStack, "take_off", lambda self: None)
    monkeypatch.setattr(hook_stack, "pop_saved_tensors_default_hooks", lambda: 1 / 0)
    trial = Trial(made("level", 0), made("plain", 0))
    trial.whole = lambda values: values
    trial.fail(1, AtOperator(1, KeyboardInterrupt()), lambda error: True)
    torch._C._autograd._pop_saved_tensors_default_hooks()
    assert "saved-tensor hooks" in trial.told[0]


@pytest.fixture(scope="module")
def allocator(tmp_path_factory):
    """The library that lets torch's allocator fail."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("an allocator is preloaded on Linux alone, and takes a C compiler")
    library = tmp_path_factory.mktemp("allocator") / "failing.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", library, HERE / "failing_allocator.c", "-ldl"]
    subprocess.run(list(map(str, command)), check=True)
    return library


@pytest.mark.parametrize("ways", [[way] for way in WAYS] if LONG else [list(WAYS)], ids=lambda ways: ways[0])
def test_an_allocation_that_fails(allocator, ways):
    """In the first step, which decides and plans, and in a later one."""
    process = subprocess.run(
        [sys.executable, "-m", f"{HERE.name}.faults_child", str(QUICK), *ways],
        env={
            **os.environ,
            "LD_PRELOAD": str(allocator),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), os.environ.get("PYTHONPATH", "")]),
        },
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert process.returncode == 0, process.stderr[-2000:]
    found = json.loads(process.stdout.splitlines()[-1])
    assert list(found) == ways
    assert {
        f"{way}, {name}": phase["told"]
        for way, phases in found.items()
        for name, phase in phases.items()
        if phase["told"]
    } == {}
    # While a plan is made, a failure may be caught: then the forward runs without a plan, or with one not measured.
    assert all(phases["later"]["reached"] == phases["later"]["tried"] > 0 for phases in found.values())


def test_memory_that_was_short_once_while_planning_is_planned_for_again():
    """The CPU's allocator raises a RuntimeError, and not torch.OutOfMemoryError."""
    model = integrations.compress_model(WAYS["plain"](), memory=0.7, error=0)
    short = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 512 bytes")
    assert is_out_of_memory(short)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "integrations.api.handle.plan_manager.planned", lambda *args, **kwargs: (_ for _ in ()).throw(short)
        )
        with pytest.raises(RuntimeError, match="can't allocate memory") as raised:
            step(model)
    assert "another attempt plans again" in raised.value.__notes__[-1]
    handle = integrations.compression(model)
    assert handle._plan_manager.plan is None
    step(model)
    assert handle._plan_manager.plan is not None
