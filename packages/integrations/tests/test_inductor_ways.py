"""Nets of four libraries under inductor: gradients are those of eager code in each way, and plans keep their budgets.

With ``ACTCORE_LONG=1`` each of 24 nets in each way, a minute or two for a net; otherwise four, each in one. Nets of
timm are compiled in ``test_compiled_timm.py``.
The long form's results are in ``docs/results/inductor.md``; ``ACTCORE_LONG_RESULTS`` names a folder for new ones.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch

from integrations.planner.bounds import EIGHT_BITS
from integrations.report.words import format_bytes

from .inductor_nets import NETS
from .inductor_ways import LEVELS, PLANS, WAYS, compare
from .long_form import LONG

pytestmark = pytest.mark.usefixtures("fresh_compiler", "quick_kernels")


BOUND = 1.15
"""Bound on a level's error relative to eager code's, by the root mean squares of the steps' errors.

A step's error is a sum over thousands of roundings, and a few tensors have the largest part: its square scatters by a
third at most. The mean of 16 squares scatters by a twelfth, its root by half of that, and the quotient of two roots by
6 %. The bound is 2.5 of these away from 1.

Below ``EIGHT_BITS`` the quotient says nothing: all that is stored is exact or has 8 bits, and the compiler decides
which tensors these are.
"""

ROUNDINGS = 4
"""Of float32, for an exact plan where plain inductor's gradient is eager code's bit for bit, or nearly so."""

ROOM = 1.05
"""A measured peak over the planned one."""

SOME = {
    "transformers: qwen 3": "L1",
    "diffusers: dit": "lean",
    "pyg: SAGEConv": "memory=0.3, error=0.1",
    "pyg: GATConv": "memory=0.4, error=0",
}
CASES = [(net, way) for net in NETS for way in WAYS] if LONG else list(SOME.items())


BREAK = frozenset(("transformers: gpt2", *(net for net in NETS if net.startswith("pyg: "))))
"""Nets of which torch.compile makes several graphs. An output of one has no bytes in the report where its own backward
needs it and no other graph does."""

SMALL = 64
"""Bytes of a loss and of a region's stream, and of what allocations are rounded up to."""

MEASURED = re.compile("was measured|measured in step")
"""Of the warnings about one tensor, and about the whole gradient."""


def record(found):
    if folder := os.environ.get("ACTCORE_LONG_RESULTS"):
        with Path(folder, "inductor_ways.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found.asdict()) + "\n")


def assert_reported(found):
    """The report has what is alive between forward and backward, by modules of the model, and is that of each step."""
    if found.net not in BREAK:
        assert found.alive_bytes <= found.stored_bytes + found.other_bytes + SMALL, found
    assert not found.unknown, found
    assert not found.changes, found
    # Where a plan rounds, eager code warns of a gradient whose error was measured as larger than estimated, and rounds
    # less from then on.
    rounds = PLANS.get(found.way, {}).get("error", 0) > 0
    assert all(rounds and MEASURED.search(one) for one in found.warned), found


@pytest.mark.parametrize(("net", "way"), [case for case in CASES if case[1] in LEVELS])
def test_a_level_has_the_error_of_eager_code(net, way):
    found = compare(net, way)
    record(found)
    assert found.compiled <= max(BOUND * found.eager, EIGHT_BITS), found
    assert found.stored_bytes < found.original_bytes, found
    assert_reported(found)


@pytest.mark.parametrize(("net", "way"), [case for case in CASES if case[1] in PLANS])
def test_a_plan_keeps_to_its_budget_and_to_its_error(net, way):
    """A budget that does not fit is refused, with one in the message that does."""
    found = compare(net, way)
    record(found)
    exact = 2 * found.plain + ROUNDINGS * torch.finfo(torch.float32).eps
    assert found.compiled <= (PLANS[way]["error"] or exact), found
    assert 0 < found.peak <= found.budget, found
    assert found.measured <= ROOM * found.peak, found
    assert format_bytes(found.peak) in found.told, found
    assert_reported(found)


def test_there_are_twenty_four():
    assert len(NETS) == 24
    assert set(SOME) < set(NETS)
    assert set(SOME.values()) == set(WAYS)
