"""Logits that are not computed: losses of them in chunks, and what may be asked of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from .decoder import BATCH, CLASSES, IDS, LENGTH, Decoder, assert_same_step, exchanged, shifted, step, twin
from .largest import Largest


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
    assert_same_step((found, gradients), (wanted, expected))
    assert exchanged(chunked) == "Exchanged: a loss in chunks of 128 rows, without logits."


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
