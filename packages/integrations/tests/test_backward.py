"""Backward in all its forms: changed tensors, twice, of a gradient, accumulated, partial."""

import pytest
import torch
import torch.nn.functional as F

import integrations

from .nets import EIGHT_BITS, Net, assert_same, gradients, mlp, normal, relative_error

X = normal(48, 64)
W = normal(64, 64, seed=1) / 8
WEIGHTS = {"w": W, "v": normal(64, 64, seed=2) / 8}


def compressed_net(forward, level="L1", **options):
    return integrations.compress_model(Net(forward, **WEIGHTS), level, **options)


# ---- tensors that change between forward and backward ----

CHANGES = {
    "add_": lambda h: h.add_(1),
    "mul_": lambda h: h.mul_(2),
    "index": lambda h: h.__setitem__(0, 0.0),
    "a view's": lambda h: h[3].zero_(),
    "a detached alias's": lambda h: h.detach().zero_(),
    "out=": lambda h: torch.neg(torch.ones(48, 64), out=h.detach()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("kept_by", ["result", "input"])
def test_changing_a_kept_tensor_raises_torchs_message(change, kept_by):
    seen = []

    def forward(self, x):
        h = F.linear(x, self.w)
        y = h.tan() if kept_by == "result" else h.cosh()
        seen.append(y if kept_by == "result" else h)
        return y.sum()

    messages = []
    for level in ("L0", "L1"):
        loss = compressed_net(forward, level)(X)
        with torch.no_grad():
            change(seen[-1])
        with pytest.raises(RuntimeError, match="has been modified by an inplace operation") as error:
            loss.backward()
        messages.append(str(error.value))
    plain, ours = (message.split(" Hint:")[0] for message in messages)
    numbers = plain.split("is at version")[1]
    assert plain.split(": [")[0] == ours.split(": [")[0]
    assert numbers == ours.split("is at version")[1]


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_changing_a_packed_tensor_changes_nothing(change):
    """Its copy is a snapshot: torch's error is not called for, and the gradient is that of the forward."""
    seen = []

    def forward(self, x):
        seen.append(F.linear(x, self.w))
        return F.linear(seen[-1].relu(), self.v).sum() + F.leaky_relu(seen[-1]).sum()

    expected = gradients(Net(forward, **WEIGHTS), X, loss=lambda loss: loss)
    model = compressed_net(forward, "L1.1")
    loss = model(X)
    with torch.no_grad():
        change(seen[-1])
    loss.backward()
    assert relative_error(expected, {name: p.grad for name, p in model.named_parameters()}) < EIGHT_BITS


def test_changing_a_parameter_before_backward_raises_torchs_message():
    """An optimizer step between forward and backward: the weight that backward needs is another one."""
    model = integrations.compress_model(mlp())
    loss = model(X).sum()
    with torch.no_grad():
        model[2].weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("in_place", ["sigmoid_", "tanh_", "exp_", "sqrt_", "relu_", "mul_"])
def test_operators_in_place_save_their_result_as_it_is(in_place):
    """The result is saved after the change, and is no error."""

    def forward(self, x):
        h = F.linear(x, self.w).abs() + 1
        h = h.mul_(self.v[0]) if in_place == "mul_" else getattr(h, in_place)()
        return F.linear(h, self.v)

    plain = gradients(Net(forward, **WEIGHTS), X)
    assert relative_error(plain, gradients(compressed_net(forward, "L1.1"), X)) < EIGHT_BITS


# ---- backward more than once ----


def test_backward_twice_gives_the_same_gradients():
    """What is stored is read, not used up, and its noise is drawn once."""
    model = integrations.compress_model(mlp(), "L1.2")
    loss = model(X).square().sum()
    found = []
    for _ in range(2):
        model.zero_grad()
        loss.backward(retain_graph=True)
        found.append({name: p.grad.clone() for name, p in model.named_parameters()})
    assert_same(*found)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_graph_of_many_losses():
    """Two losses over one forward: each asks for the same stored tensors."""
    model = integrations.compress_model(mlp(), "L1.2")
    output = model(X)
    output[:24].square().sum().backward(retain_graph=True)
    output[24:].square().sum().backward()
    halves = {name: p.grad for name, p in model.named_parameters()}
    again = integrations.compress_model(mlp(), "L1.2")
    whole = gradients(again, X, loss=lambda output: output.square().sum())
    # Equal sums in another order, in float32: 48 terms, each rounded, off by at most 48 * 2**-24 = 3e-6 of their sum.
    assert relative_error(whole, halves) < 1e-5


SMOOTH = {
    "relu": F.relu,
    "leaky_relu": lambda h: F.leaky_relu(h, 0.1),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda h: F.softmax(h, -1),
    "square": torch.square,
    "product": lambda h: h * h.sin(),
    "layer_norm": lambda h: F.layer_norm(h, (64,)),
}


@pytest.mark.parametrize("activation", SMOOTH.values(), ids=SMOOTH.keys())
def test_the_gradient_of_a_gradient(activation):
    """A gradient penalty: differentiates through what was unpacked. No term may be missing, whatever is stored: at 8
    bits the result is near the exact one, while a dropped term of this penalty is of the size of the gradient."""

    def forward(self, x):
        return F.linear(activation(F.linear(x, self.w)), self.v)

    found = []
    for level in ("L0", "L1.1"):
        model, x = compressed_net(forward, level), X.clone().requires_grad_()
        [slope] = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters()})
    # The penalty is of second order in the stored tensors: two errors of EIGHT_BITS each.
    assert relative_error(*found) < 2 * EIGHT_BITS


def test_backward_that_builds_a_graph_inside_a_block():
    """Under the context manager the backward's own saves are packed, too: exactly, as nobody's operator."""
    found = []
    for level in ("L0", "L1.1"):
        torch.manual_seed(0)
        model, x = mlp(), X.clone().requires_grad_()
        with integrations.compress(model, level):
            [slope] = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            slope.square().sum().backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert relative_error(*found) < 2 * EIGHT_BITS


# ---- accumulation, and outputs that nobody uses ----


def test_gradients_accumulate_over_micro_batches():
    """Two halves of a batch, each a forward of its own, sum to the batch's gradient."""
    expected = gradients(mlp(), X, loss=torch.sum)
    model = integrations.compress_model(mlp(), "L1.1")
    losses = [model(half).sum() for half in X.chunk(2)]
    for loss in losses:
        loss.backward()
    assert integrations.compression(model).step == 2
    assert relative_error(expected, {name: p.grad for name, p in model.named_parameters()}) < EIGHT_BITS


def test_an_output_that_nobody_uses(payloads):
    def forward(self, x):
        h = F.linear(x, self.w)
        return F.linear(h.relu(), self.v), F.linear(h.tanh(), self.v), h

    model = compressed_net(forward)
    first, unused, _ = model(X)
    before = sum(reference() is not None for reference in payloads)
    del unused
    assert sum(reference() is not None for reference in payloads) <= before
    first.sum().backward()
    assert model.w.grad is not None


def test_gradients_of_inputs():
    """The caller's input may ask for a gradient; linear layers with exact weights give it exactly."""
    found = []
    for level in ("L0", "L1.2"):
        x = X.clone().requires_grad_()
        integrations.compress_model(mlp(), level)(x).sum().backward()
        found.append(x.grad)
    assert torch.equal(*found)
