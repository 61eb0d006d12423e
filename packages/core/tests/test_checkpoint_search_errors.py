"""Wrong arguments of the checkpoint solvers raise, and the text names argument, rule, value and way out."""

import math

import pytest

from actcore import Form, TrainingStep, checkpoint_plans, checkpoint_segments, simulate

STEP = {
    "nbytes": [4, 5, 6],
    "reads": [[], [0], [1]],
    "makes": [[0], [1], [2]],
    "seconds": [1.0, 2.0, 3.0],
    "backward": [[2], [0]],
}

BAD_STEPS = [
    (TypeError, "reads must be a sequence, got 3", {"reads": 3}),
    (TypeError, "reads[1] must be a sequence of values, got 0", {"reads": [[], 0, [1]]}),
    (ValueError, "makes must have one entry for each operator, 3, got 2", {"makes": [[0], [1, 2]]}),
    (ValueError, "seconds must have one entry for each operator, 3, got 0", {"seconds": []}),
    (ValueError, "other must have one entry for each event, 5, got 3", {"other": [1, 2, 3]}),
    (ValueError, "reuses must have one entry for each value, 3, got 1", {"reuses": [None]}),
    (TypeError, "nbytes[1] must be an int, got 5.0", {"nbytes": [4, 5.0, 6]}),
    (ValueError, "nbytes[2] must not be negative, got -6; it is a number of bytes", {"nbytes": [4, 5, -6]}),
    (
        ValueError,
        f"nbytes must add up to less than 2**55, got {2**55 + 9}; use a larger unit",
        {"nbytes": [4, 5, 2**55]},
    ),
    (TypeError, "seconds[0] must be an int or a float, got '1'", {"seconds": ["1", 2, 3]}),
    (ValueError, "seconds[1] must be finite and not negative, got nan", {"seconds": [1, math.nan, 3]}),
    (ValueError, "seconds[1] must be finite and not negative, got -1", {"seconds": [1, -1, 3]}),
    (ValueError, "seconds must have a finite sum; use a larger unit", {"seconds": [1e308, 1e308, 3]}),
    (TypeError, "repeatable[2] must be a bool, got 1", {"repeatable": [True, False, 1]}),
    (ValueError, "backward[1] must hold values from 0 to 2, got 3", {"backward": [[2], [3]]}),
    (ValueError, "makes must hold each value once, got 0 from operators 0 and 1", {"makes": [[0], [0], [2]]}),
    (
        ValueError,
        "makes must hold each value once, but lacks value 1; leave out inputs",
        {"makes": [[0], [], [2]]},
    ),
    (
        ValueError,
        "reads[1] must hold values of earlier operators, got 1, which operator 1 makes",
        {"reads": [[], [1], [1]]},
    ),
    (ValueError, "until[0] must be an event, from 0 to 4, or None, got 5", {"until": [5, None, None]}),
    (
        ValueError,
        "reuses[1] must be a value of an earlier operator that nothing else overwrites, or None, got 2",
        {"reuses": [None, 2, None]},
    ),
    (
        ValueError,
        "reuses[1] must be a value that operator 1 is the last to read, got 0",
        {"reuses": [None, 0, None]},
    ),
    (ValueError, "forms must have one entry for each value, 3, got 1", {"forms": [[]]}),
    (TypeError, "forms[1] must be a sequence of Forms, got [3]", {"forms": [[], [3], []]}),
    (ValueError, "forms[0] must have at most 127 entries, got 128", {"forms": [[Form(1, 1)] * 128, [], []]}),
    (
        ValueError,
        f"the largest held of each value's forms must add up to less than 2**55, got {2**55 + 1}; use a larger unit",
        {"forms": [[Form(2**55, 1)], [Form(1, 1), Form(0, 1)], []]},
    ),
    (ValueError, "weights[2] must be finite and not negative, got -1.0", {"weights": [0.0, 1.0, -1.0]}),
    (ValueError, "aside[0] must not be negative, got -4; it is a number of bytes", {"aside": [-4, 0, 0]}),
    (
        ValueError,
        "stored_at[1] must be an operator from 1, which makes the value, to 2, or None, got 0",
        {"stored_at": [None, 0, None]},
    ),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD_STEPS, ids=[text for _, text, _ in BAD_STEPS])
