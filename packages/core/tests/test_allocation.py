"""``allocate_bits`` and ``allocate``: against every choice that there is, and on more tensors than can be tried."""

import itertools
import math
import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actcore import Allocation, GroupAffine, allocate, allocate_bits

WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, None)
# What `optimal` promises, and the rounding of two sums of at most 16 numbers that are not negative.
PROVEN = 1 + 1e-9 + 32 * 2**-53


def stored_bytes(numel, bits):
    return 4 * numel if bits is None else GroupAffine(bits).stored_bytes(numel, torch.float32)


def sizes(numel, widths=WIDTHS):
    return {bits: stored_bytes(numel, bits) for bits in widths}


def variance(sensitivity, bits):
    return 0.0 if bits is None else sensitivity / (2**bits - 1) ** 2


def every_choice(costs, nbytes):
    """Cost and bytes of every combination of choices: the problem's definition, written out."""
    cost, used = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    for cost_row, byte_row in zip(costs, nbytes, strict=True):
        cost = (cost[:, None] + torch.tensor(cost_row, dtype=torch.float64)).flatten()
        used = (used[:, None] + torch.tensor(byte_row, dtype=torch.int64)).flatten()
    return cost, used


def optimum(costs, nbytes, budget):
    cost, used = every_choice(costs, nbytes)
    return cost[used <= budget].min().item()


def test_the_oracle_tries_every_choice():
    costs, nbytes = [[3.0, 1.0], [7.0], [5.0, 4.0, 0.0]], [[1, 2], [3], [0, 5, 9]]
    listed = [
        (
            sum(row[j] for row, j in zip(costs, choice, strict=True)),
            sum(row[j] for row, j in zip(nbytes, choice, strict=True)),
        )
        for choice in itertools.product(range(2), range(1), range(3))
    ]
    cost, used = every_choice(costs, nbytes)
    assert list(zip(cost.tolist(), used.tolist(), strict=True)) == listed
    assert optimum(costs, nbytes, 9) == 13.0  # 2 + 3 bytes; 6 bytes more for the last tensor would be one too many
    assert optimum(costs, nbytes, 10) == 12.0


def random_instance(seed):
    """Six tensors, sizes over 3 orders of magnitude, sensitivities over 10, a budget from 1 to 8 bits on average."""
    draw = random.Random(seed)
    numels = [int(10 ** draw.uniform(3, 6)) for _ in range(6)]
    if seed % 4 == 0:  # one tensor dominates
        numels = [int(10 ** draw.uniform(3, 3.5)) for _ in range(5)] + [10**6]
    sensitivities = [10 ** draw.uniform(-5, 5) for _ in range(6)]
    least, most = (sum(stored_bytes(numel, bits) for numel in numels) for bits in (1, 8))
    return sensitivities, [sizes(numel) for numel in numels], int(draw.uniform(least, most))


@pytest.mark.parametrize("block", range(10))
def test_300_random_instances_against_every_choice(block):
    for seed in range(30 * block, 30 * block + 30):
        sensitivities, nbytes, budget = random_instance(seed)
        found = allocate_bits(sensitivities, nbytes, budget)
        costs = [[variance(c, bits) for bits in row] for c, row in zip(sensitivities, nbytes, strict=True)]
        cost, used = every_choice(costs, [list(row.values()) for row in nbytes])

        assert found.nbytes == sum(row[bits] for row, bits in zip(nbytes, found.choices, strict=True)) <= budget
        assert found.cost == pytest.approx(sum(map(variance, sensitivities, found.choices)), rel=16 * 2**-53)
        assert found.cost <= cost[used <= budget].min().item() * PROVEN
        assert (found.lower_bound, found.gap) == (found.cost, 0.0)
        # Where less than 95 % of the budget is used, whatever uses more of it costs more.
        if found.nbytes < 0.95 * budget:
            fuller = cost[(used <= budget) & (used >= 0.95 * budget)]
            assert (fuller * PROVEN > found.cost).all()


tables = st.lists(
    st.lists(st.tuples(st.integers(0, 12).map(float) | st.floats(0, 1e12), st.integers(0, 20)), min_size=1, max_size=5),
    max_size=5,
)


def split(table):
    return [[cost for cost, _ in row] for row in table], [[size for _, size in row] for row in table]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(tables, st.integers(0, 110), st.sampled_from([0, 20, 4_000_000]))
