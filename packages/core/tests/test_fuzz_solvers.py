"""What reaches native code without a stored form: solvers, training steps, and kernels called past torch's dispatcher.

Given anything, they return, or raise what they document. ``nox -s sanitize`` runs this under AddressSanitizer, too.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import actcore
from actcore import Form, TrainingStep
from actcore.replay import KERNELS

from .damage import NUMBERS, THINGS
from .test_direct_kernels import CALLS
from .test_fuzz import EXAMPLES, NO_MEMORY, fuzz, read

few = settings(fuzz, max_examples=max(10, EXAMPLES // 2))
SMALL = st.integers(-1, 9)
INTS = st.one_of(SMALL, SMALL, SMALL, NUMBERS)
FLOATS = st.one_of(st.floats(0, 10), SMALL, st.floats(), st.just(10**400))
# Mostly of the right kind, so that what is wrong stands beside much that is right.
ANY_INT, ANY_FLOAT = st.one_of(*[INTS] * 9, THINGS), st.one_of(*[FLOATS] * 9, THINGS)


def rows(entries, most=4):
    return st.one_of(*[st.lists(entries, max_size=most)] * 9, THINGS)


def returned(function, *arguments, **named):
    """What it returns; ``None`` where it raises an error that it documents."""
    try:
        return function(*arguments, **named)
    except (TypeError, ValueError) as error:
        told = str(error)
    assert told
    return None


@few
@given(rows(rows(ANY_FLOAT)), rows(rows(ANY_INT)), ANY_INT, ANY_INT)
def test_allocate(costs, nbytes, budget, max_steps):
    found = returned(actcore.allocate, costs, nbytes, budget, max_steps=max_steps)
    if found is not None:
        assert len(found.choices) == len(costs)
        assert all(0 <= choice < len(row) for choice, row in zip(found.choices, costs, strict=True))


@few
@given(rows(ANY_FLOAT), rows(st.dictionaries(st.one_of(st.integers(1, 8), st.none(), ANY_INT), ANY_INT)), ANY_INT)
def test_allocate_bits(sensitivities, nbytes, budget):
    returned(actcore.allocate_bits, sensitivities, nbytes, budget)


@few
@given(rows(ANY_FLOAT, 9), rows(ANY_FLOAT, 9), rows(ANY_INT))
def test_fit_steps(values, weights, pieces):
    found = returned(actcore.fit_steps, values, weights, pieces) or ()
    for fit in found if isinstance(found, tuple) else (found,):
        assert len(fit.levels) == len(fit.cuts) + 1
        assert all(0 < cut < len(values) for cut in fit.cuts)


@few
@given(rows(ANY_FLOAT, 9), rows(ANY_FLOAT, 9), rows(ANY_FLOAT, 9), rows(ANY_INT))
def test_fit_levels(values, weights, candidates, counts):
    found = returned(actcore.fit_levels, values, weights, candidates, counts) or ()
    for fit in found if isinstance(found, tuple) else (found,):
        assert fit.error >= 0 or math.isnan(fit.error)


@few
@given(rows(ANY_INT, 6), rows(st.one_of(st.tuples(ANY_INT, ANY_INT), THINGS), 6), ANY_INT)
def test_find_segments(nbytes, edges, max_steps):
    returned(actcore.checkpoint_segments, nbytes, edges, max_steps=max_steps)


@st.composite
def training_steps(draw):
    """The fields of a step of a few operators, of which some are wrong."""
    ops = draw(st.integers(0, 4))
    reads = [draw(st.lists(st.integers(0, max(0, op - 1)), max_size=2)) if op else [] for op in range(ops)]
    step = {
        "nbytes": draw(st.lists(st.integers(0, 99), min_size=ops, max_size=ops)),
        "reads": reads,
        "makes": [[op] for op in range(ops)],
        "seconds": draw(st.lists(st.floats(0, 9), min_size=ops, max_size=ops)),
        "backward": draw(st.lists(st.lists(st.integers(0, max(0, ops - 1)), max_size=2), max_size=3)) if ops else [],
    }
    optional = {
        "other": rows(ANY_INT, 7),
        "repeatable": rows(st.one_of(st.booleans(), THINGS)),
        "scratch": rows(ANY_INT),
        "reuses": rows(st.one_of(st.none(), ANY_INT)),
        "until": rows(st.one_of(st.none(), ANY_INT)),
        "forms": rows(rows(st.one_of(forms(), THINGS), 2)),
        "weights": rows(ANY_FLOAT),
        "aside": rows(ANY_INT),
        "stored_at": rows(st.one_of(st.none(), ANY_INT)),
        "formed": rows(st.one_of(st.booleans(), THINGS)),
    }
    wrong = {name: rows(rows(ANY_INT)) if name in ("reads", "makes", "backward") else rows(ANY_FLOAT) for name in step}
    for name, values in (optional | wrong).items():
        if not draw(st.integers(0, 7)):
            step[name] = draw(values)
    return step


@st.composite
def forms(draw):
    names = {"held": INTS, "restored": INTS, "passing": INTS, "noise": FLOATS, "serves": st.booleans()}
    try:
        return Form(**{name: draw(values) for name, values in names.items() if name in Form.__dataclass_fields__})
    except (TypeError, ValueError):
        return None


@few
@given(training_steps(), st.lists(INTS, max_size=4), FLOATS)
def test_a_training_step(given_fields, kept, variance):
    step = returned(TrainingStep, **given_fields)
    if step is None:
        return
    returned(actcore.simulate, step, kept)
    found = returned(actcore.checkpoint_plans, step, max_steps=100)
    returned(actcore.checkpoint_plans, step, max_steps=100, variance=variance)
    for plan in () if found is None else found.front:
        assert plan.peak >= found.peak_bound


OBJECTS = st.one_of(
    THINGS,
    st.sampled_from([torch.float32, torch.int64, torch.empty(0), torch.ones(3, 4).t(), torch.ones(2, device="meta")]),
    st.sampled_from([torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64), torch.ones(7).byte(), torch, {}]),
)


@pytest.mark.skipif(not KERNELS, reason="this torch has no way to take its objects apart: from 2.14 on")
@pytest.mark.parametrize("name", CALLS)
def test_a_kernel_that_passes_the_dispatcher_by(name):
    right, operator = CALLS[name], name.removesuffix("_graph")  # of which it is an overload

    @settings(fuzz, max_examples=max(10, EXAMPLES // 8))
    @given(st.data())
    def run(data):
        arguments = [data.draw(OBJECTS) if data.draw(st.integers(0, 3)) == 0 else value for value in right]
        arguments = arguments[: data.draw(st.sampled_from([len(right)] * 5 + [len(right) - 1, 0]))]
        arguments += data.draw(st.lists(OBJECTS, max_size=1)) if data.draw(st.integers(0, 9)) == 0 else []
        outputs, ours, theirs = (), "", ""
        try:
            outputs = KERNELS[name](*arguments)
        except (OverflowError, TypeError, ValueError) as error:
            ours = str(error) or "nothing"
        except RuntimeError as error:
            theirs = str(error) or "nothing"
        assert ours != "nothing"
        assert not theirs or f"actcore::{operator}: " in theirs or NO_MEMORY.search(theirs), theirs
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            read(output)

    run()
