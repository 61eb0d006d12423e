"""``fit_steps`` and ``fit_levels``: against every cut and every codebook that there is."""

import itertools
import math
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actcore import fit_levels, fit_steps

# A piece's error is a sum of at most 13 terms that are not negative, each of some 8 roundings; so is the reference's.
EXACT = 1 + 13 * 16 * 2**-52
# What rounding leaves where the error is 0: the square of a mean's last digits, for values and weights up to 10.
NOTHING = 1e-26


def piece_error(values, weights):
    if not sum(weights):
        return 0.0
    mean = math.fsum(map(math.prod, zip(values, weights, strict=True))) / math.fsum(weights)
    return math.fsum(w * (v - mean) ** 2 for v, w in zip(values, weights, strict=True))


def cut_error(values, weights, cuts):
    ends = [0, *cuts, len(values)]
    return math.fsum(piece_error(values[a:b], weights[a:b]) for a, b in itertools.pairwise(ends))


def least_error(values, weights, pieces):
    every = itertools.combinations(range(1, len(values)), pieces - 1)
    return min(cut_error(values, weights, cuts) for cuts in every)


numbers = st.integers(-3, 3).map(float) | st.floats(-10, 10, allow_subnormal=False)
mass = st.sampled_from([0.0, 0.0, 1.0, 2.5]) | st.floats(0, 10, allow_subnormal=False)
rows = st.lists(st.tuples(numbers, mass), min_size=1, max_size=7)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(rows)
def test_any_row_against_every_cut(row):
    values, weights = [value for value, _ in row], [weight for _, weight in row]
    for pieces, fit in enumerate(fit_steps(values, weights, range(1, len(row) + 1)), start=1):
        assert (len(fit.cuts), len(fit.levels)) == (pieces - 1, pieces)
        assert all(a < b for a, b in itertools.pairwise((0, *fit.cuts, len(row))))
        best = least_error(values, weights, pieces)
        assert cut_error(values, weights, fit.cuts) <= best * EXACT + NOTHING
        assert fit.error == pytest.approx(best, rel=EXACT - 1, abs=NOTHING)


