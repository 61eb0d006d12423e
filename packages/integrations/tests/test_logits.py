"""Logits that are not computed: their loss is that of the logits, of which all else is asked that is asked of them."""

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from .decoder import BATCH, CLASSES, IDS, LENGTH, SUMS, WIDTH, Decoder, exchanged, shifted, step, twin
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


def accuracy_without_gradients(logits, ids):
    with torch.no_grad():
        right = (logits[:, :-1].argmax(dim=-1) == ids[:, 1:]).float().mean()
    return shifted(logits, ids) * (1 + right)


def moved(logits, ids):
    return shifted(logits.to(device=None, dtype=None).to("cpu:0").to(ids.device, torch.float32), ids)


def unlikely(logits, ids):
    """Log-probabilities as DPO code computes them."""
    chosen = torch.gather(logits[:, :-1].log_softmax(-1), dim=2, index=ids[:, 1:].unsqueeze(2)).squeeze(2)
    return -F.logsigmoid(0.1 * (chosen * (ids[:, 1:] % 3 > 0)).sum(-1)).mean()


def clipped(logits, ids):
    """GRPO's loss at a temperature: log-probabilities in ``selective_log_softmax``'s form for wide dtypes."""
    logits, ids = logits[:, :-1][:, -70:] / 0.7, ids[:, -70:]
    selected = torch.gather(logits, dim=-1, index=ids.unsqueeze(-1)).squeeze(-1)
    chosen = selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits])
    ratio, advantages = torch.exp(chosen - chosen.detach() - 0.1), torch.tensor([1.0, -0.5, 2.0, 0.3])[:, None]
    return -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()


def by_rows(logits, ids):
    """``selective_log_softmax``'s form for narrow dtypes."""
    pairs = zip(logits, ids.unsqueeze(-1), strict=True)
    return -torch.stack([F.log_softmax(row, dim=-1).gather(dim=-1, index=of) for row, of in pairs]).square().mean()


def capped_and_chosen(logits, ids):
    logits = torch.tanh(logits / 5.0) * 5.0
    return (logits.gather(-1, ids[..., None]) - logits.logsumexp(-1, keepdim=True)).square().mean()


def picked(logits, ids):
    rows, places = torch.arange(BATCH)[:, None], torch.arange(-LENGTH, 0)
    log_probabilities = F.log_softmax(logits, dim=2, dtype=torch.float64)
    return log_probabilities[rows, places, ids - CLASSES].float().square().mean()


def negative_likelihood(logits, ids):
    first, second = nn.LogSoftmax(-1)(logits).flatten(0, 1).split(400)
    return (
        F.nll_loss(first, ids.flatten()[:400], ignore_index=3)
        - second.chunk(2)[0].gather(1, ids.flatten()[400:500, None]).mean()
    )


IN_CHUNKS = {call.__name__: call for call in (shifted, capped, scaled, masked, last, each, accuracy, moved)}
IN_CHUNKS |= {call.__name__: call for call in (unlikely, clipped, by_rows, capped_and_chosen, picked)}
IN_CHUNKS |= {call.__name__: call for call in (accuracy_without_gradients, negative_likelihood)}


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
        assert abs(found - wanted) <= 1e-6 * abs(wanted)
        assert relative_error(expected, gradients) <= SUMS
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
    found, gradients = step(twin(model))
    wanted, expected = step(model)
    assert abs(found - wanted) <= 1e-6 * abs(wanted)
    assert relative_error(expected, gradients) <= SUMS


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


@pytest.mark.parametrize("change", ["weight", "hidden", "forgotten"])
def test_what_would_be_other_logits_is_refused(change):
    """After an optimizer's step, for one; where the logits are not made by then, nobody has those of the forward."""
    kept = []
    model = Decoder(lambda logits, ids: logits).train()
    model.layer.register_forward_hook(lambda *call: kept.append(call[-1]))
    torch.nn.utils.parametrizations.weight_norm(model.head) if change == "forgotten" else None
    model = twin(model)
    logits = model(IDS)
    with torch.no_grad():
        if change == "hidden":
            logits.derived.source.hidden.mul_(2)
        else:
            next(model.head.parameters()).mul_(2)
    for read in (lambda: logits.argmax(-1), lambda: logits.softmax(-1), lambda: shifted(logits, IDS)):
        with pytest.raises(RuntimeError, match=r"must be read before .*optimizer.step\(\)"):
            read()


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
