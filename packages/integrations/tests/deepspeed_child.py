"""One of two ranks, for ``test_deepspeed.py``: a small Llama under one of DeepSpeed's ZeRO stages.

Writes, by way and stage, its losses, warnings, and the bytes and operators of the report into a file of the folder.
"""

import json
import os
import sys
import warnings
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from long_form import LONG
from transformers import LlamaConfig, LlamaForCausalLM
from two_ranks import leave

import integrations
from integrations.deepspeed import initialize

# Without these, small parameters are whole all the time.
PARTITIONS_ALL = {
    f"stage3_{name}": 0
    for name in ("param_persistence_threshold", "max_live_parameters", "max_reuse_distance", "prefetch_bucket_size")
}
CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.05}},
    "zero_allow_untested_optimizer": True,
}


WAYS = {
    "plain": None,
    "L1": {"level": "L1", "min_bytes": 0},
    "lean": {"level": "lean", "min_bytes": 0},
    "chunked": {"level": "L1", "min_bytes": 0, "loss": "chunked"},
    "chunked alone": {"level": "L0", "loss": "chunked"},
    "chunked outside": {"level": "L0", "loss": "chunked"},
    "plan": {"memory": 0.8, "error": 0},
}
LONGER = {"L2": {"level": "L2", "min_bytes": 0}, "error": {"memory": 0.8, "error": 0.1}}
if LONG:
    WAYS |= LONGER


def make():
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    return LlamaForCausalLM(LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **shape))


def step(engine, outside=False):
    tokens = torch.randint(256, (4, 32), generator=torch.Generator().manual_seed(dist.get_rank()))
    if outside:
        logits = engine(input_ids=tokens, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    else:
        loss = engine(input_ids=tokens, labels=tokens).loss
    engine.backward(loss)
    engine.step()
    return loss.item()


def resume(folder):
    """The losses of steps behind a checkpoint, in the run that saved it and in one that is resumed from it."""
    config = {**CONFIG, "zero_optimization": {"stage": 2}, "actcore": {"level": "L1.2", "min_bytes": 0}}
    found = []
    for resumed in (False, True):
        model = make()
        engine = initialize(model=model, config=config, model_parameters=model.parameters())[0]
        if resumed:
            engine.load_checkpoint(folder)
        else:
            step(engine)
            engine.save_checkpoint(folder)
        found.append([step(engine) for _ in range(3)])
    return found


def train(stage, way):
    model, options = make(), WAYS[way]
    zero = {"stage": stage, **(PARTITIONS_ALL if stage == 3 else {})}
    losses, found = [], {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if options is not None:
            integrations.compress_model(model, **options)
        engine = deepspeed.initialize(
            model=model, config={**CONFIG, "zero_optimization": zero}, model_parameters=model.parameters()
        )[0]
        try:
            losses = [step(engine, "outside" in way) for _ in range(13 if way == "error" else 3)]
        except (RuntimeError, ValueError) as error:
            found["refused"] = str(error)
    if options is not None and losses:
        report = integrations.compression(model).report()
        rows = [(row.operator, row.codec) for row in report.rows if not row.owner]
        stored = [report.original_bytes, report.stored_bytes]
        found |= {"bytes": stored, "rows": rows, "said": report.exchanged}
    told = sorted({str(one.message) for one in caught if "logits" in str(one.message)})
    return {"losses": losses, "told": told, **found}


if __name__ == "__main__":
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    found = {f"{way} {stage}": train(stage, way) for stage in (1, 2, 3) for way in WAYS}
    found["resumed"] = resume(str(Path(sys.argv[1], "checkpoints")))
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found), encoding="utf-8")
    leave()
