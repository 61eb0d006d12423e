"""What ``level_codes`` and ``round_to_levels`` refuse."""

import re

import pytest
import torch

import actcore

ops = torch.ops.actcore
LEVELS = (-0.15, 0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.15)
F32, L8 = torch.zeros(100), torch.arange(8.0)
WRONG = [
    ((F32, F32, L8, 9, 0, 0), "bits must be from 1 to 8, got 9"),
    ((F32, F32, L8, 2, 0, 0), "levels must be from 2 to 2**bits = 4, got 8"),
    ((F32, F32, L8[:1], 2, 0, 0), "levels must be from 2 to 2**bits = 4, got 1"),
    ((F32, F32, L8.flip(0), 3, 0, 0), "levels must ascend and be finite; sort them"),
    ((F32, F32, L8 / 0, 3, 0, 0), "levels must ascend and be finite; sort them"),
    ((F32, F32, L8.double(), 3, 0, 0), "levels must be float32 for elements of at most 32 bits"),
    ((F32, F32[:50], L8, 3, 0, 0), "input must have as many elements as derivative, 100, got 50"),
    ((F32, F32.double(), L8, 3, 0, 0), "input must have the dtype of derivative"),
    ((F32[::2], F32[:50], L8, 3, 0, 0), "derivative must be contiguous"),
    ((F32, F32, L8, 3, 0, 0, torch.zeros(2, dtype=torch.int64)), "draw must be one int64, got 2 elements"),
    ((F32, F32, L8, 3, 0, 0, None, "all"), "guard must be 'none', 'nan' or 'nonfinite', got 'all'"),
]


@pytest.mark.parametrize(("arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::level_codes: {text}")):
        ops.level_codes(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        (("nope", LEVELS), {}, ValueError, "function must be one of relu, leaky_relu"),
        (("elu", LEVELS), {"parameters": [1.0, 2.0]}, ValueError, "parameters of elu must be 1 numbers, or none"),
        ((3, LEVELS), {}, TypeError, "function must be a name such as 'gelu', or callable, got 3"),
        (("gelu", LEVELS[::-1]), {}, ValueError, "levels must ascend and be finite; sort them"),
        (("gelu", [0.0]), {}, ValueError, "levels must be 2 to 256 numbers in one dimension, got the shape (1,)"),
        (
            ("gelu", LEVELS),
            {"bits": 2},
            ValueError,
            "levels must have at most 2**bits entries, with bits from 1 to 8",
        ),
        (("gelu", LEVELS), {"bits": 3.0}, TypeError, "bits must be an int or None, got 3.0"),
        (("gelu", LEVELS), {"seed": 1.5}, TypeError, "seed must be an int or None, got 1.5"),
        (("gelu", LEVELS), {"stream": 1.5}, TypeError, "stream must be an int, got 1.5"),
        (("gelu", LEVELS), {"guard": "all"}, ValueError, "guard must be one of 'none', 'nan', 'nonfinite', got 'all'"),
        (("gelu", LEVELS), {"derivative": 1}, TypeError, "derivative must be callable or None, got 1"),
        (("gelu", LEVELS), {"derivative": torch.sum}, ValueError, "derivative must be applied to each element"),
        ((torch.sum, LEVELS), {}, ValueError, "function must be applied to each element and return the shape of x"),
        ((torch.Tensor.relu_, LEVELS), {}, RuntimeError, "in-place operation"),
        ((torch.Tensor.relu_, LEVELS), {"derivative": torch.sign}, ValueError, "function must not change x in place"),
        (("gelu", L8.clone().requires_grad_()), {}, ValueError, "levels must not require gradients"),
    ],
)
def test_wrong_arguments_of_the_function(arguments, options, error, text):
    with pytest.raises(error, match=re.escape(text)):
        actcore.round_to_levels(F32, *arguments, **options)
