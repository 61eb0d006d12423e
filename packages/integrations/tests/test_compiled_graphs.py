"""A compiled region's gradients are as wrong as those of eager code, for models of all kinds."""

import copy

import pytest
import torch

import integrations

from .graphs import NETS, build
from .nets import EIGHT_BITS, gradients, relative_error, rows
from .regions import X, compiled, make_report, trained, way_compressed_then_compiled

pytestmark = pytest.mark.usefixtures("fresh_compiler")


@pytest.mark.parametrize("name", NETS)
def test_the_error_is_that_of_eager(name):
    """The squared error of the whole gradient, summed over 6 steps. It is a sum over thousands of roundings, each
    independent of the others: one step's lies within a half of its mean, the sum of six within a half over root six,
    a fifth, and a quotient of two such within 1.2 / 0.8. What a region keeps, and eager code rounds (query and key),
    makes it less."""
    model, x = build(name)
    exact = gradients(copy.deepcopy(model), x)
    squares = {}
    for kind in ("eager", "compiled"):
        part = integrations.compress_model(copy.deepcopy(model))
        function = part if kind == "eager" else compiled(part)
        steps = [trained(part, function, x) for _ in range(6)]
        squares[kind] = sum((found[name] - exact[name]).square().sum() for found in steps for name in exact).item()
    assert 0 < squares["compiled"] < 1.5 * squares["eager"]
    if name != "block":
        assert squares["compiled"] > squares["eager"] / 1.5


def test_decomposed_derivatives():
    """Backends take GELU's and the norm's derivative apart, and recompute parts of the forward."""
    model, x = build("block")
    exact = gradients(copy.deepcopy(model), x)
    eager = integrations.compress_model(copy.deepcopy(model))
    errors = [relative_error(exact, trained(eager, eager, x)) for _ in range(4)]
    integrations.compress_model(model)
    found = trained(model, compiled(model, backend="aot_eager_decomp_partition"), x)
    # The largest of an error's 10 parts in one draw, against the largest in four.
    assert 0 < relative_error(exact, found) < 1.5 * max(errors)
    kept = {row.operator for row in rows(model) if row.codec == "kept" and row.stored_bytes > 8192}
    assert all("attention" in operator for operator in kept)
    assert len([row for row in rows(model) if row.codec.startswith("GroupAffine")]) >= 6


def test_inductor():
    model, function = (part := build("gelu")[0]), way_compressed_then_compiled(part, backend="inductor", level="L1.1")
    assert 0 < relative_error(gradients(build("gelu")[0], X), trained(model, function)) < EIGHT_BITS
    assert make_report(model).ratio > 3
    with torch.compiler.set_stance("fail_on_recompile"):
        trained(model, function)
