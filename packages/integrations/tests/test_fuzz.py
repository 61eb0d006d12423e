"""Files and states from outside, damaged at random: each loads to what could have been saved, or is refused in words.

``ACTCORE_FUZZ_EXAMPLES`` says how many of each kind; ``nox -s fuzz`` makes many. No input may take more than the memory
of ``ROOM`` beyond what the process has, nor ``PATIENCE``.
"""

import copy
import json
import os
import random
import resource
import signal
import tracemalloc
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import integrations
from integrations import Report
from integrations._utils import checked_json
from integrations._utils.archives import arrays_in
from integrations.capture.graphs.graph import Graph
from integrations.checkpoint import Plan
from integrations.fewbit.store import StepwiseStore, store

from .damaged_json import DEEP, THINGS, damage_content, damaged

EXAMPLES = int(os.environ.get("ACTCORE_FUZZ_EXAMPLES", "100"))
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ACTCORE_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, 2**48)

ROOM = 1 << 30
PATIENCE = 60  # seconds; an input takes some hundredths of one

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def little_room():
    """What an input makes allocate beyond ``ROOM`` raises ``MemoryError``, which no test here takes."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else None
    if pages is not None:  # elsewhere than on Linux, nothing tells how much there is
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def outcome(load):
    """What it returns, or the ``ValueError`` or ``TypeError`` that it raises; no other error, and in finite time."""

    def hangs(*_):
        raise AssertionError(f"an input took more than {PATIENCE} seconds")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(PATIENCE)
    try:
        return load()
    except (TypeError, ValueError) as error:
        refused = error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert "must" in str(refused) or "options of a level are" in str(refused), repr(refused)
    return refused


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


def step(model):
    model.zero_grad()
    model(X).square().mean().backward()


@pytest.fixture(scope="module")
def plan():
    """With rounded values, and with another plan for gradients that are there."""
    made = integrations.plan(network(), X, memory=0.75, error=0.1)
    assert made.accumulating.choice
    assert made.rounded is not None
    return made


# ---- JSON ----


def test_plans(plan):
    content = json.loads(plan.to_json())
    loaded = 0

    @fuzz
    @given(SEEDS)
    def run(seed):
        nonlocal loaded
        found = outcome(lambda: Plan.from_json(damaged(content, seed)))
        if isinstance(found, Plan):
            loaded += 1
            assert Plan.from_json(found.to_json()) == found
            assert str(found)
            assert repr(found)

    run()
    assert 0 < loaded < EXAMPLES


def test_a_plan_that_loads_is_followed_or_refused(plan):
    """Damage that no number contradicts: a model takes it or refuses it, and trains after that."""
    content = json.loads(plan.to_json())
    most = max(10, EXAMPLES // 20)

    @settings(fuzz, max_examples=most)
    @given(SEEDS)
    def run(seed):
        found = outcome(lambda: Plan.from_json(damaged(content, seed, 1)))
        if not isinstance(found, Plan):
            return
        model = network()
        if not isinstance(outcome(lambda: integrations.apply(model, found)), Exception):
            step(model)
        assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())

    run()


def test_graphs(plan):
    content = plan.graph.content()

    @fuzz
    @given(SEEDS)
    def run(seed):
        found = outcome(lambda: Graph.from_json(damaged(content, seed)))
        if isinstance(found, Graph):
            assert Graph.from_json(found.to_json()) == found

    run()


def test_reports():
    row = integrations.Row("a", "b", "c", (2, 3), torch.bfloat16, "d", 12, 4, "e", "f", host=True, seconds=0.5)
    report = Report("L3", [row, row], off=True, offload=True, gradient_bytes=8, plan="g", monitor="h", loss="m")
    content = json.loads(report.to_json())

    @fuzz
    @given(SEEDS)
    def run(seed):
        found = outcome(lambda: Report.from_json(damaged(content, seed)))
        if isinstance(found, Report):
            assert Report.from_json(found.to_json()) == found
            assert str(found)

    run()


# ---- states of handles ----

NO_JSON = (X, torch.tensor(3), (), (1, 2), b"\xff", object(), {1: 2}, 3j, torch.float32, "L2", range(3), 2**63 - 1)


def adaptive():
    model = network()
    integrations.compress_model(model, level="L2", min_bytes=0)
    integrations.compression(model).monitor(every=1)
    return model


def planned():
    model = network()
    integrations.compress_model(model, memory=0.75, error=0.1)
    return model


@pytest.mark.parametrize("make", [adaptive, planned])
def test_states(make):
    model = make()
    for _ in range(3):
        step(model)
    handle = integrations.compression(model)
    sound = handle.state_dict()
    loaded = 0

    @fuzz
    @given(SEEDS)
    def run(seed):
        nonlocal loaded
        chance = random.Random(seed)
        whole = {"": copy.deepcopy(sound)}
        for _ in range(chance.randint(0, 2)):
            damage_content(whole, chance, (*THINGS, *NO_JSON))
        before = handle.step
        found = outcome(lambda: handle.load_state_dict(whole[""]))
        if isinstance(found, Exception):
            assert handle.step == before
            return
        loaded += 1
        again = handle.state_dict()
        handle.load_state_dict(again)
        assert str(handle.state_dict()) == str(again)  # in words, where NaN is as NaN
        assert str(handle.report())
        step(model)

    run()
    assert 0 < loaded < EXAMPLES
    handle.load_state_dict(sound)
    step(model)
    assert handle.step == sound["step"] + 1


# ---- step tables ----


def damaged_bytes(content, seed):
    chance, content = random.Random(seed), bytearray(content)
    for _ in range(chance.randint(0, 4)):
        place = chance.randrange(len(content) + 1)
        change = chance.choice(("flip", "flip", "insert", "set", "cut"))
        if change == "flip" and place < len(content):
            content[place] ^= chance.randint(1, 255)
        elif change == "insert":
            content[place:place] = chance.randbytes(chance.randint(1, 8))
        elif change == "set":
            content[place : place + 4] = chance.choice((b"\xff" * 4, bytes(4), b"\x01\x00\x00\x00"))
        elif change == "cut" and chance.random() < 0.3:
            del content[place:]
    return bytes(content)


@pytest.mark.parametrize("write", [numpy.savez, numpy.savez_compressed])
def test_step_tables(write, tmp_path):
    arrays = {}
    for bits in (1, 3):
        borders, levels = store.get("gelu", bits)
        arrays |= {f"g{bits:02d}-borders": borders.numpy(), f"g{bits:02d}-levels": levels.double().numpy()}
    path = tmp_path / "tables.npz"
    write(path, **arrays)
    content = path.read_bytes()

    @fuzz
    @given(SEEDS)
    def run(seed):
        path.write_bytes(damaged_bytes(content, seed))
        own = StepwiseStore()
        if isinstance(outcome(lambda: own.load(path)), Exception):
            assert len(own) == len(store)
        assert all(len(borders) == len(levels) + 1 for _, (borders, levels) in list(own.items())[len(store) :])

    run()


# ---- few bytes that say much ----


def allocated_by(load):
    """Bytes of Python and NumPy at once, and what it raised."""
    tracemalloc.start()
    try:
        return outcome(load), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def npy(shape, content=b"", dtype="<f8"):
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + content


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (npy("(1099511627776,)"), "must have 8796093022208 bytes, got 0"),
        (npy("(-1, 3)", bytes(24)), "must have -24 bytes, got 24"),
        (npy("(4611686018427387904,)", dtype="|V0"), "must hold numbers"),
        (npy("(3,)", bytes(24), dtype="|O"), "must hold numbers"),
        (b"\x93NUMPY\x03\x00", "format 1 or 2"),
    ],
)
def test_an_array_is_as_large_as_its_bytes(content, words, tmp_path):
    path = tmp_path / "large.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("g01-levels.npy", content)
    error, most = allocated_by(lambda: StepwiseStore().load(path))
    assert words in str(error)
    assert most < 1 << 20


@pytest.mark.parametrize("told", [None, 64], ids=["as it is", "less than it is"])
def test_an_archive_unpacks_no_more_than_it_may(told, tmp_path):
    """64 MiB of zeros take 64 KiB in an archive, which may also say that they are few."""
    zeros = 0x03EDCBA9
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("g01-levels.npy", "w") as entry:
        entry.write(bytes(zeros))
    if told is not None:
        content = path.read_bytes()
        assert content.count(zeros.to_bytes(4, "little")) == 2  # in front of the entry and in the directory
        path.write_bytes(content.replace(zeros.to_bytes(4, "little"), told.to_bytes(4, "little")))
    error, most = allocated_by(lambda: arrays_in(path, 1 << 20))
    assert isinstance(error, ValueError)
    assert most < 1 << 22


def test_texts_are_bounded(monkeypatch):
    assert zlib.crc32(DEEP.encode())  # it is not empty
    for text in (DEEP, '{"a":' * 100_000, "[" * 40 + "]" * 40):
        with pytest.raises(ValueError, match="nested more than 32 levels deep"):
            Plan.from_json(text)
    assert checked_json.loaded("[" * 32 + "]" * 32, "a test")
    for text in ("1" * 5000, "NaN", "[1e999]", "-Infinity"):
        with pytest.raises(ValueError, match="it is not JSON"):
            Graph.from_json(text)
    monkeypatch.setattr(checked_json, "LONGEST", 9)
    with pytest.raises(ValueError, match="of at most 9 characters, got 10"):
        Plan.from_json("[1,2,3,4] ")
    with pytest.raises(TypeError, match="got bytes"):
        Plan.from_json(b"{}")


def test_a_plan_of_few_bytes_takes_little(plan):
    """Names of values that there are none of, and rows that each value has: each was more than the text itself, with
    the square of its length."""
    content = json.loads(plan.to_json())
    far = json.loads(plan.to_json())
    far["choice"]["kept"] = far["choice"]["stores"]["4 bits"] = "f" * 400_000
    rows = json.loads(plan.to_json())
    [menu] = [row for row in rows["rounded_candidates"]["rows"] if len(row) > 1][:1]
    menu *= 100
    for damage, words in ((far, "values that the graph lacks"), (rows, "each of rows must have at most")):
        text = json.dumps(damage)
        error, most = allocated_by(lambda text=text: Plan.from_json(text))
        assert words in str(error)
        assert most < 32 * len(text)
    content["also"] = [{**content, "also": [copy.deepcopy(content)]}]
    with pytest.raises(ValueError, match="a plan of also must have none of its own"):
        Plan.from_json(json.dumps(content))
