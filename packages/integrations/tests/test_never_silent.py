"""Compression that has no effect says so: a warning once, an error with ``strict=True``, each with the reasons."""

import contextlib
import copy
import re
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .decoder import IDS, Decoder, shifted
from .nets import Net, assert_nothing_active, assert_same, gradients, mlp, normal

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
    assert "all tensors that autograd saved are alive anyway, for other reasons (1 x input of the model)" in message


def test_nothing_saved():
    [message] = messages(integrations.compress_model(Net(lambda self, x: self.w + x[0], w=W)), X)
    assert "autograd saved no tensor through saved-tensor hooks" in message


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
            "cosh: kept exactly); without strict=True this is a warning, and level='L0' turns compression off"
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


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("blocks", [False, True])
def test_a_last_batch_that_is_too_small(rows, blocks):
    """In a training whose other batches are stored in fewer bytes; until then it is told, and again once restored."""
    model = mlp()
    if not blocks:
        integrations.compress_model(model, strict=True)

    def step(x):
        with integrations.compress(model, strict=True) if blocks else contextlib.nullcontext():
            gradients(model, x)

    for _ in range(2):
        with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
            step(X[:rows])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            step(X)
            step(X[:rows])
        if blocks:
            integrations.compress_model(model)
        integrations.compress_model(integrations.restore_model(model), strict=True)
        if blocks:
            integrations.restore_model(model)


def test_a_last_batch_that_is_short():
    """A loss in chunks keeps the gradient of the head's weight, which is larger than the logits of a short batch."""
    model = integrations.compress_model(Decoder(shifted), "lean", loss={"head": "head"}, strict=True)
    short = IDS[:1, :9]
    with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
        model(short)
    for ids in (IDS, short, IDS, short):
        model(ids).backward()


def test_a_block_that_saves_little():
    model = Net(lambda self, x: F.gelu(x @ self.w) if len(x) > 40 else (x @ self.w).cosh(), w=W)

    def step(rows):
        with integrations.compress(model, strict=True):
            model(X[:rows])

    for rows in (20, 40):
        with pytest.raises(RuntimeError, match="no rule for cosh"):
            step(rows)
        step(48)
    step(20)


def test_a_usual_batch_that_saves_little_and_is_not_stored_in_fewer_bytes():
    """As under a checkpoint that is switched on during the training. A batch of half as many rows tells nothing yet."""

    def forward(self, x):
        h = x @ self.w
        return h.cosh() if self.saves_little else F.gelu(F.gelu(F.gelu(h) @ self.w) @ self.w)

    model = integrations.compress_model(Net(forward, w=W), strict=True)
    model.saves_little = False
    model(X)
    model.saves_little = True
    model(X[:20])
    for x in (X, X[:24]):
        with pytest.raises(RuntimeError, match=r"nothing is stored in fewer bytes: .* no rule for cosh"):
            model(x)


def test_hooks_inside_of_the_forward_that_take_all_tensors():
    def forward(self, x):
        hooks = torch.autograd.graph.save_on_cpu() if self.has_hooks else contextlib.nullcontext()
        with hooks:
            return F.gelu(x @ self.w)

    model = integrations.compress_model(Net(forward, w=W), strict=True)
    model.has_hooks = False
    model(X)
    model.has_hooks = True
    for x in (X, X[:8]):
        with pytest.raises(RuntimeError, match="nothing is stored in fewer bytes"):
            model(x)


def test_a_later_forward_that_is_large_and_not_stored_in_fewer_bytes():
    def forward(self, x):
        h = x @ self.w
        return F.gelu(h) if x.sum() > 0 else h.cosh()

    model = integrations.compress_model(Net(forward, w=W))
    assert messages(model, X.abs()) == []
    [message] = messages(model, -X.abs())
    assert "no rule for cosh" in message


def test_an_empty_block():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for model in (mlp(), integrations.restore_model(integrations.compress_model(mlp()))):
            with integrations.compress(model, strict=True):
                pass
    with pytest.raises(RuntimeError, match="autograd saved no tensor"), integrations.compress(mlp(), strict=True):
        X + 1


