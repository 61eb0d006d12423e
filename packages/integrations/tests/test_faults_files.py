"""A disk that is full, and files that are damaged: a file is written whole or not at all, and what cannot be read
changes nothing."""

import copy
import json
import os
import resource
import signal
import subprocess
import sys

import pytest
import torch

import integrations
from integrations import checkpoint
from integrations._utils.whole_files import write_text, written_whole
from integrations.fewbit.files import save
from integrations.fewbit.store import StepwiseStore
from integrations.policies.codebooks.steps import StepTable

from .fault_ways import WAYS, gradients, net, step
from .faults import places
from .long_form import LONG

FULL = """
import resource, signal, sys
from pathlib import Path
from integrations._utils.whole_files import write_text
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, text = Path(sys.argv[1]), "new " * 1000
for most in (0, 1, 100, 3999):
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
    try:
        write_text(path, text)
        print("written")
    except OSError as error:
        print(error.errno, path.read_text(), sorted(one.name for one in path.parent.iterdir()))
"""


def test_a_disk_that_is_full(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text("old")
    run = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["27 old ['plan.json']"] * 4  # EFBIG, as of a file that may not grow


@pytest.fixture
def full():
    """No file may grow beyond some bytes, in this process."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def set_to(most):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))

    yield set_to
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture(scope="module")
def planned():
    model = integrations.compress_model(net(), memory=0.7, error=0)
    step(model)
    return integrations.compression(model)


TABLE = StepTable((0.0,), (0.0, 1.0))
WRITERS = {
    "plan.json": lambda handle, path: handle._plan_manager.plan.save(path),
    "plan.html": lambda handle, path: handle._plan_manager.plan.page(path),
    "report.html": lambda handle, path: handle.report().html(path),
    "table.json": lambda handle, path: save(TABLE, "relu", 1, path),
    "table.npz": lambda handle, path: save(TABLE, "relu", 1, path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_there_stays(planned, full, tmp_path, name):
    path = tmp_path / name
    WRITERS[name](planned, path)
    whole = path.read_bytes()
    for most in (0, 1, len(whole) // 2, len(whole) - 1):
        full(most)
        with pytest.raises(OSError, match="too large"):
            WRITERS[name](planned, path)
        full(resource.RLIM_INFINITY)
        assert path.read_bytes() == whole
        assert list(tmp_path.iterdir()) == [path]


def test_an_interrupt_while_a_file_is_written(tmp_path):
    with pytest.raises(KeyboardInterrupt), written_whole(tmp_path / "one") as part:  # noqa: PT012
        part.write_text("half")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_two_write_one_file_at_once(tmp_path):
    """The last one stays, whole."""
    path = tmp_path / "one"
    with written_whole(path) as first, written_whole(path) as second:
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_links_modes_and_devices_stay(tmp_path):
    path, link = tmp_path / "one", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    write_text(os.devnull, "gone")
    with pytest.raises(OSError, match="No space left"):
        write_text("/dev/full", "x" * 10_000)


# ---- damaged ----


def damaged(text, quick):
    """A JSON text cut off at places, and with each field gone, of another type, NaN, or out of range."""
    cuts = range(0, len(text) - 1, 1 + len(text) // (400 if LONG else quick))
    yield from (text[:place] for place in cuts)
    content = json.loads(text)
    for name in content:
        yield json.dumps({key: value for key, value in content.items() if key != name})
        yield from (
            json.dumps({**content, name: other})
            for other in ("no", [[]], -1, 1 << 70, float("nan"))
            if content[name] != other
        )


def raised(function):
    """The text of the ValueError that a function raises, if it does."""
    try:
        function()
    except ValueError as error:
        return str(error)
    return None


def test_a_plan_that_is_damaged_changes_nothing(planned, tmp_path):
    """It is refused, and the model is as before; or it is still a plan."""
    text = planned._plan_manager.plan.to_json()
    path, refused = tmp_path / "plan.json", 0
    for damage in damaged(text, 20):
        path.write_text(damage)
        model = net()
        before = dict(vars(model))
        told = raised(lambda model=model: checkpoint.apply(model, checkpoint.Plan.load(path)))
        if told is not None:
            refused += 1
            assert vars(model) == before
            assert "must be a plan of this" in told or (
                told.startswith(f"{path} must be a file that Plan.save wrote: ") and "plan again and save that" in told
            )
    assert refused > 20


def test_step_tables_that_are_damaged_add_nothing(tmp_path):
    """Cut off, or a byte is another: the error names the file and the way out, or the tables are still tables."""
    numpy = pytest.importorskip("numpy")
    path, own, refused = tmp_path / "tables.npz", StepwiseStore(), 0
    for bits in (1, 2):
        save(TABLE, "relu", bits, path)
    whole, before = path.read_bytes(), len(own)
    step = 1 if LONG else 17  # no divisor of the sizes of a zip file's fields
    for damage in (
        *(whole[:end] for end in range(0, len(whole), step)),
        *(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :] for at in range(0, len(whole), step)),
    ):
        path.write_bytes(damage)
        told = raised(lambda: StepwiseStore().load(path))
        if told is not None:
            refused += 1
            assert str(path) in told
            assert raised(lambda: own.load(path)) == told
            assert len(own) == before
    assert refused > len(whole) // step  # each that is cut off, and some others
    numpy.save(path.with_suffix(".npy"), numpy.zeros(3))
    path.write_bytes(path.with_suffix(".npy").read_bytes())
    with pytest.raises(ValueError, match=r"must be an \.npz file of numbers: File is not a zip file"):
        own.load(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"if it is damaged, download it again, or fit its tables again: python"):
        own.load(path)
    with pytest.raises(ValueError, match=r"exists and is not an \.npz file; choose another name"):
        save(TABLE, "relu", 1, path)


STATES = ("level", "adaptive", "exact", "recomputed level")


@pytest.mark.filterwarnings("ignore:the state is of")
@pytest.mark.parametrize("way", STATES)
def test_a_state_that_is_damaged_leaves_the_handle_as_it_was(way):
    """The next step is that of a twin that never saw it."""
    model, twin = (WAYS[way]().train() for _ in range(2))
    for one in (model, twin):
        step(one)
        step(one)
    handle = integrations.compression(model)
    whole, refused = handle.state_dict(), 0
    for state in altered(whole):
        try:
            handle.load_state_dict(state)
        except (ValueError, TypeError):
            refused += 1
            assert handle.state_dict() == whole
        else:
            handle.load_state_dict(whole)
    assert refused > 5
    handle.load_state_dict(whole)
    for one in (model, twin):
        one.zero_grad()
        step(one)
    expected, found = gradients(twin), gradients(model)
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def altered(content):
    """Copies of nested mappings in each of which one field is gone or another."""
    for name, value in content.items():
        yield {key: other for key, other in content.items() if key != name}
        yield from ({**content, name: other} for other in (None, "no", -1, [], {}, float("nan"), 1 << 70))
        if isinstance(value, dict):
            yield from ({**content, name: copy.deepcopy(inner)} for inner in altered(value))


def test_places_in_the_quick_form():
    assert list(places(10, 3)) == (list(range(1, 11)) if LONG else [1, 5, 9])
