"""Values that wait for backward in another form: ``simulate`` against its definition, and by hand."""

import random
from dataclasses import replace

import pytest

from actcore import Form, TrainingStep, simulate

from .checkpoint_graphs import random_step, with_forms
from .checkpoint_oracle import Oracle

CHAIN = TrainingStep(
    nbytes=[40, 50, 60],
    reads=[[], [0], [1]],
    makes=[[0], [1], [2]],
    seconds=[1.0, 2.0, 3.0],
    backward=[[2], [1], [1], [0]],
    forms=[
        [],
        [Form(5, 50, passing=7, store_seconds=0.25, restore_seconds=0.5, noise=0.01), Form(6, 0, serves=False)],
        [],
    ],
    weights=[1.0, 2.0, 4.0],
    stored_at=[None, 1, None],
)


def test_a_kept_value_waits_in_its_form():
    assert simulate(CHAIN, [True] * 3).nbytes == (40, 90, 150, 150, 90, 90, 40)
    usage = simulate(CHAIN, [True] * 3, forms=[-1, 0, -1])
    # As it is to operator 2, stored from operator 1 on, restored at the second step and lent to the third.
    assert usage.nbytes == (40, 90 + 5 + 7, 150 + 5, 40 + 60 + 5, 40 + 5 + 50, 40 + 5 + 50, 40)
    assert (usage.seconds, usage.variance) == (0.25 + 0.5, 2.0 * 0.01)


def test_what_a_step_restores_ends_the_loan_of_another():
    forms = [[Form(4, 40, restore_seconds=8)], *CHAIN.forms[1:]]
    step = replace(CHAIN, backward=[[1], [0], [1]], other=(), forms=forms)
    usage = simulate(step, [True] * 3, forms=[0, 0, -1])
    assert usage.nbytes[3:] == (4 + 5 + 50, 4 + 5 + 40, 5 + 50)
    assert usage.seconds == 0.25 + 2 * 0.5 + 8


def test_a_repetition_restores_what_it_reads_and_hands_its_noise_on():
    usage = simulate(CHAIN, [True, True, False], forms=[-1, 0, -1])
    assert usage.nbytes == (40, 102, 155, 40 + 5 + 50 + 60, 95, 95, 40)
    assert usage.seconds == 3 + 0.25 + 2 * 0.5
    assert usage.variance == pytest.approx((2.0 + 4.0) * 0.01, rel=4 * 2**-53)
    # Without having been saved by autograd, it is stored when operator 2 reads it.
    late = simulate(replace(CHAIN, stored_at=[None] * 3), [True, True, False], forms=[-1, 0, -1])
    assert late.nbytes == (40, 90, 150 + 12, *usage.nbytes[3:])


def test_a_form_that_does_not_serve_a_repetition_is_none():
    forms = [-1, 1, -1]
    assert simulate(CHAIN, [True] * 3, forms=forms).nbytes[3:] == (106, 46, 46, 40)
    assert simulate(CHAIN, [True, True, False], forms=forms) == simulate(CHAIN, [True, True, False])


def test_a_value_recomputed_waits_in_its_form():
    usage = simulate(CHAIN, [True, False, False], forms=[-1, 0, -1])
    # Operator 2 reads value 1 as it is; then it is stored.
    assert usage.nbytes == (40, 90, 150, 40 + 50 + 60 + 5 + 7, 95, 95, 40)
    assert usage.seconds == 2 + 3 + 0.25 + 0.5
    assert usage.variance == 2.0 * 0.01


def test_bytes_aside_are_stored_of_what_is_recomputed():
    step = replace(CHAIN, aside=[0, 3, 0])
    assert simulate(step, [True] * 3) == simulate(CHAIN, [True] * 3)
    plain = simulate(CHAIN, [True, False, True]).nbytes
    assert simulate(step, [True, False, True]).nbytes == (
        plain[0], *(size + 3 for size in plain[1:6]), plain[6],
    )  # fmt: skip


def test_a_value_that_is_formed_waits_in_its_first_form():
    step = replace(CHAIN, formed=[False, True, False])
    assert simulate(step, [True] * 3) == simulate(CHAIN, [True] * 3, forms=[-1, 0, -1])
    assert simulate(step, [True] * 3, forms=[-1, 1, -1]) == simulate(CHAIN, [True] * 3, forms=[-1, 1, -1])


@pytest.mark.parametrize("block", range(4))
def test_1000_steps_with_forms_against_the_definition(block):
    formed, nested = 0, 0
    for seed in range(250 * block, 250 * block + 250):
        step, draw = with_forms(random_step(seed), seed, formed=0.3 * (seed % 2)), random.Random(seed)
        kept = [draw.random() < 0.5 for _ in step.nbytes]
        held = None if seed % 3 == 0 else [draw.random() < 0.5 for _ in step.nbytes]
        forms = [draw.randrange(-1, len(menu)) for menu in step.forms]
        usage, expected = simulate(step, kept, held, forms), Oracle(step)(kept, held, forms)
        assert usage.nbytes == expected.nbytes, f"with_forms(random_step({seed}), {seed})"
        assert sorted(usage.segments) == list(expected.segments)
        assert sorted(usage.inner) == list(expected.inner)
        # At most 100 numbers are added.
        assert usage.seconds == pytest.approx(expected.seconds, rel=128 * 2**-53)
        assert usage.variance == pytest.approx(expected.variance, rel=128 * 2**-53)
        formed += usage.variance > 0
        nested += bool(usage.inner)
    assert formed > 80
    assert nested > 40
