"""``simulate`` against its definition, and ``checkpoint_plans`` against every choice of values."""

import random

import pytest

from actcore import TrainingStep, checkpoint_plans, simulate

from .checkpoint_graphs import Network, random_network, random_step, residual_step
from .checkpoint_oracle import Oracle

CHAIN = TrainingStep(
    nbytes=[4, 5, 6],
    reads=[[], [0], [1]],
    makes=[[0], [1], [2]],
    seconds=[1.0, 2.0, 3.0],
    backward=[[2], [1], [0]],
    other=[0, 0, 0, 10, 20, 30],
)


def test_a_chain_by_hand():
    everything = simulate(CHAIN, [True] * 3)
    assert everything.nbytes == (4, 9, 15, 15 + 10, 9 + 20, 4 + 30)
    assert (everything.peak, everything.event, everything.seconds, everything.segments) == (34, 5, 0.0, ())

    # Value 1 is gone after operator 2, and recomputed from 0 when the second step of backward reads it.
    without = simulate(CHAIN, [True, False, True])
    assert without.nbytes == (4, 9, 15, 10 + 10, 9 + 20, 4 + 30)
    assert (without.seconds, without.segments) == (2.0, ((1,),))

    # Nothing is kept: all three are recomputed at the first step, and each lives to its reader.
    nothing = simulate(CHAIN, [False] * 3)
    assert nothing.nbytes == (4, 9, 11, 15 + 10, 9 + 20, 4 + 30)
    assert (nothing.seconds, nothing.segments) == (6.0, ((0, 1, 2),))


def test_what_nobody_reads_is_not_repeated():
    step = TrainingStep(
        nbytes=[4, 5, 6, 7],
        reads=[[], [0], [1], [1]],
        makes=[[0], [1], [2], [3]],
        seconds=[1, 1, 1, 1],
        backward=[[2], [0]],
    )
    usage = simulate(step, [True, False, False, False])
    assert usage.segments == ((1, 2),)
    assert usage.nbytes == (4, 9, 15, 4 + 5 + 7, 4 + 5 + 6, 4)


def test_an_operator_in_place_takes_over_the_memory():
    step = TrainingStep(
        nbytes=[4, 8, 8], reads=[[], [0], [1]], makes=[[0], [1], [2]], seconds=[1, 1, 1], backward=[[2], [0]],
        reuses=[None, None, 1],
    )  # fmt: skip
    assert simulate(step, [True] * 3).nbytes == (4, 12, 12, 12, 4)
    again = simulate(step, [True, True, False])  # the overwritten value is not kept, whatever is asked for
    assert (again.nbytes, again.segments) == ((4, 12, 12, 12, 4), ((1, 2),))


def test_an_operator_that_is_not_repeatable_keeps_its_values():
    step = TrainingStep(**{**vars(CHAIN), "repeatable": [True, False, True]})
    assert simulate(step, [False] * 3).segments == ((0,), (2,))
    none = TrainingStep(**{**vars(CHAIN), "repeatable": [False] * 3})
    (plan,) = checkpoint_plans(none).front
    assert (plan.kept, plan.peak, plan.seconds) == ((True,) * 3, 34, 0.0)


def test_scratch_is_taken_when_repeated_too():
    step = TrainingStep(**{**vars(CHAIN), "scratch": [0, 100, 0]})
    assert simulate(step, [True, False, True]).nbytes == (4, 109, 15, 20, 9 + 100 + 10, 34)


def test_a_value_that_the_caller_holds_is_kept():
    step = TrainingStep(**{**vars(CHAIN), "until": [None, 3, 5]})
    usage = simulate(step, [True, False, False])
    assert usage.nbytes == (4, 9, 15, 15 + 10, 15 + 20, 10 + 30)
    assert usage.segments == ((1,),)


