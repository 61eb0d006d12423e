"""Adapters of every kind that PEFT has, at lean and with a loss in chunks, beside the same model as it is."""

import copy

import pytest
import torch

import integrations

from .guest_nets import DRAWS, assert_averages_out, language_step, llama, whole_error
from .largest import Largest
from .libraries import library_or_skip

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

# name: the configuration's class and arguments
ADAPTERS = {
    "LoRA, attention": ("LoraConfig", {"r": 4, "target_modules": ATTENTION, "init_lora_weights": False}),
    "LoRA, all linear": ("LoraConfig", {"r": 4, "target_modules": "all-linear", "init_lora_weights": False}),
    "LoRA, dropout": (
        "LoraConfig",
        {"r": 4, "target_modules": "all-linear", "init_lora_weights": False, "lora_dropout": 0.2},
    ),
    "LoRA, modules to save": (
        "LoraConfig",
        {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "DoRA": ("LoraConfig", {"r": 4, "target_modules": "all-linear", "init_lora_weights": False, "use_dora": True}),
    "prompt tuning": ("PromptTuningConfig", {"num_virtual_tokens": 8}),
    "prefix tuning": ("PrefixTuningConfig", {"num_virtual_tokens": 8}),
    "IA3": (
        "IA3Config",
        {"target_modules": ["k_proj", "v_proj", "down_proj"], "feedforward_modules": ["down_proj"]},
    ),
}
LOGITS = 4 * 63 * 512  # elements of the logits that have labels


def adapted(name):
    peft = library_or_skip("peft")
    kind, options = ADAPTERS[name]
    return peft.get_peft_model(llama(), getattr(peft, kind)(task_type="CAUSAL_LM", **options)).train()


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated")  # which PEFT's prefixes give
@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters(name):
    hf = library_or_skip("integrations.hf")
    model = adapted(name)
    wanted, expected = language_step(copy.deepcopy(model))
    # A loss in chunks alone: sums in another order, of as many terms as a product has, in float32.
    exact = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    found, gradients = language_step(exact)
    assert abs(found - wanted) <= 1e-6 * wanted
    assert whole_error(expected, gradients) <= 256 * 2**-24
    lean = hf.compress_model(model, level="lean", loss="chunked")
    with Largest() as largest:
        found, gradients = language_step(lean)
    assert abs(found - wanted) <= 1e-6 * wanted  # the forward is the model's own
    assert largest.elements < LOGITS
    report = integrations.compression(lean).report()
    assert "without logits" in report.exchanged
    assert report.ratio > 4
    assert_averages_out(expected, [gradients, *(language_step(lean)[1] for _ in range(DRAWS - 1))])


def test_adapters_are_merged_as_ever():
    hf = library_or_skip("integrations.hf")
    model = hf.compress_model(adapted("LoRA, all linear"), level="lean", loss="chunked")
    language_step(model)
    with torch.no_grad():
        before = model.eval()(input_ids=torch.arange(8)[None]).logits
        after = hf.restore_model(model).merge_and_unload()(input_ids=torch.arange(8)[None]).logits
    assert torch.allclose(before, after, atol=1e-5)
