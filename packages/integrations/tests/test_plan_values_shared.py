"""One stored copy of a value serves all that read it: autograd for each operator that saves it, and what backward
repeats."""

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations.policies.stores import Store

from .nets import Net, normal
from .planned_values import follow, graph_of


def gated(model, x):
    gate, up = x @ model.gate, x @ model.up
    return ((F.silu(gate) * up) @ model.down).square().mean()


def planned(stores):
    """A gated layer that recomputes its nonlinearity and the product, of what is stored so."""
    model = Net(gated, gate=normal(64, 96), up=normal(64, 96, seed=1), down=normal(96, 64, seed=2)).train()
    x = normal(32, 64, seed=3)
    graph = graph_of(model, (x,), rounded=not all(store is None or store.exact for store in stores))
    named = [number for number, op in enumerate(graph.ops) if op.name == "aten.mm.default"][:2]
    values = [graph.ops[number].makes[0] for number in named]
    others = {
        value for op in graph.ops if op.name not in ("aten.silu.default", "aten.mul.Tensor") for value in op.makes
    }
    chosen = {value: store for value, store in zip(values, stores, strict=True) if store is not None}
    return follow(model, graph, others, chosen), x


class Restored(TorchDispatchMode):
    """Counts what is restored."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.actcore.group_affine_decompress.default
        return function(*args, **(kwargs or {}))


def test_a_repetition_reads_what_autograd_saved():
    """Of gate and up one copy each, 8 bits and 6 an element with two floats for each group of a row of 96; nothing of
    silu(gate), nor of the product."""
    model, x = planned([Store(8), Store(6)])
    loss = model(x)
    report = integrations.compression(model).report()
    count, groups = 32 * 96, 32
    sizes = [count + 8 * groups, count * 6 // 8 + 8 * groups]
    others = 32 * 64 * 4  # of the result, whose square is taken
    assert report.stored_bytes == sum(sizes) + others
    assert sorted(row.why for row in report.rows if row.stored_bytes) == [
        "as planned: 6 bits",
        "as planned: 8 bits",
        "as planned: kept as it is",
    ]
    again = [row for row in report.rows if row.codec == "recomputed"]
    assert {(row.operator, row.why) for row in again} == {
        ("mul", "recomputed for backward"),
        ("matmul", "recomputed for backward"),
    }
    loss.backward()


def test_what_a_repetition_restores_does_not_stay():
    """Backward repeats silu(gate) * up first, with gate restored and then up. What comes next reads up and silu(gate),
    which was made, and then gate for the slope of silu: none finds what the repetition restored, which would have been
    there while others were made."""
    model, x = planned([Store(8), Store(8)])
    loss = model(x)
    with Restored() as restored:
        loss.backward()
    assert restored.count == 4


def test_what_is_kept_as_it_is_takes_no_copy():
    model, x = planned([None, None])
    loss = model(x)
    report = integrations.compression(model).report()
    assert report.stored_bytes == 2 * 32 * 96 * 4 + 32 * 64 * 4
    loss.backward()
