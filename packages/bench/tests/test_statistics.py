import math

import pytest

from bench.results.statistics import UNDECIDED, Difference, paired_difference, spread


def test_against_values_computed_by_hand():
    found = paired_difference([81.0, 83.0, 85.0], [80.0, 81.0, 82.0])  # differences 1, 2, 3: standard deviation 1
    half = 4.302652729911275 / math.sqrt(3)  # Student's t at 97.5 % with 2 degrees of freedom
    assert found.mean == pytest.approx(2.0)
    assert found.low == pytest.approx(2.0 - half)
    assert found.high == pytest.approx(2.0 + half)


def test_pairs_that_differ_alike_have_a_point_for_an_interval():
    assert paired_difference([2.0, 3.0], [1.0, 2.0]) == Difference(1.0, 1.0, 1.0)


def test_one_pair_has_no_interval():
    found = paired_difference([2.0], [1.5])
    assert found == Difference(0.5, None, None)
    assert found.meets(1.0) is None


@pytest.mark.parametrize(
    ("low", "high", "meets"),
    [
        (-1.0, 1.0, True),
        (0.5, 0.9, True),
        (-3.0, 3.0, UNDECIDED),
        (0.9, 2.0, UNDECIDED),
        (1.1, 2.0, False),
        (-2.0, -1.1, False),
        (-2.0, -0.9, UNDECIDED),
    ],
)
def test_an_interval_meets_the_margin_where_it_lies_within(low, high, meets):
    """Where they only overlapped, a claim was reached, the more easily the fewer seeds there were."""
    assert Difference((low + high) / 2, low, high).meets(1.0) is meets


@pytest.mark.parametrize(("values", "references"), [([], []), ([1.0], [1.0, 2.0])])
def test_only_pairs_are_compared(values, references):
    with pytest.raises(ValueError, match="must be equally many, at least 1"):
        paired_difference(values, references)


def test_spread_is_the_sample_standard_deviation():
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(1.0)
    assert spread([1.0]) is None
