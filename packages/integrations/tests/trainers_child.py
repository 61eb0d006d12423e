"""A rank of two, for ``test_trainers_ranks.py``: transformers' Trainer, accelerate and Lightning, those
of them that are installed, train and resume.

Writes, as JSON, what the rank found: its weights' sums, whether a resumed run ended with the same weights and plan, and
what the report has.
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
import torch.nn.functional as F
from trainer_nets import bert, classifier, equal, points, sentences, weights
from two_ranks import leave

import integrations

# A plan is measured in the second step, and the checkpoint comes right after it.
LEVEL = "L2"


def found(whole, resumed):
    """What both ranks compare, of a run and of one that was resumed: weights, and the handle."""
    (ours, handle), (after, other) = whole, resumed
    plans = [each.state_dict()["adaptive"]["plan"] for each in (handle, other)]
    return {
        "weights": {name: value.double().sum().item() for name, value in ours.items()},
        "resumed": equal(ours, after),
        "plans": plans[0] is not None and plans[0] == plans[1],
        "steps": [handle.step, other.step],
        "ratio": handle.report().ratio,
    }


def of_transformers(folder):
    from transformers import Trainer, TrainingArguments

    from integrations.api.trainers.hf import CompressionCallback

    def run(name, resume=None):
        callback = CompressionCallback(LEVEL, report=folder / f"{name}.json")
        arguments = TrainingArguments(
            output_dir=str(folder / name),
            max_steps=4,
            save_steps=2,
            per_device_train_batch_size=4,
            learning_rate=1e-2,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
        )
        trainer = Trainer(model=bert(), args=arguments, train_dataset=sentences(), callbacks=[callback])
        trainer.train(resume_from_checkpoint=resume)
        return weights(trainer.model), callback.handle

    return found(run("whole"), run("resumed", str(folder / "whole" / "checkpoint-2")))


def of_accelerate(folder):
    import accelerate

    def run(first=0, save=None):
        accelerator = accelerate.Accelerator(cpu=True)
        model = integrations.compress_model(bert(), LEVEL)
        handle = integrations.compression(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(sentences(), batch_size=4)
        wrapped, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        accelerator.register_for_checkpointing(handle)
        if first:
            accelerator.load_state(str(folder))
        for index, batch in enumerate(loader):
            if index < first:
                continue
            accelerator.backward(wrapped(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
            if index + 1 == save:
                accelerator.save_state(str(folder))
        return weights(model), handle

    return found(run(save=2), run(first=2))


def of_lightning(folder, named):
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from integrations.lightning import CompressionCallback

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = classifier()

        def training_step(self, batch, batch_idx):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def run(name, resume=None):
        module, callback = Module(), CompressionCallback(LEVEL, module=named, min_bytes=64)
        trainer = Trainer(
            max_steps=4,
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback, ModelCheckpoint(folder / name, "{step}", every_n_train_steps=2, save_top_k=-1)],
        )
        trainer.fit(module, torch.utils.data.DataLoader(points(), batch_size=16), ckpt_path=resume)
        return weights(module), callback.handle

    return found(run("whole"), run("resumed", folder / "whole" / "step=2.ckpt"))


def main(folder):
    cases = {
        "transformers": ("accelerate", of_transformers),
        "accelerate": ("transformers", of_accelerate),
        "lightning": ("lightning", lambda folder: of_lightning(folder, None)),
        "lightning, net": ("lightning", lambda folder: of_lightning(folder, "net")),
    }
    ours = {}
    for case, (needs, run) in cases.items():
        if importlib.util.find_spec(needs) and importlib.util.find_spec(case.split(",")[0]):
            ours[case] = run(folder / case)
    return ours


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.filterwarnings("error", ".*(compressed|stored)")
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    dist.init_process_group("gloo")
    ours = main(folder)
    (folder / f"{rank}.json").write_text(json.dumps(ours))
    leave()
