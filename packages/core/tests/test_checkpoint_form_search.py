"""``checkpoint_plans`` of values that may wait in forms: against every choice, its bounds, and what it promises."""

import itertools
from dataclasses import replace

import pytest

from actcore import Form, TrainingStep, checkpoint_plans, most_exact_plan, simulate

from .checkpoint_graphs import random_network, random_step, residual_step, with_forms
from .checkpoint_oracle import Oracle

ROUNDING = 64 * 2**-53
"""Of sums of at most 64 numbers."""


def length_of(step):
    return 2 * len(step.reads) + len(step.backward) + len(step.nbytes)


def require_consistent(plans):
    for plan in plans.front:
        usage = simulate(plans.step, plan.kept, plan.held, plan.forms)
        assert (usage.peak, usage.seconds, usage.variance) == (plan.peak, plan.seconds, plan.variance)
        assert plan.variance <= plans.variance
        assert plan.seconds_bound <= plan.seconds
    peaks, seconds = [plan.peak for plan in plans.front], [plan.seconds for plan in plans.front]
    assert peaks == sorted(set(peaks))
    assert seconds == sorted(set(seconds), reverse=True)
    assert plans.peak_bound <= peaks[0]


@pytest.mark.parametrize("variance", [0.0, 0.02])
def test_tiny_steps_against_every_choice(variance):
    for seed in range(25):
        step = with_forms(random_step(seed, most_ops=3), seed, most=1)
        plans, best = checkpoint_plans(step, variance=variance), Oracle(step).front(variance)
        require_consistent(plans)
        assert plans.exact
        assert [plan.peak for plan in plans.front] == [peak for peak, _ in best], f"seed {seed}"
        assert [plan.seconds for plan in plans.front] == pytest.approx([seconds for _, seconds in best], rel=ROUNDING)


def test_the_search_and_its_bounds_against_every_choice():
    compared = 0
    for seed in range(30):
        for variance in (0.0, 0.02):
            step = random_network(seed, ops=7) if seed % 2 else random_step(seed, 7)
            step = with_forms(step, seed, most=2)
            every = checkpoint_plans(step, max_steps=length_of(step) << 16, variance=variance)
            # A tenth of the usual steps, so that not all can be tried.
            found = checkpoint_plans(step, max_steps=3000 * length_of(step), variance=variance)
            require_consistent(found)
            if not every.exact or found.exact:
                continue
            compared += 1
            assert found.peak_bound <= every.front[0].peak
            for best in every.front:
                within = [plan for plan in found.front if plan.seconds <= best.seconds * (1 + ROUNDING)]
                assert within[0].peak <= 1.05 * best.peak, f"seed {seed}"
                if best.peak < found.front[0].peak:
                    continue
                plan = found.within(best.peak)
                assert plan.seconds <= 1.05 * best.seconds, f"seed {seed}"
                assert plan.seconds_bound <= best.seconds * (1 + ROUNDING)
    assert compared >= 12


def test_the_least_variance_within_bytes_and_seconds():
    for seed in range(12):
        step = with_forms(random_step(seed, most_ops=3), seed, most=1)
        oracle = Oracle(step)
        usages = [oracle(kept, None, forms) for kept, forms in oracle.plans()]
        points = [(max(usage.nbytes), usage.seconds, usage.variance) for usage in usages]
        front = checkpoint_plans(step, variance=1e9).front
        for budget, seconds in {(front[0].peak, front[0].seconds), (front[-1].peak, front[len(front) // 2].seconds)}:
            seconds *= 1 + ROUNDING
            least = min((own for peak, time, own in points if peak <= budget and time <= seconds), default=None)
            if least is None:
                with pytest.raises(ValueError, match="no plan within"):
                    most_exact_plan(step, budget, seconds)
                continue
            plan = most_exact_plan(step, budget, seconds)
            assert (plan.peak <= budget, plan.seconds <= seconds) == (True, True)
            assert plan.variance <= 1.05 * least * (1 + ROUNDING), f"seed {seed}"


def formed_network(count=1):
    """A ResNet whose values may wait in 2, 4 or 8 bits, on the host, or, of no use to repetitions, as signs."""
    step = residual_step((count,) * 4)
    menus = []
    for size in step.nbytes:
        codec = 1e-2 * size
        bits = [Form(size * b // 32, size, size // 8, codec, codec, 0.3 * 4.0**-b) for b in (2, 4, 8)]
        menus.append([*bits, Form(0, size, 0, 4 * codec, 4 * codec), Form(size // 32, 0, 0, codec, 0.0, serves=False)])
    return replace(step, forms=menus, weights=[1.0 / len(menus)] * len(menus))


@pytest.fixture(scope="module")
def network():
    return formed_network()


def test_no_noise_without_variance(network):
    plans = checkpoint_plans(network, max_steps=2_000_000)
    require_consistent(plans)
    noise = [
        network.forms[value][form].noise
        for plan in plans.front
        for value, form in enumerate(plan.forms or ())
        if form >= 0
    ]
    assert noise
    assert not any(noise)


def test_forms_are_never_worse_than_none(network):
    plain = checkpoint_plans(replace(network, forms=()))
    with_menus = checkpoint_plans(network, variance=1e-4)
    require_consistent(with_menus)
    for plan in plain.front:
        assert with_menus.within(plan.peak).seconds <= plan.seconds
    assert with_menus.front[0].peak < plain.front[0].peak


def test_more_variance_never_takes_more_bytes_or_seconds_by_much(network):
    # Each search is a heuristic of its own, which may miss what another one finds.
    everything = simulate(network, [True] * len(network.nbytes)).peak
    seconds = [checkpoint_plans(network, variance=v).within(everything * 2 // 5).seconds for v in (1e-6, 1e-4, 1e-2)]
    for more, less in itertools.pairwise(seconds):
        assert less <= 1.05 * more


def test_the_same_step_gives_the_same_plans(network):
    one, other = (checkpoint_plans(network, max_steps=3_000_000, variance=1e-4) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("max_steps", [0, 1, 1000, 100_000])
def test_few_steps_still_give_plans(network, max_steps):
    plans = checkpoint_plans(network, max_steps=max_steps, variance=1e-4)
    require_consistent(plans)
    # What is begun is ended: a cut looks at twice 32 states at each operator, at 4 steps each.
    assert plans.steps <= max_steps + 300 * length_of(network)


def test_forms_where_nothing_can_be_repeated(network):
    step = replace(network, repeatable=[False] * len(network.reads))
    plans = checkpoint_plans(step, max_steps=1_000_000, variance=1e-4)
    require_consistent(plans)
    assert plans.front[0].peak < plans.front[-1].peak


def test_values_of_next_to_no_bytes():
    step = TrainingStep(
        nbytes=[1, *[0] * 19],
        reads=[[], *([op] for op in range(19))],
        makes=[[op] for op in range(20)],
        seconds=[1.0] * 20,
        backward=[[op] for op in reversed(range(20))],
    )
    assert checkpoint_plans(step, max_steps=50_000).front[0].peak == 1


def test_what_cannot_wait_as_it_is_may_have_more_variance_than_asked(network):
    step = replace(network, formed=[True] * len(network.nbytes))
    with pytest.raises(ValueError, match=r"variance must be at least .*, its value when everything is kept, got 1e-09"):
        checkpoint_plans(step, variance=1e-9)
    require_consistent(checkpoint_plans(step, max_steps=1_000_000, variance=1.0))
