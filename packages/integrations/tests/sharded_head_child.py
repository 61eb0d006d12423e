"""One of two ranks, for ``test_sharded_head.py``: the loss in chunks of models whose last layer the ranks share.

Prints, as JSON, by case: the loss of one rank's plain model and the rank's own, the relative error of all gradients,
what the report says of the loss, and the bytes of the peak beside those of this rank's part of the logits.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import profiled_bytes
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from two_ranks import leave

import integrations
from integrations.losses import linear_cross_entropy

WIDTH, WORDS, BATCH, LENGTH = 32, 1024, 8, 128


class Net(nn.Module):
    """A language model that returns its logits, or its loss."""

    def __init__(self, words=WORDS, bias=True, loss=None):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.up, self.down = nn.Embedding(words, WIDTH), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=bias)
        self.loss = loss
        self.double()

    def forward(self, tokens):
        x = self.embedding(tokens)
        x = x + self.down(torch.tanh(self.up(x)))
        logits = self.head(self.norm(x))
        return logits if self.loss is None else self.loss(logits, tokens)


def tokens(words, seed=1):
    return torch.randint(words, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def labels_of(ids):
    """The labels of rows: the next word; every seventh is ignored, and so is the whole first sequence."""
    labels = ids.roll(-1, 1).flatten().clone()
    labels[::7], labels[:LENGTH] = -100, -100
    return labels


# ---- what is done to the logits ----


def plain(logits, ids):
    return F.cross_entropy(logits.flatten(0, 1), labels_of(ids))


def options(logits, ids):
    weight = torch.linspace(0.5, 2, logits.shape[-1], dtype=torch.float64)
    scaled = 3 * torch.tanh(logits.flatten(0, 1) * 0.7 / 3)
    return F.cross_entropy(scaled, labels_of(ids), weight, label_smoothing=0.1, reduction="sum") / 1000


def each_row(logits, ids):
    rows = F.cross_entropy(logits.flatten(0, 1), labels_of(ids), reduction="none")
    return (rows * torch.linspace(0, 1, rows.numel(), dtype=rows.dtype)).sum() / 100


def log_probabilities(logits, ids):
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:].unsqueeze(-1))
    return (chosen * torch.linspace(0, 1, chosen.numel(), dtype=chosen.dtype).view(chosen.shape)).mean()


def selective(logits, ids):
    chosen = logits[:, :-1].gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return (chosen - logits[:, :-1].logsumexp(-1)).square().mean()


def entropy(logits, ids):
    """Which takes whole logits."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean() + logits.argmax(-1).double().mean()


def rows_kept(logits, ids):
    """The same on a view of rows, as transformers cuts them."""
    return F.cross_entropy(logits[:, :-1].double().reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))


# ---- models ----

