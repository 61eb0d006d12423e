"""One of two ranks, for ``test_torchtitan.py``: torchtitan's Trainer and its Llama, on a CPU, in several ways.

Writes, by mesh and way, the metrics of each step into a file of the folder.
"""

import json
import os
import shutil
import sys
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torchtitan.tools.utils as utils
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

# torchtitan knows accelerators only: this is as much of torch.cuda's module as the Trainer asks for.
utils.device_type = "cpu"
utils.device_module = SimpleNamespace(
    set_device=lambda device: None,
    device_count=lambda: 1,
    current_device=lambda: 0,
    synchronize=lambda: None,
    empty_cache=lambda: None,
    reset_peak_memory_stats=lambda: None,
    get_device_name=lambda device: "cpu",
    get_device_properties=lambda device: SimpleNamespace(total_memory=2**34),
    memory_stats=lambda device: {},
)

from torchtitan.components.checkpointer.dcp import CheckpointManager  # noqa: E402
from torchtitan.components.dataloader import BaseDataLoader  # noqa: E402
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss  # noqa: E402
from torchtitan.components.optimizer import default_adamw  # noqa: E402
from torchtitan.components.tokenizer import BaseTokenizer  # noqa: E402
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig  # noqa: E402
from torchtitan.models.common.attention import ScaledDotProductAttention  # noqa: E402
from torchtitan.models.llama3 import model_registry  # noqa: E402
from torchtitan.trainer import Trainer  # noqa: E402

from integrations.torchtitan import Compression, _trainings, compress_config  # noqa: E402

LENGTH, BATCH, STEPS = 128, 4, 3
MESHES = {
    "fsdp": {"data_parallel_shard_degree": 2},
    "tp": {"tensor_parallel_degree": 2},
    "tp, whole norms": {"tensor_parallel_degree": 2, "enable_sequence_parallel": False},
    "dtensor": {"tensor_parallel_degree": 2, "spmd_backend": "partial_dtensor"},
    "pp": {"pipeline_parallel_degree": 2, "pipeline_parallel_schedule": "1F1B"},
    "one": {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 1},
}
WAYS = {
    "plain": None,
    "L1": {"level": "L1", "options": {"min_bytes": 0}},
    "lean": {"level": "lean", "options": {"min_bytes": 0}},
    "plan": {"memory": 0.7, "fallback": "least"},
}
COMPILED = {f"{way}, compiled": WAYS[way] for way in ("plain", "L1", "plan")}


