"""A forward in which compiled regions alone save tensors runs no Python of ours for each of them; and what eager code
saves in such a forward after all is compressed and reported as ever."""

import copy
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn

import actcore
import integrations
from integrations.runtime.region_session import RegionSession
from integrations.runtime.session import Session

from .nets import EIGHT_BITS, assert_nothing_active, gradients, normal, relative_error, rows
from .regions import X, compiled, make_report, trained

pytestmark = pytest.mark.usefixtures("fresh_compiler")

OURS = tuple(str(Path(package.__file__).parent) for package in (actcore, integrations))


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.linear(self.norm(x)))


def blocks(count=3):
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(count)))


@pytest.fixture
def sessions(monkeypatch):
    """The sessions that are entered, ``full`` for those that look at each operator."""
    found = []

    def watch(kind, name):
        enter = kind.__enter__

        def entered(self):
            found.append(name)
            return enter(self)

        monkeypatch.setattr(kind, "__enter__", entered)

    watch(Session, "full")
    watch(RegionSession, "regions")
    return found


def calls_of_ours(step):
    """How often functions of our packages are called in a step, backward included."""
    found = Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return found


# ---- no Python for a saved tensor ----


@pytest.mark.parametrize("level", ["L1", "L1.1"])
def test_the_calls_in_a_step_do_not_depend_on_the_number_of_layers(level):
    found, stored = [], []
    for count in (2, 8):
        model = blocks(count)
        function = compiled(integrations.compress_model(model, level, min_bytes=0))
        for _ in range(3):
            trained(model, function)
        found.append(calls_of_ours(lambda: function(X).square().mean().backward()))  # noqa: B023
        stored.append(len(rows(model)))
    assert stored[1] > 3 * stored[0] > 12  # there is something to do for each layer
    assert found[0] == found[1]
    assert sum(found[0].values()) > 10  # they were looked for where they are


def test_the_first_forward_looks_at_operators_and_the_others_do_not(sessions):
    """Nothing is known before the first; and code that is compiled does not change from one kind to the other."""
    model = blocks()
    function = compiled(integrations.compress_model(model))
    for _ in range(2):
        trained(model, function)
    with torch.compiler.set_stance("fail_on_recompile"):
        trained(model, function)
    assert set(sessions) == {"regions"}
    sessions.clear()
    trained(model, model)  # eager code
    assert "full" in sessions
    assert_nothing_active()


def test_noise_and_rows_are_new_in_each_step():
    model = blocks()
    function = compiled(integrations.compress_model(model))
    found, reports = [], []
    for _ in range(4):
        found.append(trained(model, function))
        reports.append([(row.module, row.operator, row.shape, row.codec, row.stored_bytes) for row in rows(model)])
    assert all(relative_error(one, other) > 0 for one, other in pairwise(found))
    assert all(report == reports[0] for report in reports)
    assert len(reports[0]) >= 6


# ---- eager code that saves a tensor after all ----


@torch.compiler.disable
def outside(x):
    return torch.tanh(x * 2)


class Loose(nn.Module):
    """The second part runs in Python where ``loose``."""

    def __init__(self):
        super().__init__()
        self.first, self.second = blocks(2), blocks(2)
        self.loose = False

    def forward(self, x):
        x = self.first(x)
        x = outside(x) if self.loose else torch.tanh(x * 2)
        return self.second(x)


@pytest.mark.parametrize("options", [{"level": "L1"}, {"memory": 0.8, "error": 0}])
def test_dynamo_compiles_the_models_forward_alone(options):
    """It skips what plans the forward, and what enters and leaves its session, with all that these call."""
    torch._dynamo.utils.counters.clear()
    model = integrations.compress_model(blocks(), **options)
    function = compiled(model)
    for _ in range(3):
        trained(model, function)
    counters = torch._dynamo.utils.counters
    assert counters["frames"]["total"] == counters["stats"]["unique_graphs"] > 0


def test_a_graph_break_in_a_later_step(sessions):
    model = Loose()
    exact = gradients(copy.deepcopy(model), X)
    function = compiled(integrations.compress_model(model, "L1.1", min_bytes=0))
    for _ in range(3):
        trained(model, function)
    assert set(sessions) == {"regions"}
    before = make_report(model)
    model.loose = True
    for step in range(3):
        assert 0 < relative_error(exact, trained(model, function)) < EIGHT_BITS
        report = make_report(model)
        [row] = [row for row in rows(model) if row.role != "compiled"]
        # In the first of these steps, the operator began before anything looked at operators.
        assert (row.operator, row.codec[:18]) == (("tanh", "GroupAffine(bits=8") if step else ("", "kept"))
        assert row.original_bytes == X.nbytes
        assert {row.module.split(".")[0] for row in rows(model)} == {"", "first", "second"}
        assert report.ratio > 2.5
    assert "full" in sessions
    model.loose = False
    for _ in range(2):
        assert 0 < relative_error(exact, trained(model, function)) < EIGHT_BITS
    assert make_report(model).original_bytes == before.original_bytes


