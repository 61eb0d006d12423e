"""One of two ranks, for ``test_sharded_head.py``: the loss in chunks of models whose last layer the ranks share.

Prints, as JSON, by case: the loss of one rank's plain model and the rank's own, the relative error of all gradients,
what the report says of the loss, and the bytes of the peak beside those of this rank's part of the logits.
"""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from nets import profiled_bytes
from sharded_head_nets import (
    BATCH,
    LENGTH,
    REPLICATED,
    SEQUENCE,
    SHARDED,
    TENSOR,
    UNITS,
    WIDTH,
    WORDS,
    Back,
    Front,
    Net,
    plain,
    tokens,
)
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import RowwiseParallel, loss_parallel, parallelize_module
from two_ranks import leave

import integrations
from integrations.losses import linear_cross_entropy
from integrations.losses.chunked_head import ChunkedHead
from integrations.losses.head import chunk_logits


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


def outcome(losses, exact, model):
    said = integrations.compression(model).report().exchanged
    return {"losses": losses, "error": error(gradients(exact), gradients(model)), "said": said}


def compare(model, exact, ids, loss=None):
    losses = step(exact, ids), step(model, ids, loss)
    found = outcome(losses, exact, model)
    model.zero_grad()
    found["peak"] = profiled_bytes(lambda: step(model, ids, loss))[0]
    return found


