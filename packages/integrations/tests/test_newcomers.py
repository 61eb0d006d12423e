"""What a first try gets wrong, and what is said of it: names, places and types of arguments, frozen models."""

import json
import re
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import integrations
from integrations import checkpoint
from integrations.planner.explained import grouped, make_lines
from integrations.planner.table import listed

from .nets import gradients, normal
from .recompute_levels import deep

pytestmark = pytest.mark.usefixtures("following_takes_no_time")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"mem": "8GiB"}, r"got 'mem'; .*Did you mean memory=\?$"),
        ({"max_memory": "8GiB"}, r"Did you mean memory=\?$"),
        ({"bit": 4}, r"Did you mean bits=\?$"),
        ({"fallbak": "least"}, r"Did you mean fallback=\?$"),
        ({"colour": 3}, r"compress_model also takes memory, .*plan, fallback, strict\.$"),
    ],
)
def test_a_name_that_is_almost_right_is_guessed(asked, message):
    model, _ = deep()
    for call in (integrations.compress_model, integrations.compress):
        with pytest.raises(ValueError, match=message):
            call(model, **asked).__enter__()
    assert "forward" not in model.__dict__


@pytest.mark.parametrize("given", ["8GiB", "40%", "least", "auto", 0.4, 8_000_000_000, numpy.float32(0.5)], ids=str)
def test_a_budget_in_the_place_of_the_level(given):
    message = re.escape(f"a memory budget is passed by name: memory={given!r}")
    with pytest.raises((TypeError, ValueError), match=f"level must be .*{message}"):
        integrations.compress_model(deep()[0], given)


@pytest.mark.parametrize("given", ["plan.json", Path("plan.json")], ids=repr)
def test_a_file_in_the_place_of_the_level(given):
    with pytest.raises((TypeError, ValueError), match=re.escape(f"a saved plan is passed by name: plan={given!r}")):
        integrations.compress_model(deep()[0], given)


def test_other_levels_are_guessed():
    with pytest.raises(ValueError, match=r"got 'leann'; did you mean 'lean'\?"):
        integrations.compress_model(deep()[0], "leann")
    with pytest.raises(TypeError, match=r"got True$"):
        integrations.compress_model(deep()[0], True)


@pytest.mark.parametrize(
    ("given", "plain"),
    [(numpy.float64(0.6), 0.6), (numpy.float32(0.5), 0.5), (numpy.int64(2**30), 2**30), (numpy.uint8(200), 200)],
    ids=repr,
)
def test_numbers_of_numpy_are_numbers(given, plain):
    """They are in states and files, too, as plain numbers."""
    model, args = deep()
    least = checkpoint.plan(model, args)
    if plain == 200:  # too little
        for call in (integrations.plan, checkpoint.plan):
            name = "budget" if call is checkpoint.plan else "memory"
            with pytest.raises(ValueError, match=r"must be at least \d+ bytes .* got (np\.uint8\()?200"):
                call(model, args, **{name: given})
        return
    assert checkpoint.plan(model, args, budget=given).choice == checkpoint.plan(model, args, budget=plain).choice
    assert least.within(given).memory == plain
    for name in ("memory", "checkpoint"):
        integrations.compress_model(model, **{name: given})
        gradients(model, *args)
        state = json.loads(json.dumps(integrations.compression(model).state_dict()))
        asked = state["recomputing"]["asked"]
        assert (asked if name == "checkpoint" else asked["memory"]) == plain
        integrations.restore_model(model)
    found = integrations.plan(model, args, time=numpy.float64(1.5), error=numpy.float32(0.0))
    assert (type(found.bounds.time), type(found.bounds.error)) == (float, float)


@pytest.mark.parametrize("given", [0, 0.0, -1, -0.5, "0%", numpy.int64(0)], ids=repr)
def test_nothing_is_no_budget(given):
    model, args = deep()
    for call in (
        lambda: integrations.compress_model(model, memory=given),
        lambda: integrations.plan(model, args, memory=given),
    ):
        with pytest.raises(ValueError, match=r"memory must be .*got .*; pass memory='least' for the least memory"):
            call()


# ---- models that train nothing ----


@pytest.mark.parametrize("asked", [{"memory": "least"}, {"level": "L1"}], ids=str)
@pytest.mark.filterwarnings("ignore:.*nothing is stored in fewer bytes")
def test_a_frozen_model_is_told_that_nothing_trains(asked):
    model, args = deep()
    integrations.compress_model(model.requires_grad_(False), **asked)
    model(*args)
    told = " ".join(str(integrations.compression(model).report()).split())
    assert "no parameter of the model requires a gradient: call requires_grad_(True) on the parameters" in told
    assert "train() mode" not in told