def test_frames_that_dynamo_no_longer_compiles(sessions):
    """Beyond ``recompile_limit``, dynamo runs them in Python."""
    model = blocks()
    exact = {count: gradients(copy.deepcopy(model), X[:count]) for count in (48, 32, 16)}
    function = compiled(integrations.compress_model(model, "L1.1", min_bytes=0), dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=1):
        for step, count in enumerate((48, 48, 32, 32, 16, 48)):
            found = trained(model, function, X[:count])
            assert 0 < relative_error(exact[count], found) < EIGHT_BITS
            report = make_report(model)
            assert report.ratio > 3
            assert {row.shape[0] for row in rows(model) if row.shape[0] != 64} == {count}
            # The last has a mode for operators, under which the code of the first is not taken.
            assert {row.role == "compiled" for row in rows(model)} == {step < 2}
    assert set(sessions) == {"regions", "full"}


def test_a_block_that_is_not_compiled_beside_some_that_are():
    model = blocks(4)
    exact = gradients(copy.deepcopy(model), X)
    for block in model[:3]:
        block.compile(backend="aot_eager")
    integrations.compress_model(model, "L1.1", min_bytes=0)
    for _ in range(3):
        assert 0 < relative_error(exact, trained(model, model)) < EIGHT_BITS
        found = rows(model)
        assert {row.module.split(".")[0] for row in found} == {"0", "1", "2", "3"}
        assert {row.module.split(".")[0] for row in found if row.role != "compiled"} == {"3"}


# ---- where the rows are ----


def paths(model):
    return Counter(row.module for row in rows(model) if row.role == "compiled")


class Custom(nn.Module):
    """Has a ``__getattr__`` of its own, as models of diffusers have: dynamo names the parts of such a module by its
    ``__dict__``."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = Block(), nn.ModuleList([Block()])

    def __getattr__(self, name):
        return super().__getattr__(name)

    def forward(self, x):
        return self.rest[0](self.first(x))


def test_parts_of_a_module_that_finds_attributes_by_itself():
    torch.manual_seed(0)
    model = integrations.compress_model(nn.Sequential(Custom(), Custom()), min_bytes=0)
    trained(model, compiled(model))
    found = {path for path in paths(model) if path.endswith("norm")}
    assert found == {f"{index}.{part}.norm" for index in range(2) for part in ("first", "rest.0")}


def test_blocks_that_share_code_have_rows_of_their_own():
    """Each is compiled by itself, and dynamo takes the code of the first for all."""
    model = blocks(4)
    for block in model:
        block.compile(backend="aot_eager")
    integrations.compress_model(model, min_bytes=0)
    trained(model, model)
    for _ in range(3):
        trained(model, model)
        found = paths(model)
        by_block = [Counter({path[2:]: n for path, n in found.items() if path[:1] == str(index)}) for index in range(4)]
        assert set(by_block[1]) == {"", "norm"}
        assert all(one == by_block[1] for one in by_block[1:])
        # The first one's input is the model's, and is kept by the caller.
        assert by_block[1] - by_block[0] == Counter({"": 1})


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Block(), Block()

    def forward(self, x):
        return self.two(self.one(x))


def test_blocks_in_blocks():
    model = nn.Sequential(Block(), nn.Sequential(Pair(), Block(), Pair()))
    inner = model[1]
    for block in (model[0], *inner):
        block.compile(backend="aot_eager")
    integrations.compress_model(model, min_bytes=0)
    for _ in range(3):
        trained(model, model)
        found = set(paths(model))
        assert {path for path in found if path.endswith("norm")} == {
            *("0.norm", "1.0.one.norm", "1.0.two.norm", "1.1.norm", "1.2.one.norm", "1.2.two.norm")
        }
        assert {path for path in found if not path.endswith(("norm", "one", "two"))} <= {"0", "1.0", "1.1", "1.2"}


@pytest.mark.parametrize("whole", [True, False])
def test_sizes_that_vary_are_those_of_the_last_step(whole):
    model = blocks(2)
    for part in () if whole else model:
        part.compile(backend="aot_eager", dynamic=True)
    integrations.compress_model(model, "L1.1", min_bytes=0)
    function = compiled(model, dynamic=True) if whole else model
    shapes = {}
    for count in (48, 20, 33, 20, 48):
        x = normal(count, 64)
        torch._dynamo.mark_dynamic(x, 0)
        trained(model, function, x)
        found = [(row.module, row.operator, row.shape, row.stored_bytes) for row in rows(model)]
        assert {row.shape[0] for row in rows(model) if len(row.shape) > 1 and row.role == "compiled"} <= {count, 64}
        assert shapes.setdefault(count, found) == found
        assert any(shape[0] == count for _, _, shape, _ in found)
