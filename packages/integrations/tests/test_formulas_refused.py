"""What no formula may tell: what was changed or handed out, what is steep or jumps, norms' inputs, casts of others."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.runtime.formulas.formula import There
from integrations.runtime.formulas.table import Formulas

from .formula_nets import FEATURES, Between, close, expected, inputs, step


def changed(h):
    y = F.relu(h)
    with torch.no_grad():
        y[0] = 3.0
    return y


def changed_before(h):
    y = h.clone()
    with torch.no_grad():
        y[0] = 3.0
    return F.relu(y)


def exposed(h):
    y = F.relu(h)
    h.data.mul_(2)  # of which no version tells
    return y + h


def into(h):
    y = torch.empty_like(h)
    with torch.no_grad():
        torch.neg(h, out=y)
    return y + 0 * h


def handed_out(h):
    y = F.relu(h)
    y.data.mul_(2)
    return y


def in_an_array(h):
    y = F.relu(h)
    y.detach().numpy()[:] = 3.0
    return y


def halves(h):
    y = F.relu(h)
    with torch.no_grad():
        torch.unsafe_chunk(y.detach(), 2)[0].zero_()  # each half has a version of its own
    return y


def cast_to_itself(h):
    y = F.relu(h)
    return y.cumsum_(1).to(torch.float32, True)


def partly_in_place(h):
    y = F.silu(h)
    F.relu(y[:32], inplace=True)
    return y


def part_that_is_copied(h):
    y = F.silu(h)
    part = y[32:]
    part.add_(1)
    return torch.cat([y[:32], F.silu(part, inplace=True)])


def of_inference(h):
    with torch.inference_mode():
        table = torch.ones(FEATURES)
    return h + table


OTHERS = {
    "memory that was handed out": handed_out,
    "memory that an array shares": in_an_array,
    "halves": halves,
    "cast to what it is": cast_to_itself,
    "a part changed in place": partly_in_place,
    "an inference tensor": of_inference,
    "torch's own batch norm": lambda h: torch.batch_norm(
        h, torch.ones(FEATURES), torch.zeros(FEATURES), None, None, True, 0.1, 1e-9, False
    ),
    "a floor": lambda h: torch.div(h, 0.5, rounding_mode="floor") + 0 * h,
    "whole numbers": lambda h: h.to(torch.int32).float() + 0 * h,
    "a steep sigmoid": lambda h: torch.sigmoid(100 * h),
    "a steep sigmoid, by a tensor": lambda h: torch.sigmoid(h * torch.full((FEATURES,), 50.0)),
    "a clamp of what is large": lambda h: (h * 30).clamp(-1, 1),
    "changed in place": changed,
    "changed in place before": changed_before,
    "memory that somebody wrote to": exposed,
    "divided by it": lambda h: 1 / (F.softplus(h) + 1),
    "dropped": lambda h: F.dropout(h, 0.5),
    "of an operator that is not cheap": lambda h: h.cumsum(1),
    "a function of torch's own kind": lambda h: torch.nanmean(h, 1, keepdim=True).expand_as(h).contiguous() * 2,
}


@pytest.mark.parametrize("function", OTHERS.values(), ids=OTHERS.keys())
def test_what_a_formula_cannot_tell_is_stored(function):
    net = Between(function)
    *_, row = step(net, inputs(net))
    assert row.codec.startswith("GroupAffine"), row


@pytest.mark.parametrize("function", [partly_in_place, part_that_is_copied], ids=["changed", "copied"])
def test_a_part_of_a_result_that_is_changed(function):
    net = Between(function)
    x = inputs(net)
    h, found, gradient, _ = step(net, x, level="L1.1")
    wanted = expected(gradient, function(h))
    assert (found - wanted).norm() <= 0.02 * wanted.norm()


def test_a_small_tensor_is_as_it_was_when_it_was_read():
    scale = torch.ones(FEATURES)

    def changing(h):
        y = h + scale
        scale.mul_(2)
        return y

    net = Between(changing)
    h, found, gradient, row = step(net, inputs(net))
    assert row.codec == "recomputed"
    assert close(found, expected(gradient, h + scale / 2))


def test_running_statistics_that_move_later_do_not_matter():
    norm = nn.BatchNorm1d(FEATURES)

    def both(h):
        y = norm.eval()(h)
        norm.train()(h)  # which moves the running statistics, and no version tells
        return y

    net = Between(both)
    mean, variance = torch.zeros(FEATURES), torch.ones(FEATURES)
    for _ in range(3):
        mean, variance = norm.running_mean.clone(), norm.running_var.clone()
        h, found, gradient, row = step(net, inputs(net), steps=1)
    assert row.codec == "recomputed"
    wanted = expected(gradient, F.batch_norm(h, mean, variance, norm.weight, norm.bias, False, 0.0, norm.eps))
    assert (found - wanted).norm() <= 1e-5 * wanted.norm()


def test_what_a_norm_reads_shares_its_groups_with_nobody():
    """Stored for a product, channels of a thousandth of the others' size share groups with them."""
    norm = nn.BatchNorm1d(FEATURES)
    net = Between(lambda h: norm(h * 0.5))
    model = integrations.compress_model(net, "L1.1", recompute=True)
    told, output = model(inputs(net))
    (told.sum() + output.sum()).backward()
    rows = integrations.compression(model).report().rows
    [row] = [row for row in rows if row.operator == "batch_norm" and row.role == "input"]
    assert row.codec.endswith("standardised")