def test_a_frozen_model_has_no_plan_and_no_smaller_tensors():
    model, args = deep()
    model.requires_grad_(False)
    with pytest.raises(ValueError, match=r"no backward to plan for: no parameter of the model requires a gradient"):
        integrations.plan(model, args, memory="least")
    integrations.compress_model(model, "L1", strict=True)
    with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes: no parameter of the model requires"):
        model(*args)


def test_a_forward_without_gradients_is_told_so():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                return self.layer(x)

    with pytest.raises(ValueError, match="no backward to plan for: check that its forward does not run under no_grad"):
        integrations.plan(Detached(), (torch.ones(2, 4),), memory="least")


# ---- budgets that cannot be met ----


def test_a_budget_that_is_too_small_names_numbers_to_pass():
    """Bytes are named for steps that make gradients, and for those that add to them. A fraction is of each kind's own
    peak."""
    model, args = deep()
    for asked, number in ((0.05, float), ("1KiB", int)):
        with pytest.raises(ValueError, match=r"^memory with error=0 must be at least \d+ bytes") as raised:
            integrations.plan(model, args, memory=asked)
        told = str(raised.value)
        assert told.count("must be") == 1
        numbers = r"; pass memory=([\d.]+)(?:, or memory=(\d+) to accumulate gradients)?, or memory='least'"
        first, more = re.search(numbers, told).groups()
        assert (more is None) == (number is float)
        assert integrations.plan(model, args, memory=number(first)).is_bounded
        assert more is None or integrations.plan(model, args, memory=int(more)).accumulating.is_bounded
        held = re.search(r"memory holds (.*), and .* of other tensors", told)[1]
        assert len(held.split(", ")) == 3


def test_a_time_that_cannot_be_met_names_the_memory_that_it_takes():
    model, args = deep()
    refused = r"time must be at least 1\.\d+, the least within memory=.* got 1\.01;"
    for memory in (0.6, "400KiB"):
        with pytest.raises(ValueError, match=refused) as raised:
            integrations.plan(model, args, memory=memory, time=1.01)
        named = re.search(r"time=1\.01 takes at least \d+ bytes .*: pass memory=([\d.]+), or", str(raised.value))[1]
        assert integrations.plan(model, args, memory=json.loads(named), time=1.01).overhead <= 0.01


def test_a_budget_that_is_too_small_also_says_what_a_bound_on_the_time_takes():
    model, args = deep()
    with pytest.raises(ValueError, match=r"^memory with error=0 must be at least \d+ bytes") as raised:
        integrations.plan(model, args, memory=0.05, time=1.01)
    needed = int(re.search(r"\. Besides, time=1\.01 takes at least (\d+) bytes \(", str(raised.value))[1])
    assert integrations.plan(model, args, memory=needed, time=1.01).overhead <= 0.01
    with pytest.raises(ValueError, match="must be at least") as raised:
        integrations.plan(model, args, memory=0.05)
    assert "time" not in str(raised.value).partition("At that peak")[0]


def test_a_printed_plan_says_what_was_searched():
    args = (normal(256, 64),)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())), nn.Linear(64, 8))
    plan = integrations.plan(model, args, memory="least")
    assert plan.exact
    told = str(plan)
    assert f"Chosen from the best {len(plan.front)} plans, of " in told
    assert "The search tried all plans." in told
    assert f" in {len(plan.segments)} segments of the forward (plan.segments)." in told
    assert "Steps that accumulate gradients have an activation peak of " in told
    assert "in steps that accumulate gradients" in str(plan.accumulating)
    plan = integrations.plan(*deep(), memory="least")
    assert not plan.exact
    assert "The search did not try all plans: none takes less than" in str(plan)


def test_a_printed_plan_says_why_in_plain_words():
    """It said that a value "spares" a time, is recomputed "from * on", and is "of *"."""
    model = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())))
    plan = integrations.plan(model, (normal(512, 64),), memory=0.6)
    reasons = {line.reason.split(" at ")[0].split(" take ")[0] for line, _ in grouped(make_lines(plan))}
    assert reasons == {"segment starts", "recomputation starts from it", "recomputing would"}
    assert "numbers" in str(plan).splitlines()[2]
    assert listed(("aten.add_.Tensor", "integrations.linear_cross_entropy.default")) == "add, linear_cross_entropy"
