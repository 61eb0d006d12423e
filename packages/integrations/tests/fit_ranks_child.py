"""One of four ranks, for ``test_fit_ranks.py``: steps of a small Llama under FSDP2 with tensor parallelism, and in a
pipeline whose stages one of them shares.

Prints, as JSON, by case: the most bytes alive in the second step beyond the sharded parameters, those alive between its
forward and its backward, and those of the sharded parameters and gradients.
"""

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from rank_bytes import LiveBytesOfRank, count_local
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM
from two_ranks import leave

import integrations

STYLES = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
}


def llama(options):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**options["config"])).train()
    if options.get("lora"):
        import peft

        config = peft.LoraConfig(r=options["lora"], target_modules="all-linear")
        model = peft.get_peft_model(model, config).get_base_model()
    return model


def parallelize(model, mesh):
    """Shard a model's layers by tensor parallelism, as its own ``tp_plan`` says."""
    plan = {name: STYLES[style]() for name, style in model.tp_plan.items()}
    if model.get_input_embeddings() is None:
        plan = {name: style for name, style in plan.items() if not name.endswith("embed_tokens")}
    parallelize_module(model, mesh, plan)


def run_without_pipeline(options):
    """Run two steps of a model that tensor parallelism and FSDP2 shard. Return the bytes that this rank takes."""
    mesh = init_device_mesh("cpu", (options["fsdp"], options["tp"]), mesh_dim_names=("fsdp", "tp"))
    model = llama(options)
    if options["tp"] > 1:
        parallelize(model, mesh["tp"])
    if options["fsdp"] > 1:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh["fsdp"])
        fully_shard(model, mesh=mesh["fsdp"])
    if options["way"] == "checkpoint":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if options["way"] in ("lean", "L1"):
        integrations.compress_model(model, level=options["way"])
    ids = (
        torch.arange(options["batch"] * options["tokens"]).view(options["batch"], -1) % options["config"]["vocab_size"]
    )
    with LiveBytesOfRank() as live:
        for _ in range(2):
            live.peak = live.read_settled()
            loss = model(input_ids=ids, labels=ids).loss
            between = live.read_settled()
            loss.backward()
            del loss
            live.read()
            gradients = count_local(one.grad for one in model.parameters())
            model.zero_grad()
    weights = count_local(model.parameters())
    return {"peak": live.peak, "between": between, "weights": weights, "gradients": gradients}


class Stage(nn.Module):
    """A part of the model's layers."""

    def __init__(self, model, number, count):
        super().__init__()
        base, self.first, self.last = model.model, number == 0, number == count - 1
        size = len(base.layers) // count
        base.layers = base.layers[number * size : (number + 1) * size]
        base.config.num_hidden_layers = size
        if not self.first:
            base.embed_tokens = None
        if not self.last:
            base.norm = nn.Identity()
        self.model = model if self.last else base

    def forward(self, given):
        out = self.model(**{"input_ids" if self.first else "inputs_embeds": given})
        return out.logits if self.last else out.last_hidden_state


def run_stage(options):
    """Run two steps of a pipeline's stage that FSDP2 or tensor parallelism shards. Return the bytes that it takes."""
    count, micro_batches = options["pp"], options["micro_batches"]
    sizes = (count, options["fsdp"], options["tp"])
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "fsdp", "tp"))
    number = mesh.get_local_rank("pp")
    whole = llama(options)
    loss_of, words = whole.loss_function, options["config"]["vocab_size"]
    module = Stage(whole, number, count)
    if options["way"] == "checkpoint":
        module.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    base = module.model.model if module.last else module.model
    if options["tp"] > 1:
        parallelize(module.model, mesh["tp"])
    if options["fsdp"] > 1:
        for layer in base.layers:
            fully_shard(layer, mesh=mesh["fsdp"], reshard_after_forward=False)
        fully_shard(module, mesh=mesh["fsdp"], reshard_after_forward=False)
    del whole, base
    stage = PipelineStage(module, number, count, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = Schedule1F1B(
        stage, micro_batches, loss_fn=lambda logits, labels: loss_of(logits=logits, labels=labels, vocab_size=words)
    )
    ids = torch.arange(micro_batches * options["batch"] * options["tokens"]) % words
    ids = ids.view(micro_batches * options["batch"], -1)
    with LiveBytesOfRank() as live:
        for _ in range(2):
            live.peak = live.read_settled()
            if module.last:
                schedule.step(target=ids, losses=[], return_outputs=False)
            else:
                schedule.step(*([ids] if module.first else []))
            live.read()
            module.zero_grad()
    return {"peak": live.peak, "stage": number}


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    cases = json.loads(Path(f"{sys.argv[1]}.json").read_text())
    leave({name: (run_stage if case["pp"] > 1 else run_without_pipeline)(case) for name, case in cases.items()})