def test_nested_checkpoints_by_hand():
    # A chain of 6, with gradients, kept: the first value alone. The outer segment holds value 2 and makes the last two,
    # which backward reads at once; values 1 and, from 2, 3 are made once more.
    step = TrainingStep(
        nbytes=[1, 10, 100, 1000, 10000, 100000],
        reads=[[], [0], [1], [2], [3], [4]],
        makes=[[number] for number in range(6)],
        seconds=[1, 2, 4, 8, 16, 32],
        backward=[[5], [4], [3], [2], [1], [0]],
    )
    kept, held = [True, *[False] * 5], [False, False, True, False, True, True]
    usage = simulate(step, kept, held)
    assert usage.segments == ((1, 2, 3, 4, 5),)
    assert usage.inner == ((1,), (3,))
    assert usage.seconds == 2 + 4 + 8 + 16 + 32 + 2 + 8
    assert usage.nbytes[6:] == (1 + 100 + 10000 + 100000, 1 + 100 + 10000, 1 + 100 + 1000, 1 + 100, 1 + 10, 1)
    # While the outer segment is repeated, value 3 is there until value 4 is made, and value 1 until value 2 is.
    assert simulate(step, [True, *[False] * 4, True], held).nbytes[6] == 100001
    assert simulate(step, [True, *[False] * 4, True], held).nbytes[7] == 1 + 100 + 1000 + 10000


@pytest.mark.parametrize("block", range(4))
def test_1000_steps_against_the_definition(block):
    nested = 0
    for seed in range(250 * block, 250 * block + 250):
        step, draw = random_step(seed), random.Random(seed)
        kept = [draw.random() < 0.5 for _ in step.nbytes]
        held = None if seed % 3 == 0 else [draw.random() < 0.5 for _ in step.nbytes]
        usage, expected = simulate(step, kept, held), Oracle(step)(kept, held)
        assert usage.nbytes == expected.nbytes, f"random_step({seed})"
        assert sorted(usage.segments) == list(expected.segments)
        assert sorted(usage.inner) == list(expected.inner)
        nested += bool(usage.inner)
        assert usage.seconds == pytest.approx(expected.seconds, rel=16 * 2**-53)  # at most 12 numbers are added
        assert usage.peak == max(expected.nbytes)
        assert usage.event == expected.nbytes.index(usage.peak)
    assert nested > 40


def test_small_steps_against_every_choice():
    for seed in range(150):
        step = random_step(seed, most_ops=5)
        plans = checkpoint_plans(step)
        best = Oracle(step).front()
        assert plans.exact
        assert plans.peak_bound == best[0][0]
        assert [plan.peak for plan in plans.front] == [peak for peak, _ in best], f"random_step({seed})"
        assert [plan.seconds for plan in plans.front] == pytest.approx([seconds for _, seconds in best], rel=8 * 2**-53)


def require_consistent(plans):
    step = plans.step
    for plan in plans.front:
        usage = simulate(step, plan.kept, plan.held)
        assert (usage.peak, usage.seconds) == (plan.peak, plan.seconds)
        assert bool(usage.inner) == (plan.held is not None)
        assert plan.seconds_bound <= plan.seconds
    peaks, seconds = [plan.peak for plan in plans.front], [plan.seconds for plan in plans.front]
    assert peaks == sorted(set(peaks))
    assert seconds == sorted(set(seconds), reverse=True)
    assert plans.front[-1].seconds == 0.0
    assert plans.peak_bound <= peaks[0]


def test_the_search_and_its_bounds_against_every_choice():
    # 14 to 19 choices, and fewer simulations than these make plans: the search itself.
    peaks, excess, compared = [], [], 0
    for seed in range(20):
        step = random_network(seed)
        length = 2 * len(step.reads) + len(step.backward) + len(step.nbytes)
        every = checkpoint_plans(step, max_steps=length << 20)
        found = checkpoint_plans(step, max_steps=8000 * length)
        require_consistent(found)
        if not every.exact or found.exact:
            continue
        compared += 1
        peaks.append(found.front[0].peak / every.front[0].peak)
        assert found.peak_bound <= every.front[0].peak
        for best in every.front:
            if best.peak < found.front[0].peak:
                continue
            within = found.within(best.peak)
            assert within.seconds_bound <= best.seconds * (1 + 32 * 2**-53)  # two sums of at most 14 numbers
            excess.append((within.seconds - best.seconds) / sum(step.seconds))
    assert compared >= 10
    assert sum(peaks) / len(peaks) <= 1.01
    assert sum(excess) / len(excess) <= 0.01  # of a forward pass


