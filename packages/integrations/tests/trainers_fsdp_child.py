"""A rank of two, for ``test_trainers_fsdp.py``: trainers that shard a model themselves, with FSDP2.

Reads the cases from ``cases.json``: a library, a way, and when the model is compressed. Writes, as JSON, what the rank
found in each beside the same training without compression.
"""

import importlib.util
import json
import logging
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from two_ranks import leave

import integrations

CLASSES, ROWS = 128, 2  # rows of a step, on each rank
BATCHES, EPOCHS = 2, 2  # a checkpoint comes after the first epoch
LAYER = "LlamaDecoderLayer"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
WAYS = {  # the arguments of compress_model
    "L1": {"level": "L1", "min_bytes": 0},
    "lean": {"level": "lean", "min_bytes": 0},
    "exact plan": {"memory": 0.8},
}
RESUMED = ("L1", "exact plan")


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=CLASSES, num_key_value_heads=2, use_cache=False, **SIZES)).train()


def texts():
    """Token ids and labels of both ranks."""
    ids = torch.randint(CLASSES, (2 * ROWS * BATCHES, 32), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row.masked_fill(row % 7 == 0, -100)} for row in ids]


def as_on_a_gpu():
    """Has accelerate take an ``fsdp_plugin`` as it does on a GPU. On a CPU it leaves the plugin out."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    made = AcceleratorState.__init__

    def make(self, *args, fsdp_plugin=None, **kwargs):
        made(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            if self.mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self.mixed_precision)
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = make


def fresh_accelerate():
    """Accelerate keeps its settings for all of a process."""
    import accelerate

    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    return accelerate


class Watched:
    """What a training left.

    Attributes:
        losses: of each step.
        gradient: the averaged gradient of the first step, whole.
        model, handle: the sharded model, and its handle if it is compressed.
    """

    def __init__(self):
        self.losses, self.gradient, self.model, self.handle = [], None, None, None

    def look(self, model):
        if self.gradient is None:
            grads = [one.grad for one in model.parameters()]
            self.gradient = torch.cat([one.full_tensor().flatten().double() for one in grads])

    def over(self, model, handle):
        self.model, self.handle = model, handle
        return self

    def has_weights_of(self, other):
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return all(torch.equal(one.full_tensor(), two.full_tensor()) for one, two in pairs)


# ---- trainings; ``when`` is empty for one without compression ----


def with_accelerate(options, when, folder, resumes=False, mixed="no"):
    accelerate = fresh_accelerate()
    plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[LAYER]
    )
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision=mixed, fsdp_plugin=plugin)
    model, watched = llama(), Watched()
    if when == "before":
        integrations.compress_model(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(texts(), batch_size=ROWS))
    if when == "after":
        integrations.compress_model(model, **options)
    handle = integrations.compression(model) if when else None
    if handle is not None:
        accelerator.register_for_checkpointing(handle)
    if resumes:
        accelerator.load_state(str(folder))
    for epoch in range(resumes, EPOCHS):
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            watched.losses.append(loss.item())
            watched.look(model)
            optimizer.step()
            optimizer.zero_grad()
        if epoch == 0:
            accelerator.save_state(str(folder))
    return watched.over(model, handle)


def with_accelerate_in_bf16(options, when, folder, resumes=False):
    return with_accelerate(options, when, folder, resumes, "bf16")


def with_transformers(options, when, folder, resumes=False):
    import transformers

    from integrations.api.trainers.hf import CompressionCallback

    fresh_accelerate()
    watched = Watched()

    class Watching(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
            watched.look(model)

    model, callback = llama(), CompressionCallback(**options) if when else None
    if when == "before":
        integrations.compress_model(model, **options)
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(folder),
            fsdp=True,
            fsdp_config={"version": 2, "transformer_layer_cls_to_wrap": [LAYER]},
            max_steps=BATCHES * EPOCHS,
            save_steps=BATCHES,
            per_device_train_batch_size=ROWS,
            learning_rate=1e-3,
            max_grad_norm=0,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=texts(),
        callbacks=[Watching(), *([callback] if callback else [])],
    )
    trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{BATCHES}") if resumes else None)
    watched.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return watched.over(trainer.model, callback and callback.handle)


def with_lightning(options, when, folder, resumes=False):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from integrations.lightning import CompressionCallback

    watched = Watched()

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = llama()

        def configure_model(self):
            if when == "before":
                integrations.compress_model(self.net, **options)
            mesh = self.device_mesh["data_parallel"]
            for layer in self.net.model.layers:
                fully_shard(layer, mesh=mesh)
            fully_shard(self.net, mesh=mesh)

        def training_step(self, batch, batch_idx):
            loss = self.net(**batch).loss
            watched.losses.append(loss.item())
            return loss

        def on_after_backward(self):
            watched.look(self.net)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    module, callback = Module(), CompressionCallback(module="net", **options) if when else None
    trainer = Trainer(
        max_steps=BATCHES * EPOCHS,
        accelerator="cpu",
        devices=2,
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[
            ModelCheckpoint(folder, "{step}", every_n_train_steps=BATCHES, save_top_k=-1),
            *([callback] if callback else []),
        ],
    )
    trainer.fit(
        module,
        DataLoader(texts(), batch_size=ROWS),
        ckpt_path=folder / f"step={BATCHES}.ckpt" if resumes else None,
    )
    return watched.over(module.net, callback and callback.handle)


LIBRARIES = {
    "accelerate": with_accelerate,
    "accelerate, bf16": with_accelerate_in_bf16,
    "transformers": with_transformers,
    "lightning": with_lightning,
}


def on_one_rank(options):
    """What one forward of as many rows saves without sharding, before and after."""
    model = integrations.compress_model(llama(), **options)
    for _ in range(2):  # the second repeats what the first decided
        inputs = {name: torch.stack([row[name] for row in texts()[:ROWS]]) for name in ("input_ids", "labels")}
        model(**inputs).loss.backward()
        model.zero_grad()
    report = integrations.compression(model).report()
    return [report.original_bytes, report.stored_bytes]


def compared(plain, found, resumed=None):
    """What a training found beside the one without compression."""
    report = found.handle.report()
    return {
        "sharded": type(found.model).__name__.startswith("FSDP"),
        "losses": [plain.losses, found.losses],
        "error": ((found.gradient - plain.gradient).norm() / plain.gradient.norm()).item(),
        "sum": found.gradient.sum().item(),
        "weights": found.has_weights_of(plain),
        "resumed": None if resumed is None else resumed.has_weights_of(found),
        "bytes": [report.original_bytes, report.stored_bytes],
        "recomputed": sum(row.codec == "recomputed" for row in report.rows),
    }


def main(folder, cases):
    found = {"one rank": {way: on_one_rank(options) for way, options in WAYS.items()}}
    for library, train in LIBRARIES.items():
        if not importlib.util.find_spec(library.split(",")[0]):
            continue
        plain = train({}, "", folder / library)
        for way, options in WAYS.items():
            for when in (case[2] for case in cases if case[:2] == [library, way]):
                name = f"{library}, {way}, {when}"
                whole = train(options, when, folder / name)
                again = when == "after" and way in RESUMED and library != "accelerate, bf16"
                resumed = train(options, when, folder / name, True) if again else None
                found[name] = compared(plain, whole, resumed)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("error", ".*(compressed|stored|not the one that was captured)")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    dist.init_process_group("gloo")
    if importlib.util.find_spec("accelerate"):
        as_on_a_gpu()
    found = main(folder, json.loads((folder / "cases.json").read_text()))
    (folder / f"{rank}.json").write_text(json.dumps(found))
    leave()
