"""Plans with the chunked loss that ``loss=`` asks for, where the model or the training loop computes the loss."""

import copy
import warnings

import pytest
import torch.nn.functional as F
from torch import nn

import integrations
from integrations import Plan

from .decoder import CLASSES, IDS, SUMS, WIDTH, Decoder, llama, shifted
from .largest import Largest
from .nets import profiled_bytes, relative_error

HEAD = {"head": "head"}
WHOLE = IDS.shape[0] * (IDS.shape[1] - 1) * CLASSES
WHOLE_BYTES = 4 * IDS.numel() * CLASSES
NUMBERS = 1 << 13  # bytes of labels, sums and single numbers that a loss outside of a model has besides the plan's


def inside():
    return Decoder(shifted).train()


def outside():
    return Decoder(lambda logits, ids: logits).train()


def step(model, ids=IDS, loss=shifted):
    """A step whose loop computes the loss."""
    model.zero_grad()
    found = loss(model(ids), ids)
    found.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters()}


def plan_of(model):
    return integrations.compression(model).plan


def criterion(logits):
    return shifted(logits, IDS)


# ---- integrations.plan ----


def test_a_loss_inside_is_planned_in_chunks_when_asked():
    """Whole logits would fit in ``memory=1.0``."""
    model = inside()
    plan = integrations.plan(model, (IDS,), memory=1.0, loss=HEAD)
    assert integrations.plan(model, (IDS,), memory=1.0).chunked is None
    assert (plan.chunked.head, plan.chunked.outside) == ("head", False)
    twin = integrations.compress_model(copy.deepcopy(model), memory=1.0, loss=HEAD)
    twin(IDS).backward()
    assert plan_of(twin).peak == plan.peak
    found = integrations.apply(copy.deepcopy(model), plan)
    with Largest() as largest:
        found(IDS).backward()
    assert largest.elements < WHOLE
    assert "forward" not in vars(model.head)


def test_a_loss_outside_is_planned_in_chunks_when_asked():
    model = outside()
    whole = integrations.plan(model, (IDS,), memory="least", criterion=criterion)
    plan = integrations.plan(model, (IDS,), memory="least", criterion=criterion, loss=HEAD)
    assert plan.graph.note == ""  # captured without data
    assert plan.chunked.outside
    assert plan.peak < whole.peak - WHOLE_BYTES
    found = integrations.apply(copy.deepcopy(model), plan)
    with Largest() as largest:
        gradients = step(found)
    assert largest.elements < WHOLE
    assert relative_error(step(model), gradients) <= SUMS
    assert "forward" not in vars(model.head)


def test_without_a_criterion_the_loss_of_a_usual_loop_is_counted():
    model = outside()
    plan = integrations.plan(model, (IDS,), memory="least", loss=HEAD)
    known = integrations.plan(model, (IDS,), memory="least", criterion=criterion, loss=HEAD)
    assert plan.chunked.outside
    assert "Backward starts from a loss in chunks of the logits that the model returned" in str(plan)
    hidden = 4 * IDS.numel() * WIDTH
    rows = 4 * 128 * CLASSES * IDS.shape[0] // (IDS.numel() - IDS.shape[0])  # a row of each sequence has no loss
    assert known.peak <= plan.peak <= known.peak + rows + 2 * hidden // IDS.shape[1] + NUMBERS


class TwoHeads(Decoder):
    """A second layer that may make the logits."""

    def __init__(self):
        super().__init__(shifted)
        self.other = copy.deepcopy(self.head)


def test_a_compressed_model_has_no_plan_for_another_loss():
    """The plan was for the loss of ``compress_model``, whatever was asked for."""
    model = integrations.compress_model(TwoHeads().train(), level="L0", loss=HEAD)
    for other in ({"head": "other"}, "full"):
        with pytest.raises(ValueError, match=r"loss must be None or \{'head': 'head'\} .*restore_model\(model\)"):
            integrations.plan(model, (IDS,), memory="least", loss=other)
    for same in (HEAD, None):
        assert integrations.plan(model, (IDS,), memory="least", loss=same).chunked.head == "head"
    integrations.restore_model(model)
    assert integrations.plan(model, (IDS,), memory="least", loss="full").chunked is None