def test_on_which_side_of_a_jump_an_element_is_stays_exact():
    net = Between(lambda h: F.hardswish(h * 0.5 + 1))
    model = integrations.compress_model(net, "L1", recompute=True)
    told, output = model(inputs(net))
    (told.sum() + output.sum()).backward()
    rows = integrations.compression(model).report().rows
    assert [row.codec == "recomputed" for row in rows if row.operator == "hardswish"] == [False]


def test_the_cast_of_a_parameter_is_not_taken_for_that_of_an_activation():
    """A product of two tensors of equal size, one of them a parameter that is not the model's."""
    other = nn.Parameter(torch.randn(64, 64) / 8)

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.norm = nn.LayerNorm(64)

        def forward(self, x):
            return torch.mm(self.norm(x * 1.0), other)

    model, x = Product(), torch.randn(64, 64, requires_grad=True)

    def grads():
        x.grad = other.grad = None
        with torch.autocast("cpu", torch.bfloat16):
            model(x).float().square().sum().backward()
        return x.grad.clone(), other.grad.clone()

    exact = grads()
    integrations.compress_model(model, "L1.1", recompute=True)
    for one, found in zip(exact, grads(), strict=True):
        assert (found - one).norm() <= 0.03 * one.norm()


def test_a_formula_holds_no_history(monkeypatch):
    """A small tensor that is read is copied: what it was made of would stay as long as the forward."""
    made = []
    formula = Formulas._formula
    monkeypatch.setattr(Formulas, "_formula", lambda self, *given: made.append(formula(self, *given)) or made[-1])
    net = Between(lambda h: F.relu(h) - h.mean())
    step(net, inputs(net))
    there = [one for found in made if found is not None for one in found.operands if isinstance(one, There)]
    assert there
    assert not any(one.kept.tensor.requires_grad for one in there)


def test_a_model_without_memory():
    net = Between(F.silu).to("meta")
    model = integrations.compress_model(net, "lean")
    told, output = model(torch.empty(64, FEATURES, device="meta"))
    (told.sum() + output.sum()).backward()


def test_a_result_that_is_given_is_not_taken_for_new():
    net = Between(into)
    x = inputs(net)
    model = integrations.compress_model(net, "L1.1", recompute=True)
    told, output = model(x)
    torch.autograd.backward([told, output], [torch.ones_like(told), torch.ones_like(output)])
    wanted = expected(torch.ones_like(output), -net.before(x).detach())
    assert (net.after.weight.grad - wanted).norm() <= 0.02 * wanted.norm()


def test_what_is_stored_in_fewer_bits_than_are_asked_for_is_no_source():
    """A linear layer stores its input in 4 bits, from which a product's factor of 8 bits cannot be made."""

    class Later(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.scale = nn.Linear(FEATURES, 8), nn.Parameter(torch.ones(64, FEATURES))

        def forward(self, x):
            h = x * 1.0
            return self.first(h).sum() + (F.relu(h) * self.scale).sum()

    model = integrations.compress_model(Later(), "L1", recompute=True)
    model(torch.randn(64, FEATURES, requires_grad=True)).backward()
    rows = integrations.compression(model).report().rows
    assert [row.codec.partition(",")[0] for row in rows if row.operator == "mul" and not row.owner] == [
        "GroupAffine(bits=8"
    ]


def test_a_factor_without_a_gradient_has_eight_bits():
    """As the angles have by which queries and keys are rotated, in all layers."""
    angles = torch.linspace(0, 3, 64 * FEATURES).view(64, FEATURES)
    net = Between(lambda h: h * (angles * 1.0).cos())
    model = integrations.compress_model(net, "lean")
    told, output = model(inputs(net))
    (told.sum() + output.sum()).backward()
    rows = integrations.compression(model).report().rows
    factors = [row.codec[:18] for row in rows if row.operator == "mul" and row.role == "other" and not row.owner]
    assert factors == ["GroupAffine(bits=8"]
