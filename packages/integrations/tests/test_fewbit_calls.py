"""Calls of activation functions in a converted model's forward: which are exchanged, for what, and which are not."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from integrations import fewbit
from integrations.fewbit import functional
from integrations.fewbit.forward import FewBitForward

from .fewbit_nets import Block, Net, X, equal, step
from .nets import normal


class Calling(nn.Module):
    """A linear layer and a function behind it."""

    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(32, 32)
        self.function = function

    def forward(self, x):
        return self.function(self.linear(x))


# A call, and what it is to be the same as.
CALLS = {
    "F.gelu": (F.gelu, lambda x: functional.gelu(x, bits=3)),
    "F.gelu, tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: functional.gelu(x, "tanh", bits=3)),
    "F.silu": (F.silu, lambda x: functional.silu(x, bits=3)),
    "F.silu, in place": (lambda x: F.silu(x, inplace=True), lambda x: functional.silu(x, bits=3)),
    "F.mish": (F.mish, lambda x: functional.mish(x, bits=3)),
    "F.elu, alpha": (lambda x: F.elu(x, 0.5), lambda x: functional.elu(x, 0.5, bits=3)),
    "torch.celu": (torch.celu, lambda x: functional.celu(x, bits=3)),
    "torch.selu": (torch.selu, lambda x: functional.selu(x, bits=3)),
    "F.softplus, beta": (lambda x: F.softplus(x, beta=2), lambda x: functional.softplus(x, 2, bits=3)),
    "F.logsigmoid": (F.logsigmoid, lambda x: functional.logsigmoid(x, bits=3)),
    "F.softsign": (F.softsign, lambda x: functional.softsign(x, bits=3)),
    "F.tanhshrink": (F.tanhshrink, lambda x: functional.tanhshrink(x, bits=3)),
    "F.hardswish": (F.hardswish, lambda x: functional.hardswish(x, bits=3)),
    "torch.sigmoid": (torch.sigmoid, lambda x: functional.sigmoid(x, bits=3)),
    "torch.sigmoid, by name": (lambda x: torch.sigmoid(input=x), lambda x: functional.sigmoid(x, bits=3)),
    "x.sigmoid": (lambda x: x.sigmoid(), lambda x: functional.sigmoid(x, bits=3)),
    "torch.special.expit": (torch.special.expit, lambda x: functional.sigmoid(x, bits=3)),
    "torch.tanh": (torch.tanh, lambda x: functional.tanh(x, bits=3)),
    "x.tanh": (lambda x: x.tanh(), lambda x: functional.tanh(x, bits=3)),
    "F.relu": (F.relu, functional.relu),
    "F.relu, in place": (lambda x: F.relu(x, inplace=True), functional.relu),
    "x.relu_": (lambda x: x.relu_(), functional.relu),
    "torch.relu": (torch.relu, functional.relu),
    "F.leaky_relu": (lambda x: F.leaky_relu(x, 0.2), lambda x: functional.leaky_relu(x, 0.2)),
    "F.hardtanh_": (lambda x: F.hardtanh_(x, 0, 1), lambda x: functional.hardtanh(x, 0, 1)),
    "torch.threshold": (lambda x: torch.threshold(x, 0.1, 2), lambda x: functional.threshold(x, 0.1, 2)),
    "x.hardshrink": (lambda x: x.hardshrink(), lambda x: functional.hardshrink(x)),
    "F.relu6": (F.relu6, functional.relu6),
    "F.hardsigmoid": (F.hardsigmoid, functional.hardsigmoid),
    "F.softshrink": (F.softshrink, functional.softshrink),
}


def names_of_nodes(output):
    """Of all that autograd recorded."""
    found, todo = set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None:
            found.add(node.name())
            todo += [other for other, _ in node.next_functions]
    return found


@pytest.mark.parametrize(("call", "expected"), CALLS.values(), ids=CALLS.keys())
def test_a_call_is_that_of_fewbit(call, expected):
    model, by_hand, plain = Calling(call), Calling(expected), Calling(call)
    fewbit.convert(model, functions="all")
    found = step(model)
    assert equal(found, step(by_hand))
    assert torch.equal(found[0], step(plain)[0])
    in_place = {"_PlacedCopyBackward"}
    assert names_of_nodes(model(X)) - in_place == names_of_nodes(by_hand(X)) != names_of_nodes(plain(X))


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_settings_reach_calls_and_layers(rounding):
    settings = {"bits": 2, "rounding": rounding, "weight": "normal"}
    model = fewbit.convert(nn.Sequential(Calling(F.gelu), nn.SiLU()), **settings)
    by_hand = nn.Sequential(Calling(lambda x: functional.gelu(x, **settings)), fewbit.SiLU(**settings))
    torch.manual_seed(0)
    found = step(model)
    torch.manual_seed(0)
    assert equal(found, step(by_hand))


def test_default_functions_are_all_but_those_whose_result_is_saved_anyway():
    gate = Calling(lambda x: torch.sigmoid(x) * x.tanh() + F.gelu(x))
    fewbit.convert(gate)
    nodes = names_of_nodes(gate(X))
    assert {"SigmoidBackward0", "TanhBackward0"} < nodes
    assert "GeluBackward0" not in nodes
    assert fewbit.summary(gate).calls == {"": ("gelu",)}
    assert [text.split(":")[0] for text in fewbit.summary(gate).kept_calls[""]] == ["sigmoid", "tanh"]


def test_functions_choose():
    model = fewbit.convert(Calling(lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x)), functions=["silu"])
    step(model)
    assert fewbit.summary(model).calls == {"": ("silu",)}
    assert fewbit.summary(model).kept_calls == {
        "": ("gelu: gelu is not among functions", "gelu_tanh: gelu_tanh is not among functions")
    }


def test_gelu_means_both_forms():
    model = nn.Sequential(Calling(lambda x: F.gelu(x, approximate="tanh")), nn.GELU("tanh"), nn.GELU(), nn.SiLU())
    fewbit.convert(model, functions="gelu")
    step(model)
    assert list(fewbit.summary(model).converted) == ["1", "2"]
    assert fewbit.summary(model).calls == {"0": ("gelu_tanh",)}
    assert fewbit.summary(model).kept == {"3": "silu is not among functions"}


@pytest.mark.parametrize("mode", ["eval", "no_grad", "inference_mode"])
def test_outside_of_training_nothing_is_exchanged(mode, monkeypatch):
    model = fewbit.convert(Net())
    monkeypatch.setattr(torch.overrides.TorchFunctionMode, "__enter__", lambda self: pytest.fail("a mode is on"))
    if mode == "eval":
        assert names_of_nodes(model.eval()(X)) == names_of_nodes(Net()(X))
        return
    with getattr(torch, mode)():
        assert torch.equal(model(X), Net()(X))


def test_calls_that_need_no_gradient_or_give_out_are_left():
    out = torch.empty(24, 32)

    def function(x):
        with torch.no_grad():
            torch.sigmoid(x, out=out)
        return x * F.gelu(out) * F.gelu(torch.ones(32, dtype=torch.float64)).float()

    model, plain = fewbit.convert(Calling(function), functions="all"), Calling(function)
    assert equal(step(model), step(plain))
    assert not fewbit.summary(model).calls


def test_what_fewbit_itself_calls_is_left():
    """A few-bit layer built by hand in a converted model keeps its own bits."""
    model = nn.Sequential(nn.Linear(32, 32), fewbit.GELU(bits=1), Calling(lambda x: functional.silu(x, bits=2)))
    expected = step(model)
    fewbit.convert(model, bits=5, functions="all")
    assert equal(step(model), expected)
    assert not fewbit.summary(model).calls


def test_other_models_are_left_wherever_they_run():
    class Teaching(nn.Module):
        def __init__(self, converts):
            super().__init__()
            self.student = Calling(F.gelu)
            self.teacher = [Calling(F.gelu)]  # none of its modules
            if converts:
                fewbit.convert(self)

        def forward(self, x):
            own = F.gelu(self.student(x))
            return own * self.teacher[0](x) * torch.func.functional_call(self.teacher[0], {}, (x,))

    model, plain = Teaching(True), Teaching(False)
    found, expected = step(model), step(plain)
    assert torch.equal(found[0], expected[0])
    teacher, untouched = model.teacher[0], plain.teacher[0]
    x = normal(8, 32)
    assert fewbit.summary(model).calls == {"student": ("gelu",), "": ("gelu",)}
    assert equal(step(teacher, x), step(untouched, x))


def test_the_teachers_gradients_inside_of_the_forward_are_exact():
    teacher = Calling(F.gelu)

    def function(x):
        return x.detach() * teacher(X)

    model = fewbit.convert(Calling(function))
    model(X).sum().backward()
    (step_of_teacher := Calling(F.gelu))(X).mul(model.linear(X).detach()).sum().backward()
    assert torch.equal(teacher.linear.weight.grad, step_of_teacher.linear.weight.grad)


def test_another_thread_is_left():
    seen = []
    start, done = threading.Event(), threading.Event()

    def function(x):
        start.set()
        assert done.wait(60)
        return F.gelu(x)

    def other():
        assert start.wait(60)
        seen.append(names_of_nodes(F.gelu(X.clone().requires_grad_())))
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    model = fewbit.convert(Calling(function))
    model(X)
    thread.join()
    assert seen == [{"GeluBackward0", "torch::autograd::AccumulateGrad"}]
    assert fewbit.summary(model).calls == {"": ("gelu",)}


def test_two_threads_share_a_model():
    model = fewbit.convert(Net())
    expected = names_of_nodes(model(X))
    found = []
    threads = [threading.Thread(target=lambda: found.append(names_of_nodes(model(X)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 4


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_on_when_a_forward_fails(error):
    def function(x):
        raise error("stop")

    model = fewbit.convert(Calling(function))
    with pytest.raises(error):
        model(X)
    assert torch.overrides._get_current_function_mode_stack() == []


def test_a_part_that_has_a_conversion_of_its_own_goes_by_that():
    def make():
        return nn.Sequential(Calling(F.gelu), Calling(lambda x: F.gelu(x) + F.silu(x)), Calling(F.gelu))

    model = make()
    fewbit.convert(model[1], bits=1, functions=["silu"])
    fewbit.convert(model, bits=4)
    by_hand = nn.Sequential(
        Calling(lambda x: functional.gelu(x, bits=4)),
        Calling(lambda x: F.gelu(x) + functional.silu(x, bits=1)),
        Calling(lambda x: functional.gelu(x, bits=4)),
    )
    expected = step(by_hand)
    assert equal(step(model), expected)
    fewbit.restore_model(model)
    assert fewbit.summary(model[1]).calls == {"": ("silu",)}
    step(model)
    fewbit.restore_model(model[1])
    assert equal(step(model), step(make()))


@pytest.mark.parametrize("skip", ["blocks.0", "blocks.[0]", ["*ocks.0"]])
def test_skip_leaves_calls_too(skip):
    model = fewbit.convert(Net(), skip=skip)
    step(model)
    found = fewbit.summary(model)
    assert found.calls == {"block": ("gelu",), "": ("softplus",)}
    assert found.kept_calls == {"blocks.0": ("gelu: skipped",)}
    assert found.kept == {"blocks.0.act": "skipped"}
    assert list(found.converted) == ["block.act", "blocks.1"]


def test_a_subclass_of_a_layer_stays_and_its_call_is_converted():
    class Own(nn.GELU):
        pass

    def make(calls):
        return fewbit.convert(nn.Sequential(Own()), bits=1, calls=calls)

    assert equal(step(make(True)), step(fewbit.GELU(bits=1)))
    assert equal(step(make(False)), step(nn.GELU()))
    reason = "Own is a subclass of GELU, and may do something else"
    assert fewbit.summary(make(True)).kept == {"0": f"{reason}; calls that its forward makes are converted"}
    assert fewbit.summary(make(False)).kept == {"0": reason}


def test_keep_takes_classes():
    model = fewbit.convert(Net(), keep=(Block, nn.Mish))
    step(model)
    assert not fewbit.summary(model).converted
    assert fewbit.summary(model).calls == {"": ("softplus",)}


def test_layers_only():
    model = fewbit.convert(Net(), calls=False)
    assert FewBitForward.of(model) is None
    assert "GeluBackward0" in names_of_nodes(model(X))
    assert list(fewbit.summary(model).converted) == ["block.act", "blocks.0.act", "blocks.1"]


def test_under_a_transform_of_functions():
    model, plain = fewbit.convert(Net()), Net()
    by_hand = step(model)
    weights = dict(model.named_parameters())
    probe = normal(*model(X).shape, seed=9)

    def loss(weights, x):
        return (torch.func.functional_call(model, weights, (x,)) * probe).sum()

    found = torch.func.grad(loss)(weights, X)
    for name, expected in zip(found, by_hand[2:], strict=True):
        assert torch.equal(found[name], expected), name
    assert not equal(by_hand, step(plain))


def test_half_precision_and_autocast():
    for dtype in (torch.bfloat16, torch.float64):
        model, plain = fewbit.convert(Net().to(dtype)), Net().to(dtype)
        found, expected = step(model, X.to(dtype)), step(plain, X.to(dtype))
        assert torch.equal(found[0], expected[0])
    model, plain = fewbit.convert(Net()), Net()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(X), plain(X))
        model(X).sum().backward()
    assert model.block.linear.weight.grad.isfinite().all()