def test_any_table_against_every_choice(table, extra, max_steps):
    """Ties, choices that nobody should take, rows of different lengths; and bounds that hold where the work is cut."""
    costs, nbytes = split(table)
    budget = sum(map(min, nbytes)) + extra
    found = allocate(costs, nbytes, budget, max_steps=max_steps)
    best = optimum(costs, nbytes, budget)
    assert found.nbytes == sum(row[choice] for row, choice in zip(nbytes, found.choices, strict=True)) <= budget
    assert found.cost == math.fsum(row[choice] for row, choice in zip(costs, found.choices, strict=True))
    assert found.lower_bound <= best * PROVEN
    assert best <= found.cost * PROVEN
    assert found.steps <= max_steps
    left = budget - found.nbytes
    for cost_row, byte_row, choice in zip(costs, nbytes, found.choices, strict=True):
        cheaper = [size for cost, size in zip(cost_row, byte_row, strict=True) if cost < cost_row[choice]]
        assert all(size - byte_row[choice] > left for size in cheaper)
    if max_steps == 4_000_000:
        assert found.gap == 0
        assert found.cost <= best * PROVEN


@settings(deadline=None, max_examples=300, derandomize=True)
@given(tables, st.integers(0, 110), st.integers(0, 110))
def test_more_budget_never_costs_more(table, extra, more):
    costs, nbytes = split(table)
    least = sum(map(min, nbytes))
    small, large = (allocate(costs, nbytes, least + bytes_) for bytes_ in (extra, extra + more))
    assert large.cost <= small.cost * PROVEN


def widened(nbytes, budget, found):
    """For each tensor, whether there is a wider choice that fits into the bytes that are left."""
    left = budget - sum(row[bits] for row, bits in zip(nbytes, found.choices, strict=True))
    assert left == budget - found.nbytes >= 0
    for row, bits in zip(nbytes, found.choices, strict=True):
        wider = [size for other, size in row.items() if bits is not None and (other is None or other > bits)]
        yield any(size - row[bits] <= left for size in wider)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 1e-5, 1.0, 3.0, 1e5, math.nan, math.inf]), st.integers(0, 5000)),
        min_size=1,
        max_size=6,
    ),
    st.floats(0, 1),
)
@example([(0.0, 0), (math.nan, 0)], 0.0)
def test_no_tensor_can_be_widened_with_the_bytes_that_are_left(tensors, fraction):
    nbytes = [sizes(numel) for _, numel in tensors]
    least, most = (sum(end(row.values()) for row in nbytes) for end in (min, max))
    budget = least + int(fraction * (most - least))
    found = allocate_bits([sensitivity for sensitivity, _ in tensors], nbytes, budget)
    assert not any(widened(nbytes, budget, found))


def many(count, seed=0):
    draw = random.Random(seed)
    sensitivities = [10 ** draw.uniform(-5, 5) for _ in range(count)]
    return sensitivities, [sizes(int(10 ** draw.uniform(3, 6)), range(1, 9)) for _ in range(count)]


def test_5000_tensors_take_a_bounded_number_of_steps():
    sensitivities, nbytes = many(5000)
    budget = sum(row[4] for row in nbytes)
    greedy, found = (allocate_bits(sensitivities, nbytes, budget, max_steps=steps) for steps in (0, 200_000))
    assert (greedy.steps, found.steps <= 200_000) == (0, True)
    assert greedy.lower_bound <= found.lower_bound <= found.cost <= greedy.cost
    # Rounding the relaxation down leaves one tensor where it was, and could have saved no more than its cost there.
    assert greedy.cost - greedy.lower_bound <= max(map(variance, sensitivities, greedy.choices))
    # No tensor has room for a byte per eight of its elements more.
    assert budget - found.nbytes < min(row[8] - row[7] for row in nbytes)


def test_5000_equal_tensors_are_proven_at_once():
    """Bytes come in steps of one size, so the relaxation has no fraction left to argue about."""
    found = allocate_bits([2.0] * 5000, [sizes(4096, range(1, 9))] * 5000, 5000 * sizes(4096)[3] + 77)
    assert set(found.choices) == {3}
    assert (found.gap, found.steps) == (0, 0)


def test_without_steps_the_bound_still_holds():
    sensitivities, nbytes = many(40, seed=3)
    budget = sum(row[4] for row in nbytes)
    greedy, exact = (allocate_bits(sensitivities, nbytes, budget, max_steps=steps) for steps in (0, 4_000_000))
    assert exact.gap == 0
    assert greedy.steps == 0
    assert greedy.gap > 0
    assert greedy.lower_bound <= exact.cost <= greedy.cost
    assert greedy.cost <= (1 + greedy.gap) * exact.cost * PROVEN


def test_nor_where_the_work_was_cut():
    cut = 0
    for seed, bits in itertools.product(range(5), (2, 3, 4)):
        sensitivities, nbytes = many(20, seed)
        budget = sum(row[bits] for row in nbytes)
        found = allocate_bits(sensitivities, nbytes, budget, max_steps=500)
        assert not any(widened(nbytes, budget, found))
        cut += found.gap > 0
    assert cut