def test_several_inputs_have_chunks_of_their_own():
    model = inside()
    plan = integrations.plan(model, [(IDS,), (IDS[:1].repeat(1, 3),)], memory=1.0, loss=HEAD)
    for one in (plan, *plan.also):
        assert one.chunked.least_rows == 128


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("chunked", "loss must name the layer that makes the logits of the Decoder"),
        ({"head": "nothing"}, "which has no 'nothing'"),
        ({"head": "embedding"}, "loss must name a linear layer"),
        ("whole", "loss must be 'chunked', 'full', or"),
    ],
)
def test_a_loss_that_cannot_be_asked_for(loss, told):
    with pytest.raises(ValueError, match=told):
        integrations.plan(inside(), (IDS,), memory=1.0, loss=loss)


def test_a_step_that_needs_its_logits_has_no_plan_in_chunks():
    model = Decoder(lambda logits, ids: shifted(logits, ids) + logits.exp().mean()).train()
    with pytest.raises(ValueError, match="loss must be 'full' or None for this Decoder"):
        integrations.plan(model, (IDS,), memory="least", loss=HEAD)


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_models_of_transformers(where):
    model = llama()
    args = {"input_ids": IDS, "labels": IDS} if where == "inside" else {"input_ids": IDS}
    given = {"criterion": lambda output: shifted(output.logits, IDS)} if where == "outside" else {}
    whole = integrations.plan(model, args, memory="least", **given, loss="full")
    plan = integrations.plan(model, args, memory="least", **given, loss="chunked")
    assert plan.chunked.head == "lm_head"
    assert plan.chunked.outside == (where == "outside")
    assert plan.peak < whole.peak - WHOLE_BYTES


# ---- compress_model, and a loss in the loop ----


@pytest.mark.parametrize("batch", [1, 4])
def test_each_step_of_a_loop_keeps_to_a_plan_without_whole_logits(batch):
    ids = IDS.reshape(batch, -1)
    model = outside()
    whole = integrations.plan(model, (ids,), memory="least")
    model = integrations.compress_model(model, memory=int(whole.peak / 2), loss=HEAD)
    for number in range(4):
        if number < 2:
            model.zero_grad()
        most, left = profiled_bytes(lambda: shifted(model(ids), ids).backward())
        plan = plan_of(model)
        assert plan.chunked.outside
        assert plan.peak <= whole.peak / 2
        assert most - left <= plan.peak + NUMBERS


def test_a_loss_that_needs_whole_logits_is_refused():
    model = integrations.compress_model(outside(), memory="least", loss=HEAD)
    with pytest.raises(
        ValueError, match=r"softmax\(\) needs all logits at once, .* pass loss='full' to compress_model"
    ):
        step(model, loss=lambda logits, ids: logits.softmax(-1).square().sum())
    integrations.restore_model(model)
    integrations.compress_model(model, memory="least", loss="full")
    step(model, loss=lambda logits, ids: logits.softmax(-1).square().sum())


def test_with_a_fallback_whole_logits_are_warned_of():
    model = integrations.compress_model(outside(), memory=0.5, loss=HEAD, fallback="least")
    with pytest.warns(UserWarning, match=r"softmax\(\) needs all logits at once"):
        step(model, loss=lambda logits, ids: logits.softmax(-1).square().sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, loss=lambda logits, ids: logits.softmax(-1).square().sum())


def test_each_plan_warns_of_whole_logits_once():
    """After the first plan's warning, none came."""
    model = integrations.compress_model(outside(), memory=0.5, loss=HEAD, fallback="least")
    told = []
    for length in (100, 150, 100, 150):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            step(model, IDS[:, :length], loss=lambda logits, ids: logits.softmax(-1).square().sum())
        told.append(sum("needs all logits at once" in str(one.message) for one in found))
    assert told == [1, 1, 0, 0]


