"""Wrong arguments of ``allocate`` and ``allocate_bits`` raise, and the text names argument, rule, value and way out."""

import math

import pytest
import torch

from actcore import allocate, allocate_bits

TABLE = {"costs": [[2.0, 1.0], [5.0]], "nbytes": [[1, 2], [3]], "budget": 9}
BITS = {"sensitivities": [2.0, 1.0], "nbytes": [{1: 10, None: 40}, {4: 20}], "budget": 60}

BAD_TABLES = [
    (TypeError, "costs must be a sequence, one entry for each tensor, got 3", {"costs": 3}),
    (TypeError, "nbytes must be a sequence, one entry for each tensor, got None", {"nbytes": None}),
    (
        ValueError,
        "costs and nbytes must have one entry for each tensor, got 1 and 2",
        {"costs": [[1.0, 2.0]]},
    ),
    (TypeError, "costs[1] must be a sequence, one entry for each choice, got 5.0", {"costs": [[2.0, 1.0], 5.0]}),
    (
        ValueError,
        "costs[0] and nbytes[0] must have one entry for each choice, got 2 and 3",
        {"nbytes": [[1, 2, 3], [3]]},
    ),
    (
        ValueError,
        "nbytes[1] must have at least one choice, got none; leave out tensors without choices",
        {"costs": [[2.0, 1.0], []], "nbytes": [[1, 2], []]},
    ),
    (
        TypeError,
        "costs[0][1] must be an int or a float, got '1'; convert tensors with .tolist()",
        {"costs": [[2.0, "1"], [5.0]]},
    ),
    (
        TypeError,
        "costs[0][1] must be an int or a float, got True; convert tensors with .tolist()",
        {"costs": [[2.0, True], [5.0]]},
    ),
    (ValueError, "costs[0][0] must not be negative, got -2.0", {"costs": [[-2.0, 1.0], [5.0]]}),
    (
        ValueError,
        "costs[1][0] must be finite, got nan; leave out what must not be chosen",
        {"costs": [[2.0, 1.0], [math.nan]]},
    ),
    (
        ValueError,
        "costs[1][0] must be finite, got inf; leave out what must not be chosen",
        {"costs": [[2.0, 1.0], [math.inf]]},
    ),
    (
        ValueError,
        "costs must have a finite sum, got numbers up to 1e+308; use a larger unit",
        {"costs": [[1e308, 1.0], [1e308]]},
    ),
    (
        ValueError,
        f"costs[1][0] must be within the range of a float, got {10**400}; use a larger unit",
        {"costs": [[2.0, 1.0], [10**400]]},
    ),
    (TypeError, "nbytes[0][1] must be an int, got 2.0", {"nbytes": [[1, 2.0], [3]]}),
    (TypeError, "nbytes[0][0] must be an int, got True", {"nbytes": [[True, 2], [3]]}),
    (ValueError, "nbytes[1][0] must not be negative, got -3; it is a number of bytes", {"nbytes": [[1, 2], [-3]]}),
    (
        ValueError,
        f"nbytes must add up to less than 2**63 at the largest choices, got {2**63}; use a larger unit",
        {"nbytes": [[1, 2**63 - 3], [3]]},
    ),
    (TypeError, "budget must be an int, got 9.0", {"budget": 9.0}),
    (
        ValueError,
        "budget must be at least 4 bytes, the sum of the smallest choices, got 3; raise it, or allow smaller choices",
        {"budget": 3},
    ),
    (TypeError, "max_steps must be an int, got None", {"max_steps": None}),
    (ValueError, "max_steps must be from 0 to 2**40 - 1, got -1; the default is 4000000", {"max_steps": -1}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), BAD_TABLES, ids=range(len(BAD_TABLES)))
def test_wrong_tables(error, text, arguments):
    with pytest.raises(error) as raised:
        allocate(**(TABLE | arguments))
    assert str(raised.value) == text


BAD_BITS = [
    (TypeError, "sensitivities must be a sequence, one entry for each tensor, got 1.0", {"sensitivities": 1.0}),
    (
        ValueError,
        "sensitivities and nbytes must have one entry for each tensor, got 3 and 2",
        {"sensitivities": [1.0] * 3},
    ),
    (
        TypeError,
        "sensitivities[0] must be an int or a float, got tensor(1.); convert tensors with .tolist()",
        {"sensitivities": [torch.tensor(1.0), 1.0]},
    ),
    (ValueError, "sensitivities[1] must not be negative, got -1e-09", {"sensitivities": [1.0, -1e-9]}),
    (ValueError, "sensitivities[1] must not be negative, got -inf", {"sensitivities": [1.0, -math.inf]}),
    (
        ValueError,
        "sensitivities must have a finite sum, got numbers up to 1e+308; use a larger unit",
        {"sensitivities": [1e308, 1e308]},
    ),
    (
        TypeError,
        "nbytes[1] must map each width to its bytes, such as {2: 100, 4: 200}, got [10, 20]",
        {"nbytes": [{1: 10}, [10, 20]]},
    ),
    (
        ValueError,
        "widths in nbytes[0] must be ints from 1 to 8, or None for kept exactly, got 0",
        {"nbytes": [{0: 10}, {4: 20}]},
    ),
    (
        ValueError,
        "widths in nbytes[0] must be ints from 1 to 8, or None for kept exactly, got 16",
        {"nbytes": [{16: 10}, {4: 20}]},
    ),
    (
        ValueError,
        "widths in nbytes[0] must be ints from 1 to 8, or None for kept exactly, got True",
        {"nbytes": [{True: 10}, {4: 20}]},
    ),
    (
        ValueError,
        "nbytes[1] must have at least one choice, got none; leave out tensors without choices",
        {"nbytes": [{1: 10}, {}]},
    ),
    (TypeError, "nbytes[0][None] must be an int, got 1.5", {"nbytes": [{None: 1.5}, {4: 20}]}),
    (ValueError, "nbytes[0][8] must not be negative, got -1; it is a number of bytes", {"nbytes": [{8: -1}, {4: 20}]}),
    (TypeError, "budget must be an int, got None", {"budget": None}),
    (
        ValueError,
        "budget must be at least 30 bytes, the sum of the smallest choices, got -5; raise it, or allow smaller choices",
        {"budget": -5},
    ),
    (TypeError, "max_steps must be an int, got 1.0", {"max_steps": 1.0}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), BAD_BITS, ids=range(len(BAD_BITS)))
def test_wrong_sensitivities_and_sizes(error, text, arguments):
    with pytest.raises(error) as raised:
        allocate_bits(**(BITS | arguments))
    assert str(raised.value) == text


def test_the_good_twins_of_the_bad_arguments():
    assert allocate(**TABLE).choices == (1, 0)
    assert allocate_bits(**BITS).choices == (None, 4)