@pytest.mark.parametrize("max_steps", [0, 4_000_000])
def test_an_optimum_far_below_the_rounded_relaxation(max_steps):
    """The relaxation is within 1e-12 of the optimum, but the sums that it is computed from are 1e10 times as large."""
    for size in range(10, 40):
        optimal = 1e8 * size * (1 + 1e-12)
        found = allocate([[1e20, 0.0], [optimal, 0.0]], [[0, 10**12], [0, size]], 10**12, max_steps=max_steps)
        assert found.lower_bound <= optimal * PROVEN
        if max_steps:
            assert (found.choices, found.gap) == ((1, 0), 0)


def test_without_steps_choices_above_the_hull_are_found_too():
    assert allocate([[10.0, 6.0, 0.0]], [[0, 5, 10]], 7, max_steps=0).choices == (1,)


def test_no_tensors():
    for solve in (allocate, allocate_bits):
        assert solve([], [], 0) == solve([], [], 5) == Allocation((), 0.0, 0.0, 0, 0)


def test_one_tensor_gets_the_widest_that_fits():
    row = sizes(1000)
    for bits in WIDTHS:
        for budget in (row[bits], row[bits] + 100):
            assert allocate_bits([7.0], [row], budget).choices == (bits,)
    assert allocate_bits([7.0], [row], row[2] - 1).choices == (1,)


def test_a_budget_above_everything_buys_everything():
    rows = [sizes(1000), sizes(500, (2, 4))]
    for budget in (4000 + rows[1][4], 10**9, 10**30):
        found = allocate_bits([1.0, 2.0], rows, budget)
        assert found == Allocation((None, 4), 2 / 15**2, 2 / 15**2, 4000 + rows[1][4], found.steps)


def test_a_budget_of_exactly_the_least():
    found = allocate_bits([1.0, 2.0], [sizes(1000)] * 2, 2 * sizes(1000)[1])
    assert (found.choices, found.cost, found.gap) == ((1, 1), 3.0, 0.0)


def test_sizes_and_budgets_near_the_end_of_int64():
    huge = 2**62 - 1
    found = allocate([[2.0, 1.0], [3.0, 1.0]], [[0, huge], [1, huge]], huge + 1)
    assert (found.choices, found.nbytes) == ((0, 1), huge)
    assert allocate([[2.0, 1.0], [3.0, 1.0]], [[0, huge], [1, huge]], 2**64).nbytes == 2 * huge


def test_costs_near_the_ends_of_a_float():
    assert allocate([[1e308, 5e-324]], [[1, 2]], 1).choices == (0,)
    assert allocate([[1e308, 5e-324]], [[1, 2]], 2).choices == (1,)


def test_of_equal_costs_the_fewest_bytes_and_of_equals_the_first():
    found = allocate([[1.0, 1.0, 1.0], [2.0, 2.0]], [[9, 4, 4], [3, 3]], 100)
    assert (found.choices, found.nbytes) == ((1, 0), 7)


def test_tensors_of_unknown_sensitivity_come_first():
    """A sensitivity that is not finite says nothing for fewer bits: the tensor gets all that the others can spare."""
    row = sizes(1000, range(1, 9))
    for unknown in (math.nan, math.inf):
        found = allocate_bits([1e30, unknown, 1.0], [row] * 3, row[8] + row[3] + row[1])
        assert found.choices == (3, 8, 1)
        assert found.cost == found.lower_bound == 1e30 / 49 + 1.0
        assert allocate_bits([1e30, unknown], [row] * 2, row[1] + row[6]).choices == (1, 6)


def test_tensors_of_sensitivity_zero_come_last_and_get_what_is_left():
    row = sizes(1000, range(1, 9))
    found = allocate_bits([0.0, 1e-30, 0.0], [row] * 3, row[8] + row[5] + row[4])
    assert found.choices[1] == 8
    assert sorted(found.choices) == [4, 5, 8]


@pytest.mark.parametrize("nothing", [0.0, math.nan, math.inf])
def test_where_nothing_is_known_large_and_small_tensors_get_equal_widths(nothing):
    rows = [sizes(numel, range(1, 9)) for numel in (2**12, 2**16, 2**20)]
    for bits in range(1, 9):
        found = allocate_bits([nothing] * 3, rows, sum(row[bits] for row in rows))
        assert found.choices == (bits,) * 3
        assert found.cost == 0


def test_an_empty_tensor_takes_the_widest():
    assert allocate_bits([0.0, 1.0, math.nan], [sizes(0)] * 3, 0).choices == (None,) * 3


def test_the_same_problem_has_the_same_solution():
    sensitivities, nbytes = many(30)
    budget = sum(row[3] for row in nbytes)
    assert allocate_bits(sensitivities, nbytes, budget) == allocate_bits(sensitivities, nbytes, budget)
