"""Logits that are not computed: their loss is that of the logits, of which all else is asked that is asked of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .decoder import BATCH, CLASSES, IDS, LENGTH, SUMS, Decoder, exchanged, shifted, step, twin
from .largest import Largest
from .nets import assert_same, relative_error


def capped(logits, ids):
    return F.cross_entropy((torch.tanh(logits / 5.0) * 5.0).flatten(0, 1), ids.flatten())


def scaled(logits, ids):
    return F.cross_entropy((logits * 0.25).reshape(-1, logits.size(-1)), ids.view(-1), label_smoothing=0.1)


def masked(logits, ids):
    return nn.CrossEntropyLoss(reduction="sum", ignore_index=3)(logits[ids % 3 > 0], ids[ids % 3 > 0])


def last(logits, ids):
    return F.cross_entropy(logits[:, -40:].to(torch.float64).flatten(end_dim=1), ids[:, -40:].flatten())


def each(logits, ids):
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1), reduction="none").square().mean()


def accuracy(logits, ids):
    right = (logits.argmax(dim=-1) == ids).float().mean()
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1)) * (1 + right)


IN_CHUNKS = {call.__name__: call for call in (shifted, capped, scaled, masked, last, each, accuracy)}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", IN_CHUNKS)
def test_the_loss_is_that_of_the_logits_which_never_are(name, bias):
    model = Decoder(IN_CHUNKS[name], bias).train()
    chunked = twin(model)
    with Largest() as largest:
        found, gradients = step(chunked)
    wanted, expected = step(model)
    assert largest.elements < BATCH * 40 * CLASSES  # the fewest rows of which a loss is asked
    assert found.dtype == wanted.dtype
    assert abs(found - wanted) <= 1e-6 * abs(wanted)
    assert relative_error(expected, gradients) <= SUMS
    assert exchanged(chunked) == "Exchanged: a loss in chunks of 128 rows, without logits."


def softmax(logits, ids):
    return -logits.softmax(-1).gather(-1, ids[..., None]).log().mean()


def classes_second(logits, ids):
    return F.cross_entropy(logits.transpose(1, 2), ids)


def probabilities(logits, ids):
    return F.cross_entropy(logits.view(-1, CLASSES), F.one_hot(ids.view(-1), CLASSES).float())


def written(logits, ids):
    logits.masked_fill_(torch.arange(CLASSES) > 500, -1e4)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1) % 500)


def written_through_a_view(logits, ids):
    logits[:, 0] = 0
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))


def listened(logits, ids):
    logits.register_hook(lambda gradient: gradient * 2)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))


def cut_in_classes(logits, ids):
    return F.cross_entropy(logits[..., :500].reshape(-1, 500), ids.view(-1) % 500)


def squashed_twice(logits, ids):
    return F.cross_entropy(logits.tanh().tanh().view(-1, CLASSES), ids.view(-1))


def turned(logits, ids):
    return F.cross_entropy((logits.tanh() * -2).view(-1, CLASSES), ids.view(-1))


def added(logits, ids):
    return shifted(logits + 0.1 * torch.arange(CLASSES), ids)


def beside_the_loss(logits, ids):
    return shifted(logits, ids) + logits.logsumexp(-1).square().mean()


class Sum(torch.autograd.Function):
    """A Function, which no tensor's ``__torch_function__`` is asked about."""

    @staticmethod
    def forward(ctx, logits):
        ctx.shape = logits.shape
        return logits.square().sum() / 100

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * torch.linspace(0, 1, ctx.shape.numel()).view(ctx.shape),)


def functions(logits, ids):
    return Sum.apply(logits.float())


WHOLE = {
    "softmax": softmax,
    "transpose": classes_second,
    "cross_entropy": probabilities,
    "masked_fill_": written,
    "__setitem__": written_through_a_view,
    "register_hook": listened,
    "__getitem__": cut_in_classes,
    "tanh": squashed_twice,
    "mul": turned,
    "add": added,
    "logsumexp": beside_the_loss,
    "": functions,
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_else_is_asked_is_asked_of_the_logits(name):
    """The very loss and gradients, where no part of them is computed in chunks; and the report says for what."""
    model = Decoder(WHOLE[name]).train()
    chunked = twin(model)
    found, gradients = step(chunked)
    wanted, expected = step(model)
    if WHOLE[name] is beside_the_loss:
        assert abs(found - wanted) <= 1e-6 * abs(wanted)
        assert relative_error(expected, gradients) <= SUMS
    else:
        assert torch.equal(found, wanted)
        assert_same(expected, gradients)
    assert f"though the logits were made, for {name}" in exchanged(chunked)


@pytest.mark.parametrize("way", ["eval", "no_grad", "inference_mode"])
def test_without_training_they_are_tensors(way):
    model = twin(Decoder(lambda logits, ids: logits).train())
    if way == "eval":
        logits = model.eval()(IDS)
    else:
        with getattr(torch, way)():
            logits = model(IDS)
    assert type(logits) is torch.Tensor


def test_what_is_asked_of_their_shape_does_not_make_them():
    model = twin(Decoder(lambda logits, ids: logits).train())
    logits = model(IDS)
    assert (logits.shape, logits.dtype, logits.device) == ((BATCH, LENGTH, CLASSES), torch.float32, IDS.device)
    assert logits.requires_grad
    assert not logits.is_leaf
    assert "not computed" in repr(logits)
    assert "no forward asked" in exchanged(model)
    assert torch.equal(logits.detach(), model.eval()(IDS))


def test_who_listens_after_the_loss_is_told_that_nothing_comes():
    model = twin(Decoder(lambda logits, ids: (shifted(logits, ids), logits)).train())
    loss, logits = model(IDS)
    with pytest.warns(UserWarning, match="retain_grad.* of chunked logits comes after their loss"):
        logits.retain_grad()
    loss.backward()
    assert logits.grad is None
    assert "without logits" in exchanged(model)