def tensor_parallel(case, mesh):
    plan, loss, given, outside = TENSOR[case]
    model = parallelize_module(Net(**given, loss=None if outside else loss), mesh, plan)
    words = given.get("words", WORDS)
    found = compare(compressed(model), Net(**given, loss=loss), tokens(words), loss if outside else None)
    return {**found, "logits": BATCH * LENGTH * (words // 2) * 8}


def shard(model, names, mesh=None, **arguments):
    units = [getattr(model, name) for name in names]
    if units:
        fully_shard(units if len(units) > 1 else units[0], mesh=mesh, **arguments)
    return fully_shard(model, mesh=mesh)


class OnAll(nn.Module):
    """The mean of a model's losses for the inputs of all ranks."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, _):
        return sum(self.model(tokens(WORDS, seed)) for seed in range(2)) / 2


def fully_sharded(case):
    """Two steps of training, the second of which accumulates the gradients of two forwards."""
    names, arguments, loss, outside = UNITS[case]
    rank = dist.get_rank()
    model = shard(Net(loss=None if outside else loss), names, **arguments)
    exact = Net(loss=loss)
    compressed(model)
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
    said = integrations.compression(model).report().exchanged
    peak = profiled_bytes(lambda: step(model, tokens(WORDS, rank), loss if outside else None))[0]
    waiting = model(tokens(WORDS, rank))
    waiting = loss(waiting, tokens(WORDS, rank)) if outside else waiting
    whole = not isinstance(model.head.weight, DTensor)
    waiting.backward()
    found = {"losses": losses, "error": off, "said": said, "whole": whole}
    return {**found, "peak": peak, "logits": BATCH * LENGTH * WORDS * 8}


def both(names):
    """Tensor parallel inside of fully_shard: over both ranks, and beside one of them."""
    found = []
    for shape in ((2, 1), (1, 2)):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
        model = parallelize_module(Net(loss=plain), mesh["tensor"], SHARDED)
        exact, ids = Net(loss=plain), tokens(WORDS, mesh.get_local_rank("data"))
        model = compressed(shard(model, names, mesh=mesh["data"]))
        losses = exact(ids).item(), step(model, ids)
        step(OnAll(exact) if shape == (2, 1) else exact, ids)
        found.append(outcome(losses, exact, model))
    return found


def lean(mesh):
    """The loss in chunks beside a level: losses and errors of gradients without it and with it."""
    found = []
    for chunks in (False, True):
        model = parallelize_module(Net(loss=plain), mesh, SEQUENCE)
        options = {"level": "lean", "min_bytes": 0}
        model = compressed(model, **options) if chunks else integrations.compress_model(model, **options)
        exact = Net(loss=plain)
        losses = step(exact, tokens(WORDS)), step(model, tokens(WORDS))
        stored = integrations.compression(model).report().stored_bytes
        found.append({"losses": losses, "error": error(gradients(exact), gradients(model)), "stored": stored})
    return found


def planned(names):
    """A plan beside the loss in chunks, followed twice."""
    model, exact, ids = shard(Net(loss=plain), names), Net(loss=plain), tokens(WORDS, dist.get_rank())
    integrations.compress_model(model, memory=1.0, error=0, loss={"head": "head"})
    losses = [exact(ids).item(), *(step(model, ids) for _ in range(2))]
    for _ in range(2):
        step(OnAll(exact), None)
    return outcome(losses, exact, model)


def by_plan(mesh):
    """Plans that may choose the loss themselves."""
    found = []
    for model in (parallelize_module(Net(loss=plain), mesh, REPLICATED), shard(Net(loss=plain), ["head"])):
        chunk_logits(model.head, by_plan=True)
        ids = tokens(WORDS)
        found.append([Net(loss=plain)(ids).item(), step(model, ids), ChunkedHead.of(model.head).rows])
    return found


def pipeline():
    """A pipeline of two stages, the last of which makes the logits; beside a model."""
    rank, exact, ids = dist.get_rank(), Net(), tokens(WORDS)
    part = (Front, Back)[rank](Net())
    if rank:
        compressed(part)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=lambda logits, of: F.cross_entropy(logits.flatten(0, 1), of.flatten()))
    losses, labels = [], ids.roll(-1, 1)

    def run():
        given = {"target": labels, "losses": losses} if rank else {}
        schedule.step(*(() if rank else (ids,)), **given, return_outputs=False)

    run()
    whole = F.cross_entropy(exact(ids).flatten(0, 1), labels.flatten())
    whole.backward()
    expected = {name: one for name, one in gradients(exact).items() if name in dict(part.named_parameters())}
    found = {"error": error(expected, gradients(part)), "peak": profiled_bytes(run)[0]}
    said = integrations.compression(part).report().exchanged if rank else ""
    of_parts = sum(loss.item() for loss in losses[:4]) / 4 if rank else whole.item()
    return {**found, "losses": [whole.item(), of_parts], "said": said, "logits": BATCH * LENGTH * WORDS * 8}


def distributed_problem(mesh, words, bias=True):
    """Hidden states, labels, and weight and bias of a layer, plain and as DTensors."""
    torch.manual_seed(0)
    hidden, labels = torch.randn(300, WIDTH, dtype=torch.float64), torch.randint(words, (300,))
    layer = nn.Linear(WIDTH, words, bias=bias).double()
    parameters = [one.detach() for one in layer.parameters()]
    parts = [distribute_tensor(one, mesh, [Shard(0)]).requires_grad_() for one in parameters]
    given = [one.requires_grad_() for one in (hidden, *parameters)]
    return given, labels, [distribute_tensor(hidden.detach(), mesh, [Replicate()]).requires_grad_(), *parts]


def function(mesh, words, bias):
    """``linear_cross_entropy`` of DTensors."""
    given, labels, parts = distributed_problem(mesh, words, bias)
    expected = F.cross_entropy(F.linear(*given), labels)
    found = linear_cross_entropy(parts[0], parts[1], labels, *parts[2:], rows=100)
    pairs = zip(torch.autograd.grad(expected, given), torch.autograd.grad(found, parts), strict=True)
    off = max(((one - other.full_tensor()).norm() / one.norm()).item() for one, other in pairs)
    return {"losses": [expected.item(), whole(found).item()], "error": off}


def refusals(mesh):
    """Calls that raise, by name."""
    _, labels, (hidden, weight, bias) = distributed_problem(mesh, 64)

    def call(*given):
        return lambda: linear_cross_entropy(*given)

    def train(plan):
        return lambda: step(compressed(parallelize_module(Net(loss=plain), mesh, {"head": plan})), tokens(WORDS))

    one = distribute_tensor(torch.zeros(1, WIDTH, dtype=torch.float64), mesh, [Shard(0)])
    return {
        "plain hidden": call(hidden.to_local(), weight, labels),
        "sharded hidden": call(hidden.redistribute(placements=[Shard(0)]), weight, labels),
        "rows of weight": call(hidden, weight.redistribute(placements=[Shard(1)]), labels),
        "plain bias": call(hidden, weight, labels, bias.full_tensor()),
        "no classes": call(hidden, one, labels),
        "sharded labels": call(hidden, weight, distribute_tensor(labels, mesh, [Shard(0)])),
        "label": call(hidden, weight, labels + 64),
        "rowwise": train(RowwiseParallel(input_layouts=Replicate())),
    }


def planned_chunks(mesh):
    """The rows of a chunk in tensor parallel, by a plan with room for larger chunks, and as they were."""
    model, ids = parallelize_module(Net(loss=plain), mesh, REPLICATED), tokens(WORDS)
    integrations.compress_model(model, memory="1GiB", error=0, loss={"head": "head"})
    step(model, ids)
    plan = integrations.compression(model).plan
    return [plan.chunked.rows, ChunkedHead.of(model.head).rows]


def read_afterwards(mesh):
    """What is read of logits after their loss, by the way in which they are placed."""
    found = {}
    for name, plan in {"replicated": REPLICATED, "sharded": SHARDED}.items():
        model, ids = compressed(parallelize_module(Net(), mesh, plan)), tokens(WORDS)
        logits = model(ids)
        with loss_parallel():
            plain(logits, ids)
        reads = {"replicated": [lambda one: one.argmax(-1), torch.exp], "sharded": [lambda one: one.to_local()]}
        found[name] = [refused(partial(read, logits)) for read in reads[name]]
    return found


def replaced(mesh):
    """A loss after the weights of a unit were replaced, in tensor parallel inside of fully_shard."""
    model = parallelize_module(Net(), mesh["tensor"], SHARDED)
    model = compressed(shard(model, ["head"], mesh=mesh["data"]))
    logits = model(tokens(WORDS))
    state = {name: (2 * one).detach() for name, one in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    model.cpu()  # fully_shard looks for new parameters
    return refused(lambda: step(lambda ids: plain(logits, ids), tokens(WORDS)))


def too_late(model):
    """A loss after the optimizer's step."""
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
    found = {case: tensor_parallel(case, mesh) for case in TENSOR}
    found |= {case: fully_sharded(case) for case in UNITS}
    found["both"] = [both(names) for names in ([], ["head"], ["norm", "head"])]
    found["lean"] = lean(mesh)
    found["planned"] = [planned(names) for names in (["head"], ["norm", "head"])]
    found["by plan"] = by_plan(mesh)
    found["pipeline"] = pipeline()
    found["function"] = [function(mesh, words, bias) for words, bias in ((WORDS, True), (WORDS + 1, False))]
    found["refused"] = {name: refused(run) for name, run in refusals(mesh).items()}
    found["planned chunks"] = planned_chunks(mesh)
    found["read afterwards"] = read_afterwards(mesh)
    found["replaced"] = replaced(init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor")))
    found["too late"] = [too_late(shard(Net(), ["head"])), too_late(parallelize_module(Net(), mesh, SHARDED))]
    leave(found)
