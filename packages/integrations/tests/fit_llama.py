"""The small Llama of the tests of ``fit``, its inputs, and what a step of it takes: as measured, and as said."""

import torch
from torch.profiler import ProfilerActivity, profile

from .libraries import library_or_skip

LAYERS, VOCABULARY, BATCH, TOKENS = 2, 256, 2, 64
DEEP = 5  # layers, which are enough to capture fewer


def config_of(layers=LAYERS, **fields):
    transformers = library_or_skip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaConfig(num_hidden_layers=layers, vocab_size=VOCABULARY, use_cache=False, **sizes, **fields)


def llama(layers=LAYERS):
    return library_or_skip("transformers").LlamaForCausalLM(config_of(layers)).train()


def sample(batch=BATCH, tokens=TOKENS):
    ids = torch.arange(batch * tokens).view(batch, tokens) % VOCABULARY
    return {"input_ids": ids, "labels": ids}


def allocated(model, inputs):
    """The most bytes that torch's allocator has handed out in a forward and backward beyond those before."""

    def step():
        model.zero_grad()
        loss = model(**inputs).loss
        loss.backward()

    step()
    model.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step()
    now = peak = 0
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def beyond(fit):
    """The bytes that forward and backward take, of what a fit says in all."""
    return fit.best.peak - fit.weights - fit.states - fit.inputs
