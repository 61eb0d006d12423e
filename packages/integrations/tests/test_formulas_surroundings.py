"""Formulas where something comes between: other precision, changes in place, exposed memory, retained graphs."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import integrations
from integrations.runtime import replay
from integrations.runtime.formulas.formula import Bound, There
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
        h, torch.ones(FEATURES), torch.zeros(FEATURES), None, None, True, 0.1, 1e-5, False
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
    there = [one for found in made if found is not None for one in found.operands() if isinstance(one, There)]
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


def test_a_retained_graph_gives_the_same_gradient_twice():
    net = Between(F.silu)
    x = inputs(net)
    model = integrations.compress_model(net, "L1", recompute=True)
    told, output = model(x)
    total = told.sum() + output.square().sum()
    first = torch.autograd.grad(total, net.after.weight, retain_graph=True)[0]
    again = torch.autograd.grad(total, net.after.weight)[0]
    assert torch.equal(first, again)


def test_readers_that_follow_each_other_share_a_result(monkeypatch):
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64, FEATURES))
            self.heads = nn.ModuleList(nn.Linear(FEATURES, 8) for _ in range(3))

        def forward(self, x):
            h = x * 1.0
            y = F.silu(h * self.scale)
            return sum(head(y).sum() for head in self.heads)

    computed = []
    compute = Bound.compute
    monkeypatch.setattr(Bound, "compute", lambda self: computed.append(self) or compute(self))
    model = integrations.compress_model(Heads(), "L1", recompute=True)
    model(torch.randn(64, FEATURES, requires_grad=True)).backward()
    assert [one.formula.name for one in computed].count("silu") == 1
    assert computed[0].lent is None  # the last one has read it


def test_a_weight_that_was_changed_since_is_refused_as_torch_does():
    norm = nn.LayerNorm(FEATURES)
    net = Between(norm)
    model = integrations.compress_model(net, "L1", recompute=True)
    told, output = model(inputs(net))
    with torch.no_grad():
        norm.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (told.sum() + output.sum()).backward()


def test_a_source_that_backward_has_freed_is_none():
    """Inside of a block backward may run while the forward goes on."""
    net = Between(F.relu)
    x = inputs(net)
    with integrations.compress(net, level="L1", recompute=True) as handle:
        h = net.before(x)
        (h * net.scale).sum().backward(retain_graph=False)
        net.after(F.relu(h.detach())).sum().backward()
    rows = [row for row in handle.report().rows if row.module == "after" and not row.owner]
    assert [row.codec.partition("(")[0] for row in rows] == ["GroupAffine"]


def test_with_and_without_replay(monkeypatch):
    found = []
    for off in (False, True):
        monkeypatch.setattr(replay, "FORCED_OFF", off)
        net = Between(lambda h: F.silu(h) * h)
        found.append(step(net, inputs(net))[:2])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_checkpoints_around_and_inside():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(Between(F.silu, features=FEATURES) for _ in range(2))

        def forward(self, x):
            told, y = self.blocks[0](F.silu(x * self.blocks[1].scale))
            inner = checkpoint(self.blocks[1], F.silu(x), use_reentrant=False)
            return told.sum() + y.sum() + sum(one.sum() for one in inner)

    model, x = Nested(), torch.randn(64, FEATURES, requires_grad=True)
    model(x).backward()
    exact = [one.grad.clone() for one in model.parameters()]
    integrations.compress_model(model, "L1.1", recompute=True)
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
    for one, other in zip(model.parameters(), exact, strict=True):
        assert (one.grad - other).norm() <= 0.02 * other.norm()


def test_a_block_stores_one_tensor_of_four():
    """At L1 silu's input, which is clamped, its result and the product's other factor have 8 bits, and the product has
    4, but for the last one; with formulas the first has 8."""

    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(6))

        def forward(self, x):
            for layer in self.layers:
                h = layer(x)
                x = F.silu(h) * h
            return x.sum()

    found = {}
    for recompute in (False, True):
        model = integrations.compress_model(Tower(), "L1", recompute=recompute)
        x = torch.randn(512, 256)
        model(x).backward()
        report = integrations.compression(model).report()
        found[recompute] = report.stored_bytes
    assert found[True] == pytest.approx(found[False] * 8 * 6 / (24 * 6 + 4 * 5), rel=0.02)


def test_a_level_that_gives_each_tensor_its_bits_has_none():
    for level in ("L2", "L0"):
        with pytest.raises(ValueError, match="recompute must be False at a level that"):
            integrations.compress_model(nn.Linear(2, 2), level, recompute=True)
    with pytest.raises(TypeError, match="recompute must be True or False, got 1"):
        integrations.compress_model(nn.Linear(2, 2), "L1", recompute=1)


def test_a_plan_says_itself_what_is_recomputed():
    net = Between(F.silu)
    x = inputs(net)
    exact = copy.deepcopy(net)
    told, output = exact(x)
    (told.sum() + output.sum()).backward()
    model = integrations.compress_model(net, "lean", memory="10MiB")
    for _ in range(2):
        model.zero_grad()
        told, output = model(x)
        (told.sum() + output.sum()).backward()
    rows = integrations.compression(model).report().rows
    assert not any(row.why.startswith("recomputed by") for row in rows)
    found = net.after.weight.grad
    assert (found - exact.after.weight.grad).norm() <= 0.2 * exact.after.weight.grad.norm()


def test_compiled_code_stores_by_the_level_alone():
    net = Between(F.silu)
    x = inputs(net)
    model = integrations.compress_model(net, "L1", recompute=True)
    compiled = torch.compile(model, backend="aot_eager")
    told, output = compiled(x)
    torch.autograd.backward([told, output], [torch.ones_like(told), torch.ones_like(output)])
    wanted = expected(torch.ones_like(output), F.silu(net.before(x).detach()))
    assert (net.after.weight.grad - wanted).norm() <= 0.2 * wanted.norm()


def test_a_forecast_has_the_same_rows():
    net = Between(lambda h: F.silu(h) * h)
    x = inputs(net)
    foreseen = integrations.forecast(net, (x,), level="lean").rows
    model = integrations.compress_model(net, "lean")
    model(x)
    rows = integrations.compression(model).report().rows
    assert [(one.operator, one.codec, one.stored_bytes) for one in foreseen] == [
        (one.operator, one.codec, one.stored_bytes) for one in rows
    ]
    assert "recomputed" in {one.codec for one in rows}


def test_close_tells_another_function():
    """The comparison of these tests fails for a formula that is slightly wrong."""
    net = Between(F.silu)
    h, found, gradient, _ = step(net, inputs(net))
    assert close(found, expected(gradient, F.silu(h)))
    assert not close(found, expected(gradient, F.silu(h * 1.0001)))


def test_what_was_of_no_use_is_not_noted_again_until_it_is(monkeypatch):
    """Results that nobody saves are most of a forward's. A part that is unfrozen later has formulas soon."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(64, FEATURES))
            self.last = nn.Linear(FEATURES, 8).requires_grad_(False)

        def forward(self, x):
            h = x * self.scale + 0 * x
            return self.last(F.silu(h) + 1).sum() + h.neg().sum()

    made = []
    formula = Formulas._formula
    monkeypatch.setattr(Formulas, "_formula", lambda self, *given: made.append(given[-2]) or formula(self, *given))
    model = integrations.compress_model(Late(), "L1", recompute=True)
    x = torch.randn(64, FEATURES, requires_grad=True)

    def names():
        made.clear()
        model(x).backward()
        return made.copy()

    assert len(names()) > 4
    assert names() == names()
    assert not {"add", "neg"} & set(names())
    model.last.requires_grad_()
    codecs = []
    for _ in range(20):
        names()
        rows = integrations.compression(model).report().rows
        codecs += [row.codec for row in rows if row.module == "last" and row.role == "input" and not row.owner]
    assert codecs[0].startswith("GroupAffine")
    assert codecs[-1] == "recomputed"
