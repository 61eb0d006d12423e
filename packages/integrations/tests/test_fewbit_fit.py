"""``approximate`` and ``estimate_error``: any function, domain and weight, and what they refuse."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

from integrations.fewbit import FUNCTIONS, LevelTable, StepTable, approximate, estimate_error
from integrations.policies.codebooks.fitting import fit_tables
from integrations.policies.codebooks.objective import Objective
from integrations.policies.codebooks.refine import refine, score
from integrations.policies.codebooks.slopes import Slope


def plain_slope(function, x):
    at = x.clone().requires_grad_()
    return torch.autograd.grad(function(at).sum(), at)[0]


def every_table(function, domain, weight, pieces, points=26):
    """The least error of any boundaries on a grid, by trying all: sums over 64 midpoints between neighbours."""
    low, high = domain
    edges = torch.linspace(low, high, points + 1, dtype=torch.float64)
    x = (edges[:-1, None] + (edges[1:] - edges[:-1])[:, None] * (torch.arange(64) + 0.5) / 64).flatten()
    mass, slope = weight(x) * (high - low) / len(x), plain_slope(function, x)
    best = math.inf
    for cuts in itertools.combinations(range(1, points), pieces - 1):
        error = 0.0
        for a, b in itertools.pairwise((0, *cuts, points)):
            w, s = mass[64 * a : 64 * b], slope[64 * a : 64 * b]
            error += float((w * (s - (w * s).sum() / w.sum()).square()).sum())
        best = min(best, error)
    return best


@pytest.mark.parametrize("function", [F.gelu, F.selu, torch.sin, lambda x: x * torch.sin(3 * x)])
@pytest.mark.parametrize("domain", [(-3.0, 3.0), (-1.0, 5.0)])
def test_no_boundaries_on_a_coarse_grid_do_better(function, domain):
    """A grid of 26 has fewer boundaries than there are, so its best is no better; the sums are midpoint rules, off by
    less than a thousandth."""
    for pieces, bits in ((2, 1), (4, 2)):
        table = approximate(function, bits, domain=domain)
        grid = every_table(function, domain, torch.ones_like, pieces)
        assert estimate_error(function, table, domain=domain) <= 1.001 * grid


def test_a_weight_of_ones_own_and_one_that_is_zero_in_places():
    def weight(x):
        return torch.where(x.abs() > 1, x.abs() - 1, 0.0)

    table = approximate(torch.tanh, 2, domain=(-3, 4), weight=weight, parity="none")
    grid = every_table(torch.tanh, (-3.0, 4.0), lambda x: weight(x) + 1e-30, 4)
    assert estimate_error(torch.tanh, table, domain=(-3, 4), weight=weight) <= 1.001 * grid
    assert estimate_error("tanh", table, domain=(-3, 4), weight=weight) == pytest.approx(
        estimate_error(torch.tanh, table, domain=(-3, 4), weight=weight)
    )


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "hardtanh", "hardsigmoid", "softshrink", "hardshrink", "relu6"])
def test_steps_are_found_where_the_derivative_is_steps(name):
    table = approximate(name, 2, domain=(-7, 8.1))
    # A boundary is float32's, 1e-6 off at the most, beside a jump of 1.
    assert estimate_error(name, table, domain=(-7, 8.1)) < 1e-5


@pytest.mark.parametrize("domain", [(-10.0, 10.0), (-2.0, 6.0), (1.0, 4.0), (-5.0, -1.0)])
def test_parity_counts_both_sides_of_any_domain(domain):
    """Whatever the domain covers of each half line, steps of ``|x|`` are no worse than those of ``x`` at two bits less
    where both sides count, or at as many where one does."""
    for bits in (2, 4):
        even = approximate("sigmoid", bits, domain=domain)
        assert even.even
        assert all(boundary >= 0 for boundary in even.boundaries)
        error = estimate_error("sigmoid", even, domain=domain)
        one_sided = domain[0] >= 0 or domain[1] <= 0
        whole = approximate("sigmoid", bits, domain=domain, parity="none")
        assert error <= estimate_error("sigmoid", whole, domain=domain) * (1 + 1e-4 if one_sided else 1.0)


def test_parity_of_a_users_function():
    table = approximate(lambda x: x**3, 3, parity="even", domain=(-2, 2))
    assert table.even
    assert not approximate(lambda x: x**3, 3, domain=(-2, 2)).even
    with pytest.raises(ValueError, match=r'parity must be "even" for even derivatives only, but that of gelu is'):
        approximate(F.gelu, 3, parity="even")
    with pytest.raises(ValueError, match='parity must be "even", "none" or None, got \'odd\''):
        approximate("gelu", 3, parity="odd")


def fast_wave(x):
    return torch.sin(20 * x)


def chirp(x):
    return torch.sin(3 * x * x)


@pytest.mark.parametrize("function", ["gelu", "selu", "hardswish", fast_wave, chirp])
def test_refinement_never_makes_it_worse(function):
    """Not where it cannot know better, either: the waves are shorter than the 40 cells that errors are summed over."""
    objective = Objective(Slope(function), (-10.0, 10.0), "uniform")
    edges = objective.cells(40)
    draw = torch.Generator().manual_seed(0)
    for pieces in (2, 4, 16):
        for _ in range(2):
            inner = edges[1 + torch.randperm(len(edges) - 2, generator=draw)[: pieces - 1]].sort().values
            before = score(objective, edges, inner)[1]
            boundaries, levels, after = refine(objective, edges, inner)
            assert after <= before
            assert (boundaries.diff() >= 0).all()
            assert score(objective, edges, boundaries)[1] == after
            assert len(levels) == pieces


def test_the_result_is_not_tied_to_the_grid():
    """100 cells are as good as 2,000, though the nearest boundaries on the grid itself are 0.4 % worse."""
    fine = estimate_error("gelu", approximate("gelu", 4))
    coarse = estimate_error("gelu", approximate("gelu", 4, cells=100))
    objective = Objective(Slope("gelu"), (-10.0, 10.0), "uniform")
    edges = objective.cells(100)
    boundaries = torch.tensor(approximate("gelu", 4).boundaries, dtype=torch.float64)
    nearest = edges[(edges[:, None] - boundaries).abs().argmin(dim=0)].unique()
    assert coarse <= 1.001 * fine
    assert score(objective, edges, nearest)[1] > 1.003 * fine


def test_widths_share_a_run():
    slope = Slope("silu")
    assert fit_tables(slope, (2, 8)) == [approximate("silu", 1), approximate("silu", 3)]


def test_fewer_cells_than_levels_give_a_smaller_table():
    table = approximate("gelu", 8, cells=10)
    assert 2 <= len(table.levels) <= 12


def test_a_derivative_of_ones_own():
    """Where autograd has none: a straight-through rounding with the slope of a sine."""
    table = approximate(torch.round, 3, derivative=torch.cos, domain=(-6, 6))
    assert table == approximate(torch.sin, 3, domain=(-6, 6))
    with pytest.raises(ValueError, match="returns a tensor without history; give derivative="):
        approximate(lambda x: x.detach().round(), 3)


def test_surroundings_do_not_matter():
    expected = approximate("mish", 2)
    with torch.no_grad():
        assert approximate("mish", 2) == expected
    with torch.inference_mode():
        assert approximate("mish", 2) == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert approximate("mish", 2) == expected
    assert approximate(lambda x: F.mish(x, inplace=True), 2) == expected
    half = approximate(lambda x: F.mish(x.float()), 2)  # a function that computes in float32
    assert estimate_error("mish", half) == pytest.approx(estimate_error("mish", expected), rel=1e-5)


@pytest.mark.parametrize("name", ["gelu", "tanh", "hardswish"])
@pytest.mark.parametrize("weight", ["uniform", "normal"])
def test_codebooks_add_little_variance_and_less_with_every_bit(name, weight):
    found = [approximate(name, bits, rounding="stochastic", weight=weight) for bits in range(1, 9)]
    errors = [estimate_error(name, table, weight=weight) for table in found]
    assert all(isinstance(table, LevelTable) and table.bits == bits for bits, table in enumerate(found, start=1))
    assert all(3 * fine < coarse for coarse, fine in itertools.pairwise(errors))
    for bits, error in enumerate(errors, start=1):
        low, high = found[0].levels
        even = LevelTable(tuple(low + (high - low) * i / (2**bits - 1) for i in range(2**bits)))
        assert error <= estimate_error(name, even, weight=weight) * (1 + 1e-9)


def test_a_codebooks_estimate_is_what_rounding_does():
    table = approximate("gelu", 2, rounding="stochastic", domain=(-3, 3))
    x = (torch.arange(60_000, dtype=torch.float64) + 0.5) / 10_000 - 3
    slope = plain_slope(F.gelu, x)
    levels = torch.tensor(table.levels, dtype=torch.float64)
    above = torch.searchsorted(levels, slope.clamp(levels[0], levels[-1]), right=True).clamp(1, 3)
    low, high = levels[above - 1], levels[above]
    up = torch.rand(len(x), generator=torch.Generator().manual_seed(0), dtype=torch.float64) < (slope - low) / (
        high - low
    )
    rounded = torch.where(up, high, low)
    errors = (rounded - slope).square() * 1e-4
    # The mean over 60,000 draws, within 5 standard errors of it.
    assert abs(errors.sum() - estimate_error("gelu", table, domain=(-3, 3))) < 5 * errors.std() * math.sqrt(len(x))
    bias = (rounded - slope).mean()
    assert abs(bias) < 5 * (rounded - slope).std() / math.sqrt(len(x))


def test_a_constant_derivative():
    assert approximate(lambda x: 3 * x, 2, rounding="stochastic") == LevelTable((3.0, 3.0))
    assert approximate(lambda x: 3 * x, 2).levels == pytest.approx([3.0] * 4)


REFUSED = [
    ("softmax", lambda x: F.softmax(x, 0), "the value of .* depends on the elements beside it"),
    ("cumsum", lambda x: x.cumsum(0), "depends on the elements beside it"),
    ("mean", lambda x: x - x.mean(), "depends on the elements beside it"),
    ("greatest", lambda x: x - x.max(), "depends on the elements beside it"),
    ("reverse", lambda x: x.flip(0), "depends on the elements beside it"),
    ("any", lambda x: x * (x > 0).any(), "depends on the elements beside it"),
    ("how many", lambda x: x / x.numel(), "depends on the elements beside it"),
    ("spread", lambda x: torch.sin(x) / x.std(), "depends on the elements beside it"),
    ("dropout", F.dropout, "changes from call to call"),
    (
        "sum",
        torch.sum,
        r"function must map a tensor to one of its shape, element by element, but sum makes shape \(\) of",
    ),
    ("not a tensor", lambda x: 3, "makes int of shape"),
    ("no gradient", torch.sign, None),
    ("whole numbers", lambda x: x.long(), "must return floating-point numbers, but .* returns torch.int64"),
    ("nan", torch.log, r"derivative of log must be finite on the domain, got .* at x=-10"),
    ("a pole", lambda x: x.abs().sqrt(), "must be finite on the domain, got .* at x=0;"),
]


@pytest.mark.parametrize(("function", "text"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_is_no_scalar_function_with_a_derivative(function, text):
    if text is None:  # torch says that it is 0 everywhere
        assert set(approximate(function, 1).levels) == {0.0}
        return
    with pytest.raises(ValueError, match=text):
        approximate(function, 3)


def test_a_derivative_is_of_each_element_too():
    with pytest.raises(ValueError, match="derivative must map each element by itself"):
        approximate("gelu", 2, derivative=lambda x: x / x.abs().max())


@pytest.mark.parametrize("function", [torch.log, lambda x: torch.lgamma(x.float()), lambda x: (x > 5) * torch.exp(x)])
def test_functions_of_each_element_are_taken(function):
    """With NaN where the function has no value, float32 inside, or values of very different sizes."""
    Slope(function).require_elementwise(torch.linspace(-10, 10, 2001, dtype=torch.float64))


BAD = [
    (ValueError, "function must be one of relu, ", {"function": "gelo"}),
    (TypeError, "function must be a name of FUNCTIONS or a torch function, got 3", {"function": 3}),
    (TypeError, "derivative must be a torch function, got 3", {"derivative": 3}),
    (ValueError, "bits must be from 1 to 8, got 0", {"bits": 0}),
    (TypeError, "bits must be an int, got 2.5", {"bits": 2.5}),
    (ValueError, "domain must be two finite numbers that ascend, got (1, 1)", {"domain": (1, 1)}),
    (ValueError, "domain must be two finite numbers that ascend, got (0, inf)", {"domain": (0, math.inf)}),
    (ValueError, "domain must be two finite numbers that ascend, got 3", {"domain": 3}),
    (ValueError, "domain must be two finite numbers that ascend, got ('a', 'b')", {"domain": ("a", "b")}),
    (ValueError, "domain must be two finite numbers that ascend, got (1, 2, 3)", {"domain": (1, 2, 3)}),
    (TypeError, "function must be a torch function of a tensor, such as torch.sin, but sin ", {"function": math.sin}),
    (TypeError, "parameters must be a sequence of numbers, such as (2.0,), got 2.0", {"parameters": 2.0}),
    (ValueError, "weight must be 'uniform' or 'normal', or a torch function of x, got 'flat'", {"weight": "flat"}),
    (ValueError, "weight must be finite and not negative, got -10.0 at x=-10", {"weight": lambda x: x}),
    (ValueError, "weight must be above 0 somewhere in the domain, got 0 everywhere", {"weight": torch.zeros_like}),
    (ValueError, "weight must map a tensor to one of its shape", {"weight": torch.sum}),
    (ValueError, 'rounding must be "nearest" or "stochastic", got \'up\'', {"rounding": "up"}),
    (ValueError, "cells must be from 2 to 32000, got 1", {"cells": 1}),
    (TypeError, "cells must be an int, got 10.0", {"cells": 10.0}),
    (ValueError, "parameters of gelu must be 0 numbers (it has none), got 1", {"parameters": (1.0,)}),
]


@pytest.mark.parametrize(("error", "text", "change"), BAD)
def test_wrong_arguments(error, text, change):
    with pytest.raises(error) as raised:
        approximate(**{"function": "gelu", "bits": 3, **change})
    assert text in str(raised.value)


def test_an_error_is_of_a_table():
    with pytest.raises(TypeError, match="table must be a StepTable or a LevelTable, got 3"):
        estimate_error("gelu", 3)
    assert estimate_error("gelu", StepTable((), (0.5,)), domain=(-1, 1)) > 0
    assert FUNCTIONS["gelu"].even is False


@pytest.mark.parametrize(
    ("levels", "text"),
    [
        ((1.0,), "levels must be 2 to 256"),
        ((1.0, math.nan), "finite"),
        ((1.0, 0.0), "levels must ascend"),
    ],
)
def test_what_no_codebook_is(levels, text):
    with pytest.raises(ValueError, match=text):
        LevelTable(levels)


def test_hooks_on_saved_tensors_do_not_reach_a_fit():
    def wave(x):
        return x * torch.sin(x)

    expected = approximate(wave, 2)
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved, torch.zeros_like):
        assert approximate(wave, 2) == expected


@pytest.mark.parametrize("parity", ["even", "odd"])
def test_random_rounding_takes_no_parity(parity):
    with pytest.raises(ValueError, match="parity"):
        approximate("tanh", 2, parity=parity, rounding="stochastic")


@pytest.mark.parametrize(("boundaries", "levels"), [("ab", (1.0, 2.0, 3.0)), ((0.0,), 3.0), (("x",), (0.0, 1.0))])
def test_tables_are_of_numbers(boundaries, levels):
    with pytest.raises(TypeError, match="must be a tuple of numbers, got"):
        StepTable(boundaries, levels)


def test_a_function_of_arrays_is_refused():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match="function must be a torch function of a tensor, such as"):
        approximate(numpy.sin, 3)


def test_tables_of_lists_are_those_of_tuples():
    assert StepTable([0], [0, 1]) == StepTable((0.0,), (0.0, 1.0))
    assert hash(StepTable([0], [0, 1])) == hash(StepTable((0.0,), (0.0, 1.0)))
    assert hash(LevelTable([0, 1])) == hash(LevelTable((0.0, 1.0)))
