"""One of two ranks, for ``test_ranks_uneven.py``: ranks that do not do the same, and one that dies once.

``torchrun --max-restarts=1 uneven_child.py FOLDER``. Each rank writes what it found into the folder, as JSON. The first
time, rank 1 dies in a step; torchrun then starts both again, and they go on from what was saved.
"""

import copy
import hashlib
import json
import os
import sys
import warnings
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from two_ranks import leave

import integrations
from integrations import checkpoint

LEVELS = "L1", "lean", "L1.2", "L2"
JOINED = {
    "plain": {},
    "L1": {"level": "L1"},
    "lean": {"level": "lean"},
    "L2": {"level": "L2"},  # this one and the next ask the other ranks elsewhere
    "memory": {"memory": 0.8, "error": 0},
}
STEPS, SAVED = 6, 3
DIES = 7  # the exit status of rank 1


def layers():
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())))


def rows(step):
    """A rank's inputs in a step."""
    return torch.randn(64, 64, generator=torch.Generator().manual_seed(2 * step + dist.get_rank()))


def digest(model):
    return hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in model.parameters())).hexdigest()


class Training:
    """A model under DistributedDataParallel and its optimizer; ``prepare`` is given the plain model."""

    def __init__(self, prepare=lambda model: None):
        self.model = layers()
        prepare(self.model)
        self.net = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-2)

    def steps(self, *numbers):
        for number in numbers:
            self.optimizer.zero_grad()
            self.net(rows(number)).square().mean().backward()
            self.optimizer.step()
        return self

    def state(self):
        parts = self.model, self.optimizer, integrations.compression(self.model)
        return [copy.deepcopy(part.state_dict()) for part in parts]

    def load(self, state):
        for part, saved in zip((self.model, self.optimizer, integrations.compression(self.model)), state, strict=True):
            part.load_state_dict(saved)
        return self


def compressed(level=None, **options):
    return Training(lambda model: integrations.compress_model(model, level, **options))


def two_versions(prepare, *asked):
    """Two versions of a plan for the same inputs, of which each rank applies its own."""
    training = Training(lambda model: prepare(model, asked[dist.get_rank()])).steps(*range(4))
    return {"weights": digest(training.model), "plan": str(integrations.compression(training.model)._plan_manager.plan)}


def exact(model, keeps):
    made = checkpoint.plan(model, torch.zeros(64, 64))
    kept = made.choice.mask if keeps else 0
    checkpoint.apply(model, replace(made, choice=replace(made.choice, mask=kept)))


def rounding(model, error):
    integrations.apply(model, integrations.plan(model, torch.zeros(64, 64), memory=0.9, error=error))


def joined(name):
    """Rank 1 has two batches more than rank 0, which has none with a memory, and joins at L2 before there is a plan."""
    training = compressed(**JOINED[name]) if JOINED[name] else Training()
    count = {"memory": 0, "L2": 2}.get(name, 3) + 2 * dist.get_rank()
    with Join([training.net]):
        training.steps(*range(count))
    steps = integrations.compression(training.model).step if JOINED[name] else count
    return {"weights": digest(training.model), "steps": steps}


def first_time(folder):
    found = {
        "plain": digest(Training().steps(*range(4)).model),
        "exact": two_versions(exact, True, False),
        "rounding": two_versions(rounding, 0.1, 0.3),
        "joined": {name: joined(name) for name in JOINED},
        "undisturbed": {level: digest(compressed(level).steps(*range(STEPS)).model) for level in LEVELS},
    }
    for level in LEVELS:
        torch.save(compressed(level).steps(*range(SAVED)).state(), folder / f"{level}.{dist.get_rank()}.pt")
    (folder / f"first.{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    training = compressed("L1")
    if dist.get_rank() == 1:
        training.model[2].register_forward_hook(lambda *given: os._exit(DIES))
    training.steps(0)  # rank 0 waits for the other one's gradients


def restarted(folder):
    found = {}
    for level in LEVELS:
        state = torch.load(folder / f"{level}.{dist.get_rank()}.pt", weights_only=False)
        found[level] = digest(compressed(level).load(state).steps(*range(SAVED, STEPS)).model)
    (folder / f"restarted.{dist.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # models as small as these are stored in hardly fewer bytes
    folder, again = Path(sys.argv[1]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    # A file for each time: torchrun's store may still have the addresses of those that have died.
    meet = f"file://{folder}/meet.{again}"
    dist.init_process_group(
        "gloo", meet, timedelta(seconds=60), rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
    (restarted if again else first_time)(folder)
    leave()