def test_bad_steps(error, text, change):
    with pytest.raises(error) as raised:
        TrainingStep(**{**STEP, **change})
    assert str(raised.value) == text


BAD_FORMS = [
    (TypeError, "held must be an int, got 1.5", {"held": 1.5}),
    (ValueError, "restored must not be negative, got -1; it is a number of bytes", {"restored": -1}),
    (ValueError, "noise must be finite and not negative, got inf", {"noise": math.inf}),
    (TypeError, "store_seconds must be an int or a float, got None", {"store_seconds": None}),
    (TypeError, "serves must be a bool, got 1", {"serves": 1}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD_FORMS, ids=[text for _, text, _ in BAD_FORMS])
def test_bad_forms(error, text, change):
    with pytest.raises(error) as raised:
        Form(**{"held": 1, "restored": 1, **change})
    assert str(raised.value) == text


BAD_SEGMENTS = [
    (TypeError, "nbytes must be a sequence, got 3", {"nbytes": 3}),
    (TypeError, "nbytes[0] must be an int, got 1.5", {"nbytes": [1.5, 2]}),
    (ValueError, "nbytes[0] must not be negative, got -1; it is a number of bytes", {"nbytes": [-1, 2]}),
    (ValueError, "edges[0] must be a pair of tensors, got (0, 1, 2)", {"edges": [(0, 1, 2)]}),
    (TypeError, "each end of edges[0] must be an int, got 1.0", {"edges": [(0, 1.0)]}),
    (ValueError, "edges[0] must join tensors from 0 to 1, got 2", {"edges": [(0, 2)]}),
    (ValueError, "edges[1] must join two tensors, got 1 twice; leave it out", {"edges": [(0, 1), (1, 1)]}),
    (TypeError, "max_steps must be an int, got 1.0", {"max_steps": 1.0}),
    (ValueError, "max_steps must be from 0 to 2**40 - 1, got -1; None is the default", {"max_steps": -1}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD_SEGMENTS, ids=[text for _, text, _ in BAD_SEGMENTS])
def test_bad_graphs(error, text, change):
    with pytest.raises(error) as raised:
        checkpoint_segments(**{"nbytes": [1, 2], "edges": [(0, 1)], **change})
    assert str(raised.value) == text


def test_a_budget_below_what_is_feasible_names_the_smallest_feasible():
    plans = checkpoint_plans(TrainingStep(**STEP))
    least = plans.front[0].peak
    with pytest.raises(ValueError, match=f"budget must be at least {least} bytes, the least peak of all plans, got 1$"):
        plans.within(1)
    assert plans.within(least).peak == least
    with pytest.raises(TypeError, match=r"budget must be an int, got 1\.5"):
        plans.within(1.5)


def test_a_bad_choice():
    step = TrainingStep(**STEP)
    with pytest.raises(TypeError, match="kept must be a sequence of bools, got \\[1, 1, 1\\]"):
        simulate(step, [1, 1, 1])
    with pytest.raises(ValueError, match="kept must have one entry for each value, 3, got 1"):
        simulate(step, [True])
    with pytest.raises(TypeError, match="held must be a sequence of bools, got \\[2, 2, 2\\]"):
        simulate(step, [True] * 3, [2, 2, 2])
    with pytest.raises(ValueError, match="held must have one entry for each value, 3, got 2"):
        simulate(step, [True] * 3, [True] * 2)
    with pytest.raises(TypeError, match="step must be a TrainingStep, got 3"):
        simulate(3, [True])
    with pytest.raises(TypeError, match="step must be a TrainingStep, got None"):
        checkpoint_plans(None)
    with pytest.raises(TypeError, match="forms must be a sequence of ints, got 3"):
        simulate(step, [True] * 3, forms=3)
    with pytest.raises(ValueError, match="forms must have one entry for each value, 3, got 1"):
        simulate(step, [True] * 3, forms=[-1])
    with pytest.raises(ValueError, match="forms\\[1\\] must be from -1 to -1, got 0"):
        simulate(step, [True] * 3, forms=[-1, 0, -1])
    with pytest.raises(ValueError, match="max_steps must be from 0"):
        checkpoint_plans(step, max_steps=-1)
    with pytest.raises(ValueError, match="variance must be finite and not negative, got -1"):
        checkpoint_plans(step, variance=-1)
