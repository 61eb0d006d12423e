"""One of two ranks, for ``test_formulas_gathers.py``: what backward gathers again at ``lean``.

Prints, as JSON, for each case: the collectives of the plain and of the compressed backward in order, the largest
relative error of a parameter's gradient, and how the inputs of linear layers are stored.
"""

import datetime
import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from libraries import TORCH
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from two_ranks import leave

import integrations

ROWS, FEATURES = 64, 96
RANK = int(os.environ["RANK"])


class Collectives(TorchDispatchMode):
    """Notes the collectives that run, each with the shape of its result."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it calls operators on its part, which come here
        out = func(*args, **(kwargs or {}))
        name = str(func).split(".")[1]
        if func.namespace == "_c10d_functional" and not name.startswith(("wait", "_wrap")):
            self.seen.append((name, *out.shape))
        return out


class Net(nn.Module):
    """Layers of which each rank has some columns. ``forward`` calls ``function(net, h)``."""

    compressed = False

    def __init__(self, mesh, function):
        super().__init__()
        torch.manual_seed(0)

        def place(shape, placement):
            return nn.Parameter(distribute_tensor(torch.randn(shape), mesh, [placement]))

        self.mesh, self.function = mesh, function
        self.before = place((FEATURES, FEATURES), Replicate())
        self.query, self.key, self.value = (place((FEATURES, FEATURES), Shard(0)) for _ in range(3))
        self.norm = place((FEATURES,), Replicate())

    def forward(self, x):
        return self.function(self, F.linear(x, self.before))


def gather(h):
    return h.redistribute(placements=[Replicate()])


def normed(net, h):
    return gather(F.layer_norm(h, (FEATURES,), net.norm))


def one(net, h):
    return F.linear(normed(net, h), net.query)


def added(net, g):
    return F.linear(g, net.query) + F.linear(g, net.key) + F.linear(g, net.value)


def three(net, h):
    return added(net, normed(net, h))


def through_local(net, h):
    """As of ``PrepareModuleInput``, before layers that take local tensors."""
    g = DTensor.from_local(normed(net, h).to_local(), net.mesh, [Replicate()], run_check=False)
    return added(net, g.view(-1, FEATURES))


def stored(net, h):
    """No norm from which the shard could be recomputed."""
    return F.linear(gather(h).view(-1, FEATURES), net.query)


def repeated(net, h):
    """Between two readers of the gathered tensor, backward recomputes another one on rank 1, which rank 0 has shown."""
    g = normed(net, h)
    last = F.linear(g, net.query)
    between = F.silu(last)
    if RANK == 0:
        between.to_local().data_ptr()
    return F.linear(g, net.key) + between * last.tanh()


def shown(net, h):
    """Rank 0 has shown the gathered tensor and its shard to code that may write to them."""
    y = F.layer_norm(h, (FEATURES,), net.norm)
    g = gather(y)
    if RANK == 0:
        y.to_local().data_ptr()
        g.to_local().data_ptr()
    return added(net, g)


def shown_later(net, h):
    g = normed(net, h)
    first = F.linear(g, net.query)
    if RANK == 0:
        g.to_local().data_ptr()
    return first + F.linear(g, net.key)


def halved(g):
    """Half of a tensor, whose gradient is passed on whole."""
    return g - 0.5 * g.detach()


def overwritten(net, h):
    """All ranks change the gathered tensor without a change of its version. A plain model would lose what it saved."""
    g = normed(net, h)
    first = F.linear(g, net.query)
    if not net.compressed:
        return first + F.linear(halved(g), net.key)
    g.to_local().data.mul_(0.5)
    return first + F.linear(g, net.key)


def overwritten_first(net, h):
    g = normed(net, h)
    if not net.compressed:
        return F.linear(halved(g), net.key)
    g.to_local().data.mul_(0.5)
    return F.linear(g, net.key)


def read_before(net, h):
    """The gathered tensor is stored for an activation anyway."""
    g = normed(net, h)
    return F.silu(g).sum() + F.linear(g, net.query)


def cast(net, h):
    with torch.autocast("cpu", torch.bfloat16):
        return three(net, h).float()


def in_place(net, h):
    return F.linear(normed(net, h).mul_(2), net.query)


FUNCTIONS = {
    **{function.__name__: function for function in (one, three, through_local, stored, repeated, shown, shown_later)},
    **{function.__name__: function for function in (overwritten, overwritten_first, read_before, cast, in_place)},
}


def whole(tensors):
    return [tensor.full_tensor() for tensor in tensors if tensor is not None]


def backward(output):
    output.square().sum().backward()


def twice(output):
    loss = output.square().sum()
    loss.backward(retain_graph=True)
    loss.backward()


def compare(mesh, function, run=backward, dim=0, rows=ROWS, forwards=1, steps=1, **options):
    """What the last steps of a plain and of a compressed model find, in which several forwards may come before their
    backwards, as in a pipeline."""
    torch.manual_seed(1)
    x = torch.randn(rows, FEATURES) if dim == 0 else torch.randn(2, rows, FEATURES)
    x = distribute_tensor(x, mesh, [Shard(dim)])
    options = {"level": "lean", "bits": 8, "norm_bits": 8, "min_bytes": 0, **options}
    model = integrations.compress_model(Net(mesh, function), **options)
    model.compressed = True
    orders, gradients = [], []
    for net in (Net(mesh, function), model):
        for _ in range(steps):
            net.zero_grad()
            outputs = [net(x) for _ in range(forwards)]
            with Collectives() as mode:
                for output in outputs:
                    run(output)
        orders.append(mode.seen)
        gradients.append(whole(one.grad for one in net.parameters()))
    rows = integrations.compression(model).report().rows
    return {
        "orders": orders,
        "error": max(((found - exact).norm() / exact.norm()).item() for exact, found in zip(*gradients, strict=True)),
        "stored": [
            (row.codec.partition("(")[0], row.stored_bytes)
            for row in rows
            if row.operator == "linear" and not row.owner
        ],
        "sum": [gradient.double().sum().item() for gradient in gradients[1]],
    }


def of_a_part(mesh):
    """Gradients of some layers, and then of all."""

    def run(output):
        loss, net = output.square().sum(), nets.pop(0)
        torch.autograd.grad(loss, [net.key], retain_graph=True)
        loss.backward()

    nets = []

    def function(net, h):
        nets.append(net)
        return three(net, h)

    return compare(mesh, function, run)


def outside(mesh):
    """What reading a gathered tensor raises where no backward runs."""
    model = integrations.compress_model(Net(mesh, one), "lean", min_bytes=0)
    output = model(distribute_tensor(torch.randn(ROWS, FEATURES), mesh, [Shard(0)]))
    node = output.grad_fn
    try:
        node._saved_self  # noqa: B018
    except RuntimeError as error:
        return str(error)
    return ""


def second_derivative(mesh):
    """What a gradient of a gradient warns of."""
    model = integrations.compress_model(Net(mesh, one), "lean", min_bytes=0)
    x = distribute_tensor(torch.randn(ROWS, FEATURES), mesh, [Shard(0)]).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
    return [str(warning.message) for warning in caught]


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks = int(os.environ["WORLD_SIZE"])
    meet, limit = f"file://{sys.argv[1]}", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meet, rank=RANK, world_size=ranks, timeout=limit)
    mesh = init_device_mesh("cpu", (ranks,))
    found = {name: compare(mesh, function) for name, function in FUNCTIONS.items()}
    # Before torch 2.12 no linear layer takes a DTensor that is sharded in the middle.
    for function in (three, through_local, stored) if TORCH >= (2, 12) else ():
        found[f"{function.__name__}, dim 1"] = compare(mesh, function, dim=1)
    found["third step"] = compare(mesh, three, steps=3)
    found["two forwards"] = compare(mesh, three, forwards=2)
    found["uneven"] = compare(mesh, three, rows=ROWS + 1)
    found["twice"] = compare(mesh, three, twice)
    found["of a part"] = of_a_part(mesh)
    found["planned"] = compare(mesh, three, memory="least")
    found["local"] = compare(mesh, three, recompute="local")
    found["outside"], found["second derivative"] = outside(mesh), second_derivative(mesh)
    leave(found)
