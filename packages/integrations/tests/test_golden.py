"""Reports and plans of ten small models are what is on record, and a replayed forward equals the full path.

The plans' times come from constant rates, so that no machine's speed is in them.
"""

import json
import platform
import re
from dataclasses import asdict
from functools import cache

import pytest
import torch

import integrations
from integrations.capture.costs import calibrating
from integrations.capture.costs.rates import constant
from integrations.runtime import replay

from .golden_nets import NETS, net, read_loss
from .nets import assert_same
from .snapshots import assert_on_record

TORCH = (2, 14)  # the version of the record; what torch's layers save differs from version to version
LEVELS = ("L1", "lean")
BOUNDS = {"exact": {"memory": 0.85, "error": 0.0}, "rounding": {"memory": "least", "error": 0.1, "measure": False}}
SECONDS = ("capture_seconds", "search_seconds")  # of planning
DIGITS = 6
STEPS = 4


@pytest.fixture(autouse=True)
def constant_rates(monkeypatch):
    """Every machine plans with the same rates."""
    monkeypatch.setattr(calibrating, "_measured", lambda device, index, dtype, threads: constant(device, dtype))


@pytest.fixture
def recorded_here():
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < TORCH:
        pytest.skip(f"the record is of torch {TORCH[0]}.{TORCH[1]}, and older versions save other tensors")
    if platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("the record is of oneDNN's kernels for x86-64")


# ---- reports and plans on record ----


def rounded(value):
    """JSON with numbers that do not depend on the last bits of a sum."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return {name: rounded(one) for name, one in value.items()} if isinstance(value, dict) else value


def make_lines(value, depth=2):
    """JSON with a line for each part, down to a depth, and for each object of a list, so that differences are short."""
    if isinstance(value, dict) and depth:
        parts = [f"{json.dumps(name)}: {make_lines(one, depth - 1)}" for name, one in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def row_text(row):
    """A row of a report on one line, of which the bytes and the shape come first."""
    told = asdict(row)
    before, after = told.pop("original_bytes"), told.pop("stored_bytes")
    shape, dtype = list(told.pop("shape")), str(told.pop("dtype")).removeprefix("torch.")
    others = ", ".join(f"{name} {one}" for name, one in told.items() if one)
    return f"{before} -> {after}, {dtype}{shape}, {others}"


def report_text(model):
    """All that a report says: its facts, and its rows."""
    report = integrations.compression(model).report()
    facts = json.loads(report.to_json())
    facts = {name: fact for name, fact in facts.items() if fact and name != "rows"}
    return "\n".join([make_lines(rounded(facts)), *map(row_text, report.rows)])


@cache
def planned(name, way):
    model, args, kwargs = net(name)
    if name == "recurrent":
        # The first backward of an LSTM on fake tensors in a process runs four operators more than the later ones.
        integrations.plan(model, args, kwargs, **BOUNDS[way])
    return integrations.plan(model, args, kwargs, **BOUNDS[way])


def plan_text(plan, without=()):
    content = json.loads(plan.to_json())
    content["graph"].pop("torch_version")
    return make_lines(rounded({name: one for name, one in content.items() if name not in (*SECONDS, *without)}))


def stepped(model, args, kwargs, seed=1):
    torch.manual_seed(seed)
    read_loss(model(*args, **kwargs)).backward()
    return model


@pytest.mark.parametrize("name", NETS)
def test_reports_and_plans_are_as_recorded(name, recorded_here):
    parts = []
    for level in LEVELS:
        model, args, kwargs = net(name)
        integrations.compress_model(model, level, min_bytes=0)
        parts.append(f"# the report at {level}\n{report_text(stepped(model, args, kwargs))}")
    for way in BOUNDS:
        plan = planned(name, way)
        model, args, kwargs = net(name)
        report = report_text(stepped(integrations.apply(model, plan), args, kwargs))
        # The graph is that of the exact plan.
        parts.append(f"# the {way} plan\n{plan_text(plan, () if way == 'exact' else ('graph', 'rounded'))}")
        parts.append(f"# the report of the {way} plan\n{report}")
    assert_on_record(f"golden_{name}.txt", "\n\n".join(parts) + "\n")


# ---- replay ----


@pytest.fixture
def decided(monkeypatch):
    """The tensors that a decision is made for, because they go the full path."""
    found, whole = [], replay.Sites.site_of

    def noting(self, spec, *others):
        found.append(spec)
        return whole(self, spec, *others)

    monkeypatch.setattr(replay.Sites, "site_of", noting)
    return found


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("way", [*LEVELS, *BOUNDS])
def test_a_replayed_forward_equals_the_full_path(name, way, monkeypatch, decided):
    def trained(full):
        """The gradients of each step, the rows of its report, and how many tensors went the full path."""
        monkeypatch.setattr(replay, "FORCED_OFF", full)
        model, args, kwargs = net(name)
        if way in BOUNDS:
            integrations.apply(model, planned(name, way))
        else:
            integrations.compress_model(model, way, min_bytes=0)
        for step in range(STEPS):
            model.zero_grad()
            decided.clear()
            stepped(model, args, kwargs, seed=step)
            gradients = {path: one.grad.clone() for path, one in model.named_parameters()}
            yield gradients, integrations.compression(model).report().rows, len(decided)

    replayed, anew = list(trained(full=False)), list(trained(full=True))
    for (gradients, rows, _), (expected, expected_rows, _) in zip(replayed, anew, strict=True):
        assert_same(expected, gradients)
        # What a repetition holds is told of after what its function saves, or before.
        assert sorted(rows, key=str) == sorted(expected_rows, key=str)
    assert replayed[-1][2] < replayed[0][2] == anew[0][2]  # or nothing was replayed