FUNCTIONS = {
    "gelu": torch.nn.functional.gelu,
    "selu": torch.nn.functional.selu,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
    "mish": torch.nn.functional.mish,
    "squared_relu": lambda x: torch.relu(x).square(),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("weight", ["uniform", "normal"])
def test_derivatives_against_every_cut(function, weight):
    x = torch.linspace(-4, 4, 13, dtype=torch.float64).requires_grad_()
    [slope] = torch.autograd.grad(FUNCTIONS[function](x).sum(), x)
    values = slope.tolist()
    weights = torch.ones(13).tolist() if weight == "uniform" else torch.exp(-x.detach().square() / 2).tolist()
    for pieces, fit in zip((1, 2, 4, 8), fit_steps(slope, weights, (1, 2, 4, 8)), strict=True):
        assert fit.error == pytest.approx(least_error(values, weights, pieces), rel=EXACT - 1, abs=NOTHING)


def plain_program(values, weights, most):
    """The dynamic program as it is defined, one float at a time."""
    n = len(values)
    cost = [[piece_error(values[a:b], weights[a:b]) if a < b else math.inf for b in range(n + 1)] for a in range(n + 1)]
    least = [cost[0]]
    for _ in range(most - 1):
        least.append([min((least[-1][a] + cost[a][b] for a in range(1, b)), default=math.inf) for b in range(n + 1)])
    return [row[n] for row in least]


@pytest.mark.parametrize("kind", ["noise", "walk", "wave", "zeros between"])
def test_rows_longer_than_a_block_against_the_plain_program(kind):
    """150 cells: several blocks that are skipped or looked at together, and a partial one."""
    draw = random.Random(kind)
    values = [draw.gauss(0, 1) for _ in range(150)]
    if kind == "walk":
        values = list(itertools.accumulate(values))
    if kind == "wave":
        values = [math.sin(i / 7) for i in range(150)]
    weights = [draw.choice([0.0, 1.0]) if kind == "zeros between" else draw.random() for _ in values]
    found = fit_steps(values, weights, range(1, 21))
    # Sums of up to 150 terms.
    expected = plain_program(values, weights, 20)
    assert [fit.error for fit in found] == pytest.approx(expected, rel=150 * 16 * 2**-52, abs=NOTHING)


def test_a_piece_more_never_costs_more_and_as_many_as_cells_cost_nothing():
    draw = random.Random(0)
    values = [draw.gauss(0, 1) for _ in range(300)]
    errors = [fit.error for fit in fit_steps(values, None, range(1, 257))]
    assert all(more <= fewer for fewer, more in itertools.pairwise(errors))
    few = fit_steps(values[:20], None, (20, 21, 256))
    assert [(fit.error, fit.levels, fit.cuts) for fit in few] == [(0.0, tuple(values[:20]), tuple(range(1, 20)))] * 3


def test_a_small_error_beside_large_values_keeps_its_digits():
    """Differences of prefix sums of squares would be off by 1e8 * 1e-16 * 1e8, more than all there is."""
    values = [1e8 + (i % 2) * 1e-3 for i in range(100)]
    difference = values[1] - values[0]
    [fit] = fit_steps(values, None, [1])
    assert fit.error == pytest.approx(
        25 * difference**2, rel=1e-6
    )  # values are 1e8 +- 1e-8: a mean's error is 1e-5 of 1e-3


def test_weightless_pieces_have_the_plain_mean():
    fit = fit_steps([0.0, 0.0, 5.0, 7.0], [1.0, 1.0, 0.0, 0.0], 1)
    assert (fit.levels, fit.error) == ((0.0,), 0.0)
    assert fit_steps([1.0, 2.0, 6.0], [0.0, 0.0, 0.0], 1).levels == (3.0,)


def test_one_number_of_pieces_and_several_agree_in_any_order():
    values = torch.randn(50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    several = fit_steps(values, torch.ones(50), (8, 2, 2))
    assert several[0] == fit_steps(values.tolist(), None, 8)
    assert several[1] == several[2] == fit_steps(values, None, 2)


def test_threads_get_what_one_gets():
    draw = random.Random(1)
    rows = [[draw.gauss(0, 1) for _ in range(400)] for _ in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda row: fit_steps(row, None, 16), rows))
    assert found == [fit_steps(row, None, 16) for row in rows]


def rounding_error(values, weights, levels):
    total = []
    for value, weight in zip(values, weights, strict=True):
        low = max(level for level in levels if level <= value)
        high = min(level for level in levels if level >= value)
        total.append(weight * (high - value) * (value - low))
    return math.fsum(total)


@settings(deadline=None, max_examples=150, derandomize=True)
@given(rows, st.lists(st.integers(-30, 30).map(lambda i: i / 4), min_size=1, max_size=6))
def test_any_values_against_every_codebook(row, between):
    values, weights = [value for value, _ in row], [weight for _, weight in row]
    ends = [min(values) - 0.5, max(values) + 0.5]
    grid = sorted({*ends, *(level for level in between if ends[0] < level < ends[1])})
    for count, fit in enumerate(fit_levels(values, weights, grid, range(2, len(grid) + 1)), start=2):
        assert (len(fit.levels), fit.levels[0], fit.levels[-1]) == (count, grid[0], grid[-1])
        every = itertools.combinations(grid[1:-1], count - 2)
        best = min(rounding_error(values, weights, (grid[0], *inner, grid[-1])) for inner in every)
        # The program sums differences of terms up to 10 * 21**2 each, at most 9 values and 8 candidates.
        slack = 9 * 8 * 10 * 21**2 * 2**-52
        assert fit.error == pytest.approx(best, rel=EXACT - 1, abs=slack)
        assert rounding_error(values, weights, fit.levels) <= best * EXACT + slack


BAD = [
    (TypeError, "values must be a sequence of numbers or a tensor, got 3", {"values": 3}),
    (ValueError, "values must have one dimension, got the shape (1, 2)", {"values": torch.ones(1, 2)}),
    (ValueError, "values must hold 1 to 32768 numbers, got 0", {"values": []}),
    (TypeError, "values[1] must be an int or a float, got '2'", {"values": [1.0, "2"]}),
    (ValueError, "values[0] must be finite, got nan; leave out what has no value", {"values": [math.nan, 1.0]}),
    (ValueError, "weights must have one entry for each of the 2 values, got 1", {"weights": [1.0]}),
    (ValueError, "weights[1] must not be negative, got -1.0", {"weights": [1.0, -1.0]}),
    (ValueError, "weights[0] must be finite, got inf", {"weights": [math.inf, 1.0]}),
    (TypeError, "pieces must be an int or a sequence of ints, got 2.0", {"pieces": 2.0}),
    (TypeError, "pieces must be an int or a sequence of ints, got [True]", {"pieces": [True]}),
    (ValueError, "pieces must be from 1 to 256, the number of 8-bit codes, got 0", {"pieces": 0}),
    (ValueError, "pieces must be from 1 to 256, the number of 8-bit codes, got 257", {"pieces": [1, 257]}),
    (ValueError, "pieces must hold at least one number, got none", {"pieces": []}),
    (ValueError, "values and weights must have a finite error", {"values": [-1e200, 1e200]}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD)
def test_wrong_arguments_of_fit_steps(error, text, change):
    with pytest.raises(error) as raised:
        fit_steps(**{"values": [1.0, 2.0], "weights": None, "pieces": 2, **change})
    assert text in str(raised.value)


BAD_LEVELS = [
    (ValueError, "candidates must hold 2 to 32768 numbers, got 1", {"candidates": [1.0]}),
    (
        ValueError,
        "candidates must ascend strictly, got 3.0 before 3.0; sort them and remove duplicates",
        {"candidates": [0, 3, 3]},
    ),
    (ValueError, "candidates must enclose the values, which go from 1.0 to 2.0", {"candidates": [1.5, 3.0]}),
    (ValueError, "levels must be from 2 to 256, the number of 8-bit codes, got 1", {"levels": 1}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD_LEVELS)
def test_wrong_arguments_of_fit_levels(error, text, change):
    with pytest.raises(error) as raised:
        fit_levels(**{"values": [1.0, 2.0], "weights": None, "candidates": [0.0, 3.0], "levels": 2, **change})
    assert text in str(raised.value)
