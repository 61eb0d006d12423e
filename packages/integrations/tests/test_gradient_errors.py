"""The errors of a plan's gradients, measured beside the training, and the sketches by which they are compared."""

import copy
import math

import pytest
import torch
from torch import nn

import integrations
from integrations.api.error_control.gradient_errors import (
    GradientErrors,
    Sketches,
    TensorError,
    large_parameters,
    measured_errors,
)
from integrations.capture.costs.rates import constant
from integrations.planner.bounds import Bounds
from integrations.planner.plan_with_stores import planned
from integrations.planner.sensitivity.one_step import OneStep, Unmeasured

from .nets import gradients, normal, profiled_bytes
from .rounding_plans import BASE, all_stored, blocks


def squared(output):
    return output.square().mean()


def sketched(tensors, nbytes=1 << 20, parts=1):
    sketches = Sketches([nn.Parameter(torch.empty_like(one)) for one in tensors], nbytes)
    for place, one in enumerate(tensors):
        for _ in range(parts):
            sketches.add(place, one / parts)
    return sketches.found


@pytest.mark.parametrize("kind", ["noise", "one row", "one column"])
def test_a_sketch_has_the_squared_norm_of_the_gradient(kind):
    found = normal(1000, 1234)  # neither a multiple of the buckets nor of a block
    if kind == "one row":
        found[1:] = 0
    elif kind == "one column":
        found[:, 1:] = 0
    [sketch] = sketched([found])
    assert sketch.numel() == 4096
    # Four of the estimate's relative deviations, each sqrt(2 / buckets), or, of n elements alone, sqrt(2 / n) at most.
    share = min(4096, int(found.count_nonzero()))
    assert sketch.square().sum().item() == pytest.approx(found.square().sum().item(), rel=4 * math.sqrt(2 / share))


@pytest.mark.parametrize("kind", ["sums of zero", "rows alike"])
def test_a_sketch_of_few_bytes_has_the_squared_norm_of_rows_as_long_as_its_buckets(kind):
    """A block is a row then. With the same signs in each, sums of zero vanished, and rows alike had their number times
    the squared norm."""
    found = normal(1000, 256)
    found = found - found.mean(0) if kind == "sums of zero" else found[:1].expand(1000, 256)
    [sketch] = sketched([found], nbytes=0)
    assert sketch.numel() == 256
    energy = found.square().sum().item()
    assert sketch.square().sum().item() == pytest.approx(energy, rel=4 * math.sqrt(2 / 256))


def test_sketches_are_sums_of_what_comes_in_parts():
    found = normal(300, 300)
    [whole], [summed] = sketched([found]), sketched([found], parts=3)
    assert torch.allclose(whole, summed, atol=1e-4)


def test_a_small_gradient_is_its_own_sketch():
    found = normal(100)
    assert torch.equal(sketched([found])[0], found)


def test_sketches_have_fewer_buckets_where_bytes_are_few():
    tensors = [normal(100, 100) for _ in range(3)]
    assert {one.numel() for one in sketched(tensors, 3 * 4 * 1024)} == {1024}
    assert {one.numel() for one in sketched(tensors, 0)} == {256}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16, torch.complex64])
def test_sketches_of_other_dtypes(dtype):
    found = normal(100, 100).to(dtype)
    [sketch] = sketched([found])
    energy = found.abs().double().square().sum().item()
    assert sketch.double().square().sum().item() == pytest.approx(energy, rel=4 * math.sqrt(2 / 4096))


def test_a_sparse_gradient_is_sketched():
    layer = nn.Embedding(100, 64, sparse=True)
    layer(torch.tensor([3, 5, 3])).sum().backward()
    sketches = Sketches([layer.weight], 1 << 20)
    sketches.add(0, layer.weight.grad)
    assert sketches.found[0].square().sum().item() == pytest.approx(64 * (4 + 1))


def test_errors_of_tensors_and_of_the_whole():
    found = GradientErrors(
        {"a": TensorError(1.0, 100.0), "b": TensorError(1.0, 4.0), "c": TensorError(9.0, 1.0), "d": TensorError(0, 0)},
        frozenset({"a", "b", "d"}),
    )
    assert found.relative == pytest.approx((11 / 105) ** 0.5)
    assert found.worst == ("b", 0.5)
    assert found.over == found.relative
    assert GradientErrors({"a": TensorError(1.0, 0.0)}, frozenset("a")).over == math.inf


