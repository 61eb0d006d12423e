"""Trains a small Llama for real, in a process of its own, and prints by how much each way's memory was foretold.

The peak is the kernel's, ``VmHWM``, reset before the step that is measured. Run with ``MALLOC_MMAP_THRESHOLD_=65536``,
so that what is freed goes back at once; prints a JSON object: by way, the bytes that ``fit`` says and those measured.
"""

import gc
import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import integrations

STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SHAPES = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4}
BATCH, TOKENS = 2, 256
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def field(name):
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def model_of(layers, vocabulary):
    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=layers, vocab_size=vocabulary, use_cache=False, **SHAPES)
    return LlamaForCausalLM(config).train()


def prepared(model, way):
    if way == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if way in ("chunked", "checkpoint"):
        integrations.compress_model(model, level="L0", loss="chunked")
    elif way == "lean":
        integrations.compress_model(model, level="lean", loss="chunked")
    return model


def trained(layers, vocabulary, way, batch, tokens, optimizer, before=0):
    model = prepared(model_of(layers, vocabulary), way)
    optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3)
    ids = torch.randint(vocabulary, (batch, tokens))
    peak = 0
    for _ in range(2):
        gc.collect()
        REFS.write_text("5")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        del loss
        optimizer.step()
        optimizer.zero_grad()
        peak = field("VmHWM") - before
    return peak


def main():
    torch.set_num_threads(1)
    layers, vocabulary = 8, 8192
    found = {}
    for asked in sys.argv[1:]:
        way, optimizer = asked.split(",")
        trained(1, 64, way, 1, 8, optimizer)  # what is made once
        gc.collect()
        before = field("VmRSS")
        measured = trained(layers, vocabulary, way, BATCH, TOKENS, optimizer, before)
        gc.collect()
        options = {"memory": "64GiB", "optimizer": optimizer, "batch": BATCH, "tokens": TOKENS, "ways": [way]}
        best = integrations.fit(model_of(layers, vocabulary), **options).best
        found[asked] = {"said": best.peak, "measured": measured, "at_step": best.at_step}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
