"""What the tests of few-bit activations share: inputs at the places where derivatives jump, and what autograd saves."""

import math

import torch

from integrations import fewbit

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
PARAMETERS = {
    "leaky_relu": [(), (0.3,), (-0.5,)],
    "threshold": [(0.3, 0.7), (-0.3, 0.7), (0.0, 0.0)],
    "hardtanh": [(), (0.3, 0.7), (-0.7, -0.3), (-0.1, math.inf), (0.5, 0.5)],
    "hardshrink": [(), (0.3,), (0.7,)],
    "softshrink": [(), (0.1,), (0.7,)],
}
PIECEWISE = [
    (name, parameters)
    for name, function in fewbit.FUNCTIONS.items()
    if function.piecewise
    for parameters in PARAMETERS.get(name, [()])
]
SMOOTH = [name for name, function in fewbit.FUNCTIONS.items() if not function.piecewise]
STRETCH = 1024
"""Elements that share a guard byte."""


def name_of(value):
    return str(value).removeprefix("torch.")


def few_bits(name):
    """``(x, *parameters, **options)`` of a function of the catalogue."""
    if name == "gelu_tanh":
        return lambda x, **options: fewbit.functional.gelu(x, approximate="tanh", **options)
    return getattr(fewbit.functional, name)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def at_the_borders(dtype):
    """Each place where some piecewise function bends, the two numbers on either side of it, infinities, zeros."""
    places = [0.0, 0.1, 0.3, 0.5, 0.7, 1.0, 3.0, 6.0]
    below = above = torch.tensor(places + [-place for place in places], dtype=torch.float64).to(dtype)
    found, infinity = [below], torch.full_like(below, math.inf)
    for _ in range(2):
        below, above = torch.nextafter(below, -infinity), torch.nextafter(above, infinity)
        found += [below, above]
    found.append(torch.tensor([math.inf, -math.inf, -0.0], dtype=dtype))
    return torch.cat([*found, 2 * normal(200, dtype=dtype)])


def same_bits(a, b):
    """Zeros of different signs are different, NaNs are equal."""
    return (
        a.dtype == b.dtype
        and torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0))
        and torch.equal(a.isnan() | ~a.signbit(), b.isnan() | ~b.signbit())
    )


def get_gradient(function, x, gradient):
    """The output, and the gradient of the input."""
    at = x.detach().clone().requires_grad_()
    output = function(at)
    return output.detach(), torch.autograd.grad(output, at, gradient)[0]


def saved_by(function, *inputs):
    """Each tensor that autograd saves, without those that have no memory of their own."""
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        function(*(x.detach().clone().requires_grad_() for x in inputs))
    return [tensor for tensor in saved if tensor.untyped_storage().nbytes() >= tensor.nbytes]


def code_bytes(function, *inputs):
    """Bytes of codes that are saved, with nothing beside them but a table's few numbers."""
    saved = saved_by(function, *inputs)
    assert all(tensor.dtype == torch.uint8 or tensor.numel() <= 256 < inputs[0].numel() for tensor in saved)
    return sum(tensor.nbytes for tensor in saved if tensor.dtype == torch.uint8)
