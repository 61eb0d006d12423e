"""Logits that are computed after all, with their history, since something needs all of them."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .decoder import CLASSES, IDS, WIDTH, Decoder, assert_same_step, exchanged, shifted, step, twin
from .nets import assert_same


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


def padded(logits, ids):
    logits[..., 500:].fill_(-1e4)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1) % 500)


def written_as_data(logits, ids):
    logits.data[..., 500:] = -1e4
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1) % 500)


def rectified(logits, ids):
    F.relu(logits, inplace=True)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))


def retained(logits, ids):
    logits.retain_grad()
    loss = F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))
    (gradient,) = torch.autograd.grad(loss, logits, retain_graph=True)
    return loss * (1 + gradient.abs().sum())


def looked_at_first(logits, ids):
    with torch.no_grad():
        entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    return shifted(logits, ids) * entropy + logits.logsumexp(-1).square().mean()


def ended_in_an_ellipsis(logits, ids):
    return logits[:, :, 5, ...].square().mean()


def as_other_numbers(logits, ids):
    return shifted(logits, ids) * (logits.view(torch.int32) != 0).float().mean()


def copied_before_it_is_written(logits, ids):
    copy = logits * 2
    logits.mul_(3)
    return shifted(copy, ids) + shifted(logits, ids)


def written_under_an_earlier_view(logits, ids):
    scaled = logits * 2
    view = scaled[:, :-1]
    scaled.clamp_(max=0.1)
    return F.cross_entropy(view.reshape(-1, CLASSES), ids[:, 1:].reshape(-1))


def cut_without_a_gradient(logits, ids):
    with torch.no_grad():
        cut = logits[:, :-1]
    return F.cross_entropy(cut.reshape(-1, CLASSES), ids[:, 1:].reshape(-1)) + logits.exp().mean(-1).square().mean()


def in_a_checkpoint(logits, ids):
    return checkpoint(shifted, logits, ids, use_reentrant=False)


def rounded(logits, ids):
    return shifted(logits.to(torch.bfloat16).float(), ids)


def added(logits, ids):
    return shifted(logits + 0.1 * torch.arange(CLASSES), ids)


def beside_the_loss(logits, ids):
    return shifted(logits, ids) + logits.exp().mean(-1).square().mean()


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


def chosen_of_wrong_shape(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).square().mean()


def several_chosen(logits, ids):
    return logits.log_softmax(-1).gather(-1, torch.stack([ids, ids.flip(0)], -1)).square().mean()


def distilled(logits, ids):
    teacher = torch.linspace(-1, 1, CLASSES).expand(logits.shape)
    return F.kl_div(logits.log_softmax(-1), teacher.log_softmax(-1), log_target=True, reduction="batchmean")


def normalized_over_the_rows(logits, ids):
    return logits.log_softmax(1).gather(-1, ids[..., None]).square().mean()


def scaled_log_probabilities(logits, ids):
    return (logits.log_softmax(-1) * 2).gather(-1, ids[..., None]).square().mean()


WHOLE = [
    ("gather", chosen_of_wrong_shape),
    ("gather", several_chosen),
    ("kl_div", distilled),
    ("log_softmax", normalized_over_the_rows),
    ("mul", scaled_log_probabilities),
    ("__getitem__", padded),
    ("data", written_as_data),
    ("relu", rectified),
    ("retain_grad", retained),
    ("softmax", looked_at_first),
    ("__getitem__", ended_in_an_ellipsis),
    ("mul_", copied_before_it_is_written),
    ("clamp_", written_under_an_earlier_view),
    ("exp", cut_without_a_gradient),
    ("detach.default", in_a_checkpoint),
    ("to", rounded),
    ("softmax", softmax),
    ("transpose", classes_second),
    ("cross_entropy", probabilities),
    ("masked_fill_", written),
    ("__setitem__", written_through_a_view),
    ("register_hook", listened),
    ("__getitem__", cut_in_classes),
    ("tanh", squashed_twice),
    ("mul", turned),
    ("add", added),
    ("exp", beside_the_loss),
    ("square", functions),
    ("view", as_other_numbers),
]


@pytest.mark.parametrize(("name", "loss"), WHOLE)
def test_what_else_is_asked_is_asked_of_the_logits(name, loss):
    """The very loss and gradients, where no part of them is computed in chunks; and the report says for what."""
    model = Decoder(loss).train()
    chunked = twin(model)
    found, gradients = step(chunked)
    wanted, expected = step(model)
    if loss in (beside_the_loss, as_other_numbers, cut_without_a_gradient):
        assert_same_step((found, gradients), (wanted, expected))
    else:
        assert torch.equal(found, wanted)
        assert_same(expected, gradients)
    assert f"though the logits were made, for {name}()" in exchanged(chunked)


def test_what_was_listened_to_is_told():
    gradients = []
    for wrap in (twin, copy.deepcopy):
        model = wrap(Decoder(lambda logits, ids: logits).train())
        logits = model(IDS)
        logits.retain_grad()
        shifted(logits, IDS).backward()
        gradients.append(logits.grad)
    assert torch.equal(*gradients)


def doubled(gradient):
    return gradient * 2


doubled.__module__ = "deepspeed.runtime.engine"


def doubled_for_a_function(logits, ids):
    logits.register_hook(doubled)
    return Sum.apply(logits)


def doubled_for_a_function_of_rows(logits, ids):
    logits.register_hook(doubled)
    return Sum.apply(logits[:, :-1])


def doubled_beside_a_function_of_earlier_rows(logits, ids):
    rows = logits[:, :-1]
    logits.register_hook(doubled)
    return Sum.apply(rows)


def doubled_for_the_loss(logits, ids):
    logits.register_hook(doubled)
    return shifted(logits, ids)


@pytest.mark.parametrize(
    "loss",
    [
        doubled_for_a_function,
        doubled_for_a_function_of_rows,
        doubled_beside_a_function_of_earlier_rows,
        doubled_for_the_loss,
    ],
)
def test_a_hook_of_an_engine_gets_each_gradient_once(loss):
    model = Decoder(loss).train()
    assert_same_step(step(twin(model)), step(model))


def test_a_hook_of_an_engine_does_not_keep_the_logits():
    """They would otherwise wait for the garbage collector."""
    model = twin(Decoder(lambda logits, ids: logits).train())
    logits = model(IDS)
    logits.register_hook(doubled)
    kept = weakref.ref(logits.derived.logits())
    gc.disable()
    try:
        del logits
        assert kept() is None
    finally:
        gc.enable()


def test_a_head_that_draws_is_called_once_for_logits():
    """What a Function looks at and what backward differentiates are the same."""

    class Dropping(nn.Linear):
        def forward(self, hidden):
            return super().forward(F.dropout(hidden, 0.5))

    model = Decoder(functions).train()
    model.head = Dropping(WIDTH, CLASSES)
    chunked = twin(model)
    results = []
    for one in (chunked, model):
        torch.manual_seed(3)
        results.append(step(one)[1])
    assert_same(*results[::-1])


def test_a_second_derivative_through_a_function_is_refused():
    model = twin(Decoder(lambda logits, ids: logits).train())
    loss = Sum.apply(model(IDS))
    with pytest.raises(NotImplementedError, match="no second derivative"):
        torch.autograd.grad(loss, model.head.weight, create_graph=True)
