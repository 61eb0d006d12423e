"""Compression that has no effect says so: a warning once, an error with ``strict=True``, each with the reasons."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .nets import Net, assert_nothing_active, gradients, mlp, normal

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8


def cosh_net():
    """What its forward saves has no rule."""
    return Net(lambda self, x: F.linear(x, self.w).cosh(), w=W)


def messages(model, *inputs):
    """What one training step warns of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradients(model, *inputs)
    return [str(found.message) for found in caught]


def test_nothing_that_can_be_compressed():
    [message] = messages(integrations.compress_model(cosh_net()), X)
    assert message == (
        "Net at L1: nothing is stored in fewer bytes: 12.0 KiB before and 12.0 KiB after "
        "(12.0 KiB: no rule for cosh: kept exactly)"
    )


def test_nothing_but_what_has_other_owners():
    [message] = messages(integrations.compress_model(nn.Linear(64, 64)), X)
    assert "all that autograd saved is kept alive by others anyway (1 x input of the model)" in message


def test_nothing_saved():
    [message] = messages(integrations.compress_model(Net(lambda self, x: self.w + x[0], w=W)), X)
    assert "autograd saved nothing that its hooks see" in message


def test_too_small():
    [message] = messages(integrations.compress_model(mlp(4)), normal(2, 4))
    assert "(96 B: smaller than min_bytes=1024)" in message


def test_the_largest_reasons_come_first():
    def forward(self, x):
        h = F.linear(x, self.w)
        return h.cosh().sum() + h[:24].clone().sinh().sum() + h[:2].clone().sinh().sum()

    [message] = messages(integrations.compress_model(Net(forward, w=W)), X)
    reasons = message[message.rindex("after (") :]
    assert reasons == (
        "after (12.0 KiB: no rule for cosh: kept exactly; 6.0 KiB: no rule for sinh: kept exactly; "
        "512 B: smaller than min_bytes=1024)"
    )


def test_once():
    model = integrations.compress_model(cosh_net())
    assert len(messages(model, X)) == 1
    assert messages(model, X) == []
    assert messages(copy.deepcopy(model), X) == []
    assert len(messages(integrations.compress_model(cosh_net()), X)) == 1


@pytest.mark.parametrize(
    "model",
    [
        integrations.compress_model(mlp()),
        integrations.compress_model(cosh_net(), "L0"),
    ],
    ids=["compressed", "off"],
)
def test_not_where_there_is_nothing_to_say(model):
    assert messages(model, X) == []


def test_not_in_eval_or_without_gradients():
    model = integrations.compress_model(cosh_net(), strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            model(X)
        model.eval()(X).sum().backward()


def test_strict_is_an_error_with_the_reasons():
    model = integrations.compress_model(cosh_net(), strict=True)
    for _ in range(2):
        with pytest.raises(RuntimeError) as raised:
            model(X)
        assert str(raised.value) == (
            "Net at L1: nothing is stored in fewer bytes: 12.0 KiB before and 12.0 KiB after (12.0 KiB: no rule for "
            "cosh: kept exactly); without strict=True this is a warning, and level L0 is off"
        )
        assert_nothing_active()
    with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
        copy.deepcopy(model)(X)
    integrations.restore_model(model)
    assert messages(model, X) == []


def test_strict_lets_a_compressed_forward_pass():
    gradients(integrations.compress_model(mlp(), strict=True), X)


def test_in_a_block():
    model = cosh_net()
    with pytest.warns(UserWarning, match="no rule for cosh"), integrations.compress(model):
        model(X).sum().backward()
    with pytest.raises(RuntimeError, match="no rule for cosh"), integrations.compress(model, strict=True):
        model(X).sum().backward()
    assert_nothing_active()


def test_the_forwards_own_error_is_the_one_raised():
    def forward(self, x):
        F.linear(x, self.w).cosh()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        integrations.compress_model(Net(forward, w=W), strict=True)(X)


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_what_strict_takes(value):
    with pytest.raises(TypeError, match="strict must be True or False, got"):
        integrations.compress_model(mlp(), strict=value)


# ---- torch.compile ----


def test_inside_a_compiled_function_that_may_not_break_it_warns_once():
    torch._dynamo.reset()
    model = integrations.compress_model(mlp())
    compiled = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)

    def run(x):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(x).sum().backward()
        return [str(found.message) for found in caught if "uncompressed" in str(found.message)]

    assert run(X) == [
        "Sequential runs uncompressed in a function that is compiled with fullgraph=True, or exported: compile the "
        "compressed model itself, with torch.compile(model)"
    ]
    assert run(X) == run(normal(24, 64)) == []  # the latter is compiled anew, for another shape
    torch._dynamo.reset()


@pytest.mark.parametrize("quiet", ["L0", "eval", "no_grad"])
def test_compiling_what_is_not_compressed_anyway(quiet):
    torch._dynamo.reset()
    model = integrations.compress_model(mlp(), "L0" if quiet == "L0" else "L1").train(quiet != "eval")
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(quiet != "no_grad"):
        warnings.simplefilter("always")
        torch.compile(model, backend="aot_eager", fullgraph=True)(X)
    assert [found for found in caught if "uncompressed" in str(found.message)] == []
    torch._dynamo.reset()