BODY = {"up": ColwiseParallel(), "down": RowwiseParallel()}
REPLICATED = {**BODY, "head": ColwiseParallel(output_layouts=Replicate())}
SHARDED = {**BODY, "head": ColwiseParallel(use_local_output=False)}
SEQUENCE = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
}
GATHERED = {**SEQUENCE, "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}

TENSOR = {  # the plan of parallelize_module, what is done to the logits, and arguments of the model
    "replicated": (REPLICATED, plain, {}),
    "replicated, options": (REPLICATED, options, {}),
    "replicated, each row": (REPLICATED, each_row, {}),
    "replicated, uneven": (REPLICATED, plain, {"words": WORDS + 1}),
    "replicated, options, uneven": (REPLICATED, options, {"words": WORDS + 1, "bias": False}),
    "replicated, log-probabilities": (REPLICATED, log_probabilities, {}),
    "replicated, selective": (REPLICATED, selective, {}),
    "replicated, rows": (REPLICATED, rows_kept, {}),
    "sharded": (SHARDED, plain, {}),
    "sharded, no bias": (SHARDED, plain, {"bias": False}),
    "sharded, options": (SHARDED, options, {}),
    "sharded, uneven": (SHARDED, plain, {"words": WORDS + 1}),
    "sequence": (SEQUENCE, plain, {}),
    "sequence, options": (SEQUENCE, options, {}),
    "sequence, gathered": (GATHERED, plain, {}),
    "whole": (REPLICATED, entropy, {}),
}


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def step(model, ids, loss=None):
    with loss_parallel():
        found = model(ids)
        found = found if loss is None else loss(found, ids)
        found.backward()
    return whole(found.detach()).item()


def gradients(model):
    return {name: whole(one.grad) for name, one in model.named_parameters()}


def error(expected, found):
    """The largest relative error of a gradient, in the Euclidean norm."""
    return max(((found[name] - one).norm() / one.norm()).item() for name, one in expected.items())


def compressed(model, **given):
    return integrations.compress_model(model, **{"level": "L0", **given}, loss={"head": "head"})


def compare(model, exact, ids, loss=None):
    losses = step(exact, ids), step(model, ids, loss)
    found = {
        "losses": losses,
        "error": error(gradients(exact), gradients(model)),
        "said": integrations.compression(model).report().exchanged,
    }
    model.zero_grad()
    found["peak"] = profiled_bytes(lambda: step(model, ids, loss))[0]
    return found


def tensor_parallel(case, mesh, outside):
    plan, loss, given = TENSOR[case]
    model = parallelize_module(Net(**given, loss=None if outside else loss), mesh, plan)
    words = given.get("words", WORDS)
    found = compare(compressed(model), Net(**given, loss=loss), tokens(words), loss if outside else None)
    return {**found, "logits": BATCH * LENGTH * (words // 2) * 8}


UNITS = {  # what fully_shard is given before the model, its arguments, what is done to the logits
    "unit": (["head"], {}, plain),
    "unit, each row": (["head"], {}, each_row),
    "unit, log-probabilities": (["head"], {}, log_probabilities),
    "unit, selective": (["head"], {}, selective),
    "unit, kept": (["head"], {"reshard_after_forward": False}, plain),
    "unit, whole": (["head"], {}, entropy),
    "group": (["norm", "head"], {}, plain),
    "group, each row": (["norm", "head"], {}, each_row),
    "group, kept": (["norm", "head"], {"reshard_after_forward": False}, plain),
    "group, whole": (["norm", "head"], {}, entropy),
}


def shard(model, names, **arguments):
    units = [getattr(model, name) for name in names]
    fully_shard(units if len(units) > 1 else units[0], **arguments)
    return fully_shard(model)


class OnAll(nn.Module):
    """The mean of a model's losses for the inputs of all ranks."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, _):
        return sum(self.model(tokens(WORDS, seed)) for seed in range(2)) / 2


def fully_sharded(case, outside, level):
    """Two steps of training, the second of which accumulates the gradients of two forwards."""
    names, arguments, loss = UNITS[case]
    rank = dist.get_rank()
    model = shard(Net(loss=None if outside else loss), names, **arguments)
    exact, found = Net(loss=loss), compressed(model, level=level)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (exact, model)]
    losses = []
    for forwards in (1, 2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for number in range(forwards):
            model.set_requires_gradient_sync(number == forwards - 1)
            ours = step(model, tokens(WORDS, rank), loss if outside else None)
            step(OnAll(exact), None)
            losses.append((exact(tokens(WORDS, rank)).item(), ours))
        off = error(gradients(exact), gradients(model))
        for optimizer in optimizers:
            optimizer.step()
    said = integrations.compression(found).report().exchanged
    peak = profiled_bytes(lambda: step(model, tokens(WORDS, rank), loss if outside else None))[0]
    return {"losses": losses, "error": off, "said": said, "peak": peak, "logits": BATCH * LENGTH * WORDS * 8}


def too_late():
    """A loss after the optimizer's step."""
    model = shard(Net(), ["head"])
    compressed(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step(model, tokens(WORDS), plain)
    logits = model(tokens(WORDS))
    optimizer.step()
    return refused(lambda: plain(logits, tokens(WORDS)))


def refused(run):
    try:
        run()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    found = {}
    for case in TENSOR:
        for outside in (False, True):
            found[f"{case}, {'outside' if outside else 'inside'}"] = tensor_parallel(case, mesh, outside)
    for case in UNITS:
        for outside in (False, True):
            found[f"{case}, {'outside' if outside else 'inside'}"] = fully_sharded(case, outside, "L0")
    found["too late"] = too_late()
    leave(found)
