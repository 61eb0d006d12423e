"""Trains a small Llama for real, in a process of its own: what ``fit`` says beside the process's peak.

The peak is the kernel's, ``VmHWM``, reset before the step that is measured. Run with ``MALLOC_MMAP_THRESHOLD_=65536``,
so that what is freed goes back at once; prints a JSON object: by case, the bytes said and those measured.
"""

import ctypes
import gc
import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import integrations

STATUS, REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
SHAPES = {"hidden_size": 256, "intermediate_size": 768, "num_attention_heads": 8, "num_key_value_heads": 4}
LAYERS, VOCABULARY, BATCH, TOKENS = 4, 8192, 2, 256
OPTIMIZERS = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}


def field(name):
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10


def model_of(layers, vocabulary):
    config = LlamaConfig(num_hidden_layers=layers, vocab_size=vocabulary, use_cache=False, **SHAPES)
    return LlamaForCausalLM(config).train()


def prepared(model, way):
    if way == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if way != "plain":
        integrations.compress_model(model, level="lean" if way == "lean" else "L0", loss="chunked")
    return model


def trained(layers, vocabulary, way, batch, tokens, optimizer, before=0):
    """The peak of the second step."""
    model = prepared(model_of(layers, vocabulary), way)
    optimizer = OPTIMIZERS[optimizer](model.parameters(), lr=1e-3)
    ids = torch.randint(vocabulary, (batch, tokens))
    for _ in range(2):
        gc.collect()
        REFS.write_text("5")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        peak = field("VmHWM") - before
    return peak


def main():
    torch.set_num_threads(1)
    found = {}
    for case in sys.argv[1:]:
        way, optimizer = case.split(",")
        trained(1, 64, way, 1, 8, optimizer)  # what is made once
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        measured = trained(LAYERS, VOCABULARY, way, BATCH, TOKENS, optimizer, field("VmRSS"))
        gc.collect()
        options = {
            "memory": "64GiB",
            "optimizer": optimizer,
            "batch": BATCH,
            "tokens": TOKENS,
            "ways": [way],
            "grow": False,
        }
        best = integrations.fit(model_of(LAYERS, VOCABULARY), **options).best
        found[case] = {"said": best.peak, "measured": measured, "at_step": best.at_step}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
