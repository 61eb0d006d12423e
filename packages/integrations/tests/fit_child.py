"""Trains a small Llama for real, in a process of its own: what ``fit`` says beside the process's peak.

The peak is the kernel's, ``VmHWM``, reset before the step that is measured. Run with ``MALLOC_MMAP_THRESHOLD_=65536``,
so that what is freed goes back at once, and cases such as ``plain,adamw`` or ``lean,adamw,lora,4096``: a way and an
optimizer; with adapters over weights in bfloat16 so many tokens, and a wider model. What a process makes once, some
10 MiB, is in the measurement of the first case of a width. Prints a JSON object: by case, the bytes said and measured.
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


WIDE = {"hidden_size": 512, "intermediate_size": 1792, "num_attention_heads": 8, "num_key_value_heads": 2}
WIDE_LAYERS, WIDE_VOCABULARY = 6, 16000


def model_of(layers, vocabulary, lora):
    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=vocabulary,
        use_cache=False,
        max_position_embeddings=8192,
        **(WIDE if lora else SHAPES),
    )
    model = LlamaForCausalLM(config).train()
    if not lora:
        return model
    from peft import LoraConfig, get_peft_model

    adapters = LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return get_peft_model(model.to(torch.bfloat16), adapters)


def prepared(model, way, lora):
    if way == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if lora:
            model.enable_input_require_grads()
    if way != "plain":
        integrations.compress_model(model, level="lean" if way == "lean" else "L0", loss="chunked")
    return model


def trained(layers, vocabulary, way, batch, tokens, optimizer, lora, before=0):
    """The peak of the second step."""
    model = prepared(model_of(layers, vocabulary, lora), way, lora)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = OPTIMIZERS[optimizer](trainable, lr=1e-3)
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
        way, optimizer, *adapters = case.split(",")
        lora = bool(adapters)
        size = (WIDE_LAYERS, WIDE_VOCABULARY) if lora else (LAYERS, VOCABULARY)
        batch, tokens = (1, int(adapters[1])) if lora else (BATCH, TOKENS)
        # What is made once: code that is loaded, and buffers for products of these sizes, 12 MB on some processors.
        trained(1, size[1], way, batch, tokens, optimizer, lora)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        measured = trained(*size, way, batch, tokens, optimizer, lora, field("VmRSS"))
        gc.collect()
        options = {
            "memory": "64GiB",
            "optimizer": optimizer,
            "batch": batch,
            "tokens": tokens,
            "ways": [way],
            "grow": False,
        }
        best = integrations.fit(model_of(*size, lora), **options).best
        found[case] = {"said": best.peak, "measured": measured, "at_step": best.at_step}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