class Tokenizer(BaseTokenizer):
    """There are no words: batches are numbers."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, tokenizer_path=""):
        super().__init__()

    def encode(self, *args, **kwargs):
        raise NotImplementedError

    def decode(self, *args, **kwargs):
        raise NotImplementedError

    def get_vocab_size(self):
        return 2048


class Batches(BaseDataLoader):
    """Drawn tokens, others at each data-parallel rank."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        pass

    def __init__(self, config, dp_rank, local_batch_size, seq_len, **others):
        self.rank, self.shape, self.drawn = dp_rank, (local_batch_size, seq_len + 1), 0

    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(1000 * self.rank + self.drawn)
            self.drawn += 1
            tokens = torch.randint(2048, self.shape, generator=generator)
            positions = torch.arange(self.shape[1] - 1).expand(self.shape[0], -1)
            yield {"input": tokens[:, :-1], "positions": positions.contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {"drawn": self.drawn}

    def load_state_dict(self, state):
        self.drawn = state["drawn"]


class Recorder:
    """Keeps what is logged."""

    def __init__(self):
        self.metrics = []

    def log(self, metrics, step):
        self.metrics.append(metrics)

    def close(self):
        pass


def configuration(mesh, folder, way, compiled=False):
    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:2]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config = Trainer.Config(
        model_spec=spec,
        loss=ChunkedLossWrapper.Config(loss_fn=CrossEntropyLoss.Config(global_vocab_size=2048)),
        optimizer=default_adamw(lr=1e-3),
        tokenizer=Tokenizer.Config(),
        dataloader=Batches.Config(),
        training=TrainingConfig(
            local_batch_size=BATCH,
            seq_len=LENGTH,
            steps=STEPS,
            mixed_precision_param="float32",
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(**MESHES[mesh]),
        checkpoint=CheckpointManager.Config(enable=False, interval=1, last_save_model_only=False),
        activation_checkpoint=None,
        compile=CompileConfig(enable=compiled, components=["model"]),
        dump_folder=str(folder),
    )
    config.metrics.log_freq = 1
    config.debug.seed = 0
    return config if way is None else compress_config(config, **way)


def train(config):
    """The metrics of each step."""
    trainer = config.build()
    trainer.metrics_processor.logger = recorder = Recorder()
    for part in trainer.model_parts:
        for module in part.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no scaled sum
    try:
        trainer.train()
        apart = max(spread(one) for one in norms(trainer)) if trainer.parallel_dims.tp_enabled else 0.0
        counted = [count_in_flight(part) for part in trainer.model_parts]
    finally:
        trainer.close()
    kept = ("loss_metrics/global_avg_loss", "grad_norm")
    return [
        {name: value for name, value in metrics.items() if name in kept or name.startswith("compression/")}
        | {"spread": apart, "in_flight": counted}
        for metrics in recorder.metrics
    ]


def count_in_flight(part):
    """How many micro-batches a part's plan counts; ``None`` without a plan."""
    training = _trainings.get(part)
    plan = None if training is None else training.handle.plan
    return None if plan is None else plan.graph.in_flight


def norms(trainer):
    """The weights of norms, which each rank of tensor parallelism has whole."""
    named = (found for part in trainer.model_parts for found in part.named_parameters())
    return [parameter.detach() for name, parameter in named if "norm" in name]


def spread(weight):
    """The largest difference of a weight between the ranks."""
    local = (weight.to_local() if isinstance(weight, DTensor) else weight).contiguous()
    found = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(found, local)
    return (found[0] - found[1]).abs().max().item()


def saving(folder):
    """A configuration whose checkpoints are saved in each step."""
    config = configuration("fsdp", folder, WAYS["L1"])
    config.checkpoint.enable, config.checkpoint.keep_latest_k = True, 0
    return config


def saved_otherwise(folder):
    """One of another level, in a folder with checkpoints."""
    config = saving(folder)
    config.training.steps = STEPS + 1
    config.activation_checkpoint = Compression.Config(level="L1.1", options={"min_bytes": 0})
    return config


def resumed(folder):
    """The same, where the checkpoint of the first step alone is left."""
    if dist.get_rank() == 0:
        for step in range(2, STEPS + 1):
            shutil.rmtree(folder / "checkpoint" / f"step-{step}")
    dist.barrier()
    return saving(folder)


def run_apart(number, folder, make):
    """What ``train`` finds of a configuration, in a process of its own: meshes of an earlier one are remembered."""
    rank, ranks, file = (
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        folder / f"{number} {os.environ['RANK']}",
    )
    process = os.fork()
    if process:
        assert os.waitpid(process, 0)[1] == 0, number
        return json.loads(file.read_text())
    try:
        torch.autograd.set_multithreading_enabled(False)  # as torchtitan does where it makes the group
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet {number}", rank=rank, world_size=ranks)
        try:
            found = train(make())
        except ValueError as error:
            found = str(error)
        file.write_text(json.dumps(found))
        dist.barrier()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    chosen = sys.argv[2:] or list(MESHES)
    runs = {
        f"{mesh} {name}": partial(configuration, mesh, folder / "dump", way)
        for mesh in chosen
        for name, way in WAYS.items()
    }
    runs |= {
        f"fsdp {name}": partial(configuration, "fsdp", folder / "dump", way, compiled=True)
        for name, way in COMPILED.items()
        if "fsdp" in chosen
    }
    if "pp" in chosen:
        rounded = {"memory": 0.7, "error": 0.1, "fallback": "least"}
        runs["pp rounded plan"] = partial(configuration, "pp", folder / "dump", rounded)
    if chosen == list(MESHES):
        ways = {"whole": saving, "another level": saved_otherwise, "resumed": resumed}
        runs |= {name: partial(way, folder / "resumed") for name, way in ways.items()}
    found = {name: run_apart(number, folder, make) for number, (name, make) in enumerate(runs.items())}
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