@pytest.fixture(scope="module")
def resnet():
    return checkpoint_plans(residual_step((3, 4, 6, 3)))


def test_a_network(resnet):
    require_consistent(resnet)
    everything = resnet.front[-1].peak
    # The forward pass is about a third of a step: a fifth of it is 7 % of the time.
    assert resnet.within(everything * 2 // 5).seconds < 0.2 * sum(resnet.step.seconds)
    assert resnet.front[0].peak < 0.3 * everything


def test_a_long_chain_is_nested():
    ops = 200
    chain = TrainingStep(
        nbytes=[1000] * ops,
        reads=[[], *([op] for op in range(ops - 1))],
        makes=[[op] for op in range(ops)],
        seconds=[1.0] * ops,
        backward=[[op] for op in reversed(range(ops))],
    )
    plans = checkpoint_plans(chain)
    require_consistent(plans)
    assert len({plan.held is not None for plan in plans.front}) == 2
    # With m values at once, whose number falls as backward goes, segments reach m (m + 1) / 2 operators: 20 for 200.
    # With nested ones, which shrink in the same way, it is m (m + 1) (m + 2) / 6: 10 for 220.
    assert min(plan.peak for plan in plans.front if plan.held is None) >= 19_000
    assert 10_000 <= plans.front[0].peak <= 13_000
    assert plans.front[0].seconds <= 2 * ops


def test_more_budget_never_takes_more_seconds(resnet):
    least, most = resnet.front[0].peak, resnet.front[-1].peak
    plans = [resnet.within(least + (most - least) * i // 200) for i in range(220)]
    assert all(plan.peak <= least + (most - least) * i // 200 for i, plan in enumerate(plans))
    assert [plan.seconds for plan in plans] == sorted((plan.seconds for plan in plans), reverse=True)
    bounds = [plan.seconds_bound for plan in plans]
    assert all(bound <= plan.seconds for bound, plan in zip(bounds, plans, strict=True))
    assert plans[-1].seconds == plans[-1].seconds_bound == 0.0
    assert resnet.within(1 << 80) == plans[-1]


def test_the_same_step_gives_the_same_plans():
    step = residual_step((1, 2, 2, 1))
    assert checkpoint_plans(step, max_steps=500_000) == checkpoint_plans(step, max_steps=500_000)


@pytest.mark.parametrize("max_steps", [0, 1, 1000, 100_000])
def test_few_steps_still_give_plans(max_steps):
    require_consistent(checkpoint_plans(residual_step((1, 1, 1, 1)), max_steps=max_steps))


@pytest.mark.parametrize("scale", [0.0, 1e-300, 1e300])
def test_seconds_of_any_unit(scale):
    step = residual_step((1, 1, 1, 1))
    scaled = TrainingStep(
        **{**vars(step), "seconds": [scale * seconds / sum(step.seconds) for seconds in step.seconds]}
    )
    plans = checkpoint_plans(scaled, max_steps=300_000)
    assert plans.front[0].peak < simulate(step, [True] * len(step.nbytes)).peak
    assert plans.front[-1].seconds == 0.0


def test_steps_of_next_to_nothing():
    nothing = TrainingStep(nbytes=[], reads=[], makes=[], seconds=[], backward=[])
    (plan,) = checkpoint_plans(nothing).front
    assert (plan.kept, plan.peak, plan.seconds) == ((), 0, 0.0)
    lone = TrainingStep(nbytes=[8], reads=[[]], makes=[[0]], seconds=[1.0], backward=[])
    (plan,) = checkpoint_plans(lone).front
    assert (plan.kept, plan.peak, plan.seconds) == ((True,), 8, 0.0)
    empty = TrainingStep(nbytes=[0, 0], reads=[[], [0]], makes=[[0], [1]], seconds=[1, 1], backward=[[1], [0]])
    (plan,) = checkpoint_plans(empty).front
    assert (plan.peak, plan.seconds) == (0, 0.0)


def test_a_dense_step_of_many_values():
    net = Network()
    for i in range(60):
        net.add(10 + i, range(i), 1.0, saves=range(i))
    plans = checkpoint_plans(net.step(), max_steps=2_000_000)
    require_consistent(plans)