def test_logits_that_are_read_after_their_loss_are_warned_of():
    def loss(logits, ids):
        found = shifted(logits, ids)
        assert (logits.detach().softmax(-1) >= 0).all()
        return found

    model = integrations.compress_model(outside(), memory="least", loss=HEAD)
    with pytest.warns(UserWarning, match="needs all logits at once"):
        step(model, loss=loss)


def test_without_a_plan_whole_logits_are_made():
    model = integrations.compress_model(outside(), level="L1", loss=HEAD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model, loss=lambda logits, ids: logits.softmax(-1).square().sum())


def test_longer_inputs_and_saved_plans_keep_the_chunks(tmp_path):
    model = outside()
    short = IDS[:, :100]
    integrations.plan(model, (short,), memory="least", loss=HEAD).save(tmp_path / "plan.json")
    found = integrations.compress_model(copy.deepcopy(model), plan=tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").chunked.outside
    for ids in (IDS, short, IDS):
        with Largest() as largest:
            gradients = step(found, ids)
        assert largest.elements < len(ids) * (ids.shape[1] - 1) * CLASSES
        assert plan_of(found).chunked.outside
        assert relative_error(step(model, ids), gradients) <= SUMS
    with pytest.raises(ValueError, match="needs all logits at once"):
        step(found, loss=lambda logits, ids: F.softmax(logits, -1).sum())


def chosen(logits, ids=IDS):
    """A loss with two gradients of the head's weight at once."""
    kept = logits[:, :-1]
    return (kept.logsumexp(-1) - kept.gather(-1, ids[:, 1:, None]).squeeze(-1)).mean()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_head_without_a_weight_of_its_own_is_planned_in_chunks(frozen):
    class Adapted(nn.Module):
        in_features, out_features = WIDTH, CLASSES

        def __init__(self, base):
            super().__init__()
            self.base = base.requires_grad_(not frozen)

        def forward(self, x):
            return self.base(x)

    model = outside()
    model.head = Adapted(model.head)
    integrations.compress_model(model, memory="least", loss=HEAD)
    shifted(model(IDS), IDS).backward()
    if frozen:
        chosen(model(IDS)).backward()
        return
    with pytest.raises(ValueError, match="the plan counts one cross-entropy in chunks"):
        chosen(model(IDS))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_second_loss_of_the_same_logits_raises_unless_the_head_is_frozen(frozen):
    """Its gradient of the head's weight was in no plan."""
    model = outside()
    model.head.weight.requires_grad_(not frozen)
    integrations.compress_model(model, memory="least", loss=HEAD)
    if frozen:
        chosen(model(IDS)).backward()
        return
    with pytest.raises(ValueError, match=r"the plan counts one cross-entropy in chunks, .* criterion="):
        step(model, loss=chosen)
    model.zero_grad()
    step(model)


def test_a_criterion_counts_what_a_cross_entropy_does_not_take():
    model = outside()
    plan = integrations.plan(model, (IDS,), memory="least", criterion=chosen, loss=HEAD)
    assert plan.chunked.outside
    assert plan.peak > integrations.plan(model, (IDS,), memory="least", loss=HEAD).peak + 4 * CLASSES * WIDTH
    integrations.apply(model, plan)
    most, left = profiled_bytes(lambda: chosen(model(IDS)).backward())
    assert most - left <= plan.peak + NUMBERS


def test_gradients_that_are_gone_at_backward_are_found_where_the_loss_is_computed_in_chunks():
    """Its backward does not reach the logits: steps followed the plan for steps that accumulate gradients."""
    model = integrations.compress_model(outside(), memory="least", loss=HEAD)
    for _ in range(5):
        loss = shifted(model(IDS), IDS)
        model.zero_grad()
        loss.backward()
    assert not plan_of(model).graph.accumulates