def test_a_large_tensor_has_more_than_a_thousandth_of_the_trained_elements():
    model = nn.Sequential(nn.Linear(100, 100, bias=False), nn.Linear(10, 10), nn.Linear(100, 100).requires_grad_(False))
    assert large_parameters(model) == {"0.weight", "1.weight"} - {"1.bias"}


def test_measuring_takes_no_more_memory_than_the_planned_step():
    """Beside a copy of the input, and sketches, which take a hundredth of the peak, as much again twice while they are
    compared in doubles, and as much while they are made."""
    inner = [layer for _ in range(12) for layer in (nn.GELU(), nn.Linear(256, 256))]
    model, x = nn.Sequential(nn.Linear(16, 256), *inner, nn.Linear(256, 1)), normal(4096, 16)
    plan = planned(model, BASE, (x,), {}, Bounds(error=0.1), loss=squared).within(0.4)
    assert plan.choice.rounds
    measured_errors(model, (x,), {}, plan, squared)  # what is loaded once
    aside = x.nbytes + 4 * plan.peak // 100
    # A plan's peak is counted without the gradients, which a training step leaves.
    step = plan.peak + plan.graph.gradients
    assert profiled_bytes(lambda: measured_errors(model, (x,), {}, plan, squared))[0] <= step + aside


def test_a_plan_that_rounds_nothing_has_no_error():
    """Bit for bit, dropout and statistics included."""
    model, x = blocks(), normal(1024, 64)
    plan = integrations.checkpoint.plan(model, (x,))
    assert plan.segments
    assert measured_errors(model, (x,), {}, plan, squared).relative == 0
    plan = planned(model, BASE, (x,), {})
    assert measured_errors(model, (x,), {}, plan, squared).relative == 0


def test_the_measured_error_is_that_of_the_training_step():
    model, x = blocks(), normal(256, 64)
    plan = all_stored(planned(model, BASE, (x,), {}, Bounds(error=0.1)), 4)
    found = measured_errors(model, (x,), {}, plan, squared).relative
    exact = gradients(copy.deepcopy(model), x)
    integrations.compress_model(model, "L0", checkpoint=plan)
    rounded = gradients(model, x)
    error = sum((rounded[name] - value).square().sum() for name, value in exact.items())
    whole = sum(value.square().sum() for value in exact.values())
    assert found > 0
    # The rounding of two steps is drawn anew: the error is a sum over many thousand elements.
    assert (error / whole).sqrt().item() == pytest.approx(found, rel=0.2)


def test_an_exact_plan_within_the_budget_is_what_others_are_compared_with():
    """Then one draw of noise is measured, and an error that all draws have in common counts."""
    model, x = blocks(), normal(256, 64)
    plan = all_stored(planned(model, BASE, (x,), {}, Bounds(error=0.1)), 4)
    exact = OneStep(model, (x,), {}, squared).gradients()
    energy = sum(one.double().square().sum().item() for one in exact if one is not None)
    for one in (plan, integrations.plan(model, (x,), error=0.1, memory=1.0, loss=squared)):
        found = measured_errors(model, (x,), {}, one, squared)
        # Four times a sketch's relative deviation, sqrt(2 / 256), if one tensor has all of the energy.
        assert sum(part.energy for part in found.tensors.values()) == pytest.approx(energy, rel=0.36)


def test_what_has_no_elements_is_not_measured_and_says_so():
    model, x = blocks(1), normal(32, 64)
    plan = all_stored(planned(model, BASE, (x,), {}, Bounds(error=0.1)), 4)
    with pytest.raises(Unmeasured, match="no data"):
        measured_errors(model, (x.to("meta"),), {}, plan)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.SiLU())]
        self.inner = nn.Sequential(*layers, nn.Linear(64, 1))

    def forward(self, x):
        return self.inner(x).chunk(2)


def test_an_output_that_the_loss_leaves_out_has_no_gradient(monkeypatch):
    """One operator made both outputs, and torch calls the hook of the other with ``None``."""
    monkeypatch.setattr("integrations.planner.plan_with_stores.calibrated", constant)
    torch.manual_seed(0)
    model, x = integrations.compress_model(Halves(), memory="least", error=0.1), normal(512, 64)
    for _ in range(2):
        model(x)[0].square().mean().backward()
    assert integrations.compression(model).plan.choice.rounds
    assert integrations.compression(model).measured.step == 0
