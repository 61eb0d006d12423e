"""Plans by values in the surroundings that people train in: autocast, adapters, accumulation, frozen parts."""

import copy

import pytest
import torch

import integrations
from integrations import checkpoint

from .nets import assert_same, gradients
from .recompute_levels import MODELS, flat

# The plans are asked for errors of 0.2, measured with one draw of noise for one batch; another draw's error is normally
# distributed about the same, and no three times as large in 1e-9 of draws over as many elements.
ROUNDED, MOST = 0.2, 0.6


def within(model, memory, error):
    """With little memory; what rounds is not to be recomputed instead."""
    stores = ("exact", "bits", "slopes") if error else None
    return integrations.compress_model(model, memory=memory, error=error, stores=stores, min_bytes=0)


def follows(model, plain, step, error):
    """Whether a step of the model has the plain gradients, or those as good as was asked for, and stores something."""
    found = step(model)
    if error:
        difference = (flat(found) - flat(plain)).norm() / flat(plain).norm()
        assert 0 < difference < MOST
        assert checkpoint.plan_of(model).choice.rounds
    else:
        assert_same(found, plain)
    assert checkpoint.plan_of(model).choice.stores or checkpoint.plan_of(model).segments


@pytest.mark.parametrize("error", [0, ROUNDED])
@pytest.mark.parametrize("name", MODELS)
def test_under_autocast(name, error):
    """The first forward plans under it, for the dtypes that it makes."""
    model, args = MODELS[name]()

    def step(one):
        torch.manual_seed(1)
        one.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = one(*args).float().square().mean()
        loss.backward()
        return {name: parameter.grad.clone() for name, parameter in one.named_parameters()}

    plain = step(copy.deepcopy(model))
    within(model, 0.75, error)
    step(model)
    assert any(value.nbytes for value in checkpoint.plan_of(model).graph.values)
    follows(model, plain, step, error)


@pytest.mark.parametrize("error", [0, ROUNDED])
def test_adapters(error):
    """Whose base is frozen: what it saves for weights' gradients is not saved at all, and it gets no gradient."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
    config = transformers.LlamaConfig(vocab_size=50, use_cache=False, **sizes)
    adapted = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(transformers.LlamaForCausalLM(config), adapted).train()
    tokens = torch.arange(64).reshape(2, 32) % 50

    def step(one):
        return gradients(one, tokens, tokens, loss=lambda output: output[1].square().mean())

    class Labelled(torch.nn.Module):
        """With the labels by place."""

        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, tokens, labels):
            found = self.inner(input_ids=tokens, labels=labels)
            return found.loss, found.logits

    model = Labelled(model).train()
    plain = step(copy.deepcopy(model))
    within(model, 0.75, error)
    step(model)
    follows(model, plain, step, error)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert frozen
    assert all(parameter.grad is None for parameter in frozen)


@pytest.mark.parametrize("error", [0, ROUNDED])
@pytest.mark.parametrize("name", MODELS)
def test_gradients_that_accumulate(name, error):
    """Micro-batches: the first finds no gradients, and follows another plan than the second."""
    model, args = MODELS[name]()
    plain_twin = copy.deepcopy(model)

    def steps(one):
        one.zero_grad()
        for seed in (1, 2):
            torch.manual_seed(seed)
            one(*args).square().mean().backward()
        return {name: parameter.grad.clone() for name, parameter in one.named_parameters()}

    plain = steps(plain_twin)
    within(model, 0.7, error)
    steps(model)
    follows(model, plain, steps, error)
    assert not checkpoint.plan_of(model).graph.gradients  # the plan of the second
    for buffer, other in zip(model.buffers(), plain_twin.buffers(), strict=True):
        assert buffer.shape == other.shape


@pytest.mark.parametrize("error", [0, ROUNDED])
def test_part_of_a_model_is_frozen(error):
    """Below the first parameter that is trained nothing is saved, and nothing is planned."""
    model, args = MODELS["deep"]()
    for parameter in model[:10].parameters():
        parameter.requires_grad_(False)

    def step(one):
        return gradients(one, *args)

    plain = step(copy.deepcopy(model))
    within(model, 0.7, error)
    step(model)
    follows(model, plain, step, error)


def test_frozen_layers_hold_nothing():
    model, args = MODELS["deep"]()
    whole = integrations.plan(model, args, error=0, measure=False)
    for parameter in model[:10].parameters():
        parameter.requires_grad_(False)
    assert integrations.plan(model, args, error=0, measure=False).plain_peak < whole.plain_peak
