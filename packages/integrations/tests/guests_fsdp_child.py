"""One of two ranks, for ``test_guests_fsdp.py``: a Llama of transformers under ``fully_shard``, in mixed precision, at
lean and with a loss in chunks, beside a sharded one as it is.

Prints, as JSON, for each case what the rank found.
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig, LlamaForCausalLM
from two_ranks import leave

import integrations
from integrations.hf import compress_model

CLASSES = 512
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES = {  # arguments of compress_model, whether it comes before fully_shard, and the policy
    "exact, float32": ({"level": "L0", "loss": "chunked"}, True, None),
    "exact": ({"level": "L0", "loss": "chunked"}, True, MIXED),
    "lean": ({"level": "lean", "loss": "chunked"}, True, MIXED),
    "lean, compressed after": ({"level": "lean", "loss": "chunked"}, False, MIXED),
    "lean, checkpointed": ({"level": "lean", "loss": "chunked"}, True, MIXED),
}


def llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=CLASSES, num_key_value_heads=2, use_cache=False, **SIZES)).train()


def sharded(model, policy):
    """Each layer, and the rest of the model with its head."""
    mesh = init_device_mesh("cpu", (2,))
    given = {} if policy is None else {"mp_policy": policy}
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, **given)
    return fully_shard(model, mesh=mesh, **given)


def step(model, rank):
    """The loss, and the averaged gradients, whole."""
    ids = torch.randint(CLASSES, (4, 64), generator=torch.Generator().manual_seed(3 + rank))
    model.zero_grad()
    loss = model(input_ids=ids, labels=ids.masked_fill(ids % 7 == 0, -100)).loss
    loss.backward()
    return loss.item(), torch.cat([one.grad.full_tensor().flatten().double() for one in model.parameters()])


def case(name, rank):
    options, before, policy = CASES[name]
    expected = step(sharded(llama(), policy), rank)
    model = llama()
    if "checkpointed" in name:
        model.gradient_checkpointing_enable()
    model = compress_model(model, **options) if before else model
    model = sharded(model, policy)
    model = model if before else compress_model(model, **options)
    step(model, rank)  # the second repeats what the first decided
    loss, gradient = step(model, rank)
    report = integrations.compression(model).report()
    return {
        "loss": abs(loss - expected[0]) / expected[0],
        "error": ((gradient - expected[1]).norm() / expected[1].norm()).item(),
        "sum": gradient.sum().item(),
        "exchanged": report.exchanged,
        "ratio": report.ratio,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=FutureWarning)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=2)
    leave({name: case(name, rank) for name in CASES})