def test_an_operators_own_workspace_has_no_rule_either():
    torch.manual_seed(0)
    model = integrations.compress_model(Net(lambda self, x: self.lstm(x)[0]))
    model.lstm = nn.LSTM(64, 64)
    [message] = messages(model, X[None])
    assert "no rule for lstm: kept exactly" in message
    assert "uint8" not in message


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


# ---- trained, and no forward compressed ----


def trained(model, forward, steps=2, closure=False):
    """What ``steps`` steps of an optimizer warn of, and where."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def backward():
        optimizer.zero_grad()
        forward(model).sum().backward()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            if closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
    assert all(found.filename == __file__ for found in caught)
    return [str(found.message) for found in caught]


WAYS = {
    "eval": (lambda model: model.eval()(X), r"is in eval\(\) mode: call model.train\(\), then eval\(\) on"),
    "method": (
        lambda model: F.linear(X, model[0].weight),
        "call the model itself, .* use a block: with integrations",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("copied", [False, True])
def test_a_model_that_is_trained_in_a_way_that_nothing_compresses(way, copied):
    forward, reason = WAYS[way]
    model = integrations.compress_model(mlp())
    [message] = trained(copy.deepcopy(model) if copied else model, forward)
    assert message.startswith("Sequential at L1: SGD updates its parameters, but none of its forwards was compressed: ")
    assert re.search(reason, message)
    assert trained(integrations.restore_model(model), forward) == []


@pytest.mark.parametrize("way", WAYS)
def test_strict_refuses_to_train_it(way):
    model = integrations.compress_model(mlp(), strict=True)
    before = copy.deepcopy(model.state_dict())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="none of its forwards was compressed"):
            trained(model, WAYS[way][0])
        assert_same(before, model.state_dict())
    assert trained(model.train(), lambda model: model(X)) == []


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_loading_an_optimizers_state_does_not_train_it(rate):
    """torch.distributed.checkpoint makes the states by a step with a learning rate of 0. The next step counts again."""
    checkpoint = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = integrations.compress_model(mlp(), strict=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False, capturable=False)
    before = copy.deepcopy(model.state_dict())
    state = checkpoint.get_optimizer_state_dict(model, optimizer)
    checkpoint.set_optimizer_state_dict(model, optimizer, state)
    assert_same(before, model.state_dict())
    F.linear(X, model[0].weight).sum().backward()
    with pytest.raises(RuntimeError, match="none of its forwards was compressed"):
        optimizer.step()


@pytest.mark.parametrize("way", WAYS)
def test_it_is_trained_otherwise(way):
    """By a level that is off, after a compressed forward, in a block, once restored; or it is not: another model is."""
    forward = WAYS[way][0]
    assert trained(integrations.compress_model(mlp(), "L0"), forward) == []
    assert trained(integrations.restore_model(integrations.compress_model(mlp(), strict=True)), forward) == []
    model = integrations.compress_model(mlp(), strict=True)
    forward(model).sum().backward()
    assert trained(mlp(), forward) == []
    assert trained(model.train(), lambda model: model(X)) == []
    assert trained(model, forward) == []


def test_an_optimizer_that_runs_the_forward_itself():
    model = integrations.compress_model(mlp(), strict=True)
    model.eval()(X).sum().backward()
    assert trained(model.train(), lambda model: model(X), closure=True) == []


def test_warnings_point_at_the_users_line():
    model = integrations.compress_model(cosh_net())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model(X)
        with integrations.compress(cosh_net()) as handle:
            handle.model(X)
    assert [found.filename for found in caught] == [__file__] * 2


# ---- torch.compile ----


def test_inside_a_compiled_function_that_may_not_break_it_raises():
    """It ran uncompressed, with a warning. Dynamo wraps the error into its own."""
    torch._dynamo.reset()
    model = integrations.compress_model(mlp())
    compiled = torch.compile(lambda x: model(x), backend="aot_eager", fullgraph=True)
    for _ in range(2):
        with pytest.raises(
            Exception,
            match=r"ValueError: Sequential at L1 cannot be compressed inside of a function that is compiled with "
            r"fullgraph=True: torch cannot set saved-tensor hooks .* Compile the model itself, "
            r"torch.compile\(model, fullgraph=True\)",
        ):
            compiled(X)
    assert torch.equal(torch.no_grad()(compiled)(X), mlp()(X))
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
