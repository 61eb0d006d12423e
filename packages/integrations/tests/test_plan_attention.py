"""Attention in a plan that recomputes its result: backward, which computes it anyway, does so once for both."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations.checkpoint import Plan
from integrations.policies.stores import Store
from integrations.runtime.planned_decisions import Numbered

from .nets import Net, gradients, normal
from .planned_values import follow, graph_of

FUSED = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
HEADS, WIDTH = 2, 64


class Calls(TorchDispatchMode):
    """Counts those of the fused kernel."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is FUSED
        return function(*args, **(kwargs or {}))


def heads(x):
    return x.unflatten(-1, (HEADS, -1)).transpose(-2, -3)


def attended(q, k, v, after=lambda out: out):
    return after(F.scaled_dot_product_attention(*map(heads, (q, k, v)))).transpose(-2, -3).flatten(-2)


def separate(model, x):
    return attended(x @ model.q, x @ model.k, x @ model.v) @ model.o


def together(model, x):
    return attended(*(x @ torch.cat([model.q, model.k, model.v], 1)).chunk(3, -1)) @ model.o


def doubled(model, x):
    return attended(x @ model.q, x @ model.k, x @ model.v, lambda out: out * 2) @ model.o


def written(model, x):
    """The same in place, which torch's own attention does not bear: it saves its result."""
    return attended(x @ model.q, x @ model.k, x @ model.v, lambda out: out.mul_(2)) @ model.o


def planned(forward, store=None, again=(), result=None):
    """A layer of attention that recomputes its result, of what waits in such a store, or is recomputed itself. The
    result may wait in a store from then on."""
    weights = {name: normal(WIDTH, WIDTH, seed=seed) / 8 for seed, name in enumerate("qkvo")}
    model, x = Net(forward, **weights).train(), normal(4, 32, WIDTH, seed=9)
    graph = graph_of(model, (x,), rounded=True)
    made = {op.name: op.makes for op in graph.ops}
    names = ("aten._scaled_dot_product_flash_attention_for_cpu.default", "aten.mul_.Tensor", "aten.mul.Tensor")
    results = {value for name in names for value in made.get(name, ())}
    # Three products, or one, come before attention and one after it.
    sources = [op.makes[0] for op in graph.ops if op.name == "aten.mm.default"][:-1]
    left = {sources[place] for place in again}
    stores = {} if store is None else dict.fromkeys(sources, store)
    if result is not None:
        stores[min(results)] = result
    return follow(model, graph, set(range(len(graph.values))) - results - left, stores), x


@pytest.mark.parametrize("store", [None, Store(8), Store(4)], ids=str)
@pytest.mark.parametrize("forward", [separate, together])
def test_it_is_computed_once_for_both(forward, store, monkeypatch):
    """The gradients are those of two computations, bit for bit."""
    found = []
    for shares in (True, False):
        with monkeypatch.context() as patch:
            if not shares:
                patch.setattr(Numbered, "recomputation", lambda *_: None)
            model, x = planned(forward, store)
            with Calls() as calls:
                found.append(gradients(model, x))
            assert calls.count == (2 if shares else 3)  # with that of the forward
    assert all(torch.equal(found[0][name], found[1][name]) for name in "qkvo")


@pytest.mark.parametrize("again", [(0,), (0, 1, 2)])
def test_what_it_reads_is_recomputed_too(again):
    model, x = planned(separate, again=again)
    with Calls() as calls:
        gradients(model, x)
    assert calls.count == 2


def test_what_is_stored_once_it_is_recomputed_is_read_as_it_is_stored():
    """Backward reads a query in 4 bits, and the repetition read the one that these were made from: the sums of its
    softmax are others'. The same gradients as if nothing were shared."""
    model, x = planned(separate, Store(4), again=(0,))
    with Calls() as calls:
        gradients(model, x)
    assert calls.count == 3


def test_a_result_that_is_written_to_is_not_shared():
    model, x = planned(written)
    plain = gradients(Net(doubled, **dict(model.named_parameters())), x)
    with Calls() as calls:
        found = gradients(model, x)
    assert calls.count == 3
    assert all(torch.equal(found[name], plain[name]) for name in "qkvo")


def test_a_retained_graph():
    model, x = planned(separate, Store(8))
    loss = model(x).square().mean()
    with Calls() as calls:
        first = torch.autograd.grad(loss, model.q, retain_graph=True)
        second = torch.autograd.grad(loss, model.q)
    assert torch.equal(*first, *second)
    assert calls.count == 2
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(loss, model.q)


def test_the_search_knows_that_it_is_made_anyway():
    names = {name: normal(WIDTH, WIDTH, seed=seed) / 8 for seed, name in enumerate("qkvo")}
    model, x = Net(separate, **names).train(), normal(4, 32, WIDTH)
    plan = integrations.plan(model, (x,), error=0.1, measure=False)
    (remade,) = [op for op in Plan.from_json(plan.to_json()).rounded.ops if op.remade]
    assert (remade.name, remade.repeat_seconds) == ("aten._scaled_dot_product_flash_attention_for_cpu.default", 0.0)
    assert not any(op.remade for op in plan.graph.ops)  # torch's own attention saves what it has made


@pytest.mark.parametrize(("forward", "result"), [(separate, Store(4)), (doubled, None)], ids=["stored", "not saved"])
def test_a_result_that_nobody_waits_for_is_not_held_for_it(forward, result):
    """One that waits in a store once it is made, or that nobody but others' repetition reads, would lie there as it is
    until attention's own backward."""
    model, x = planned(forward, result=result)
    with Calls() as calls:
        gradients(model, x)
    assert calls.count == 3


def test_at_a_level_it_is_made_for_each():
    """What attention reads is stored in other bits for it than for a repetition."""
    names = {name: normal(WIDTH, WIDTH, seed=seed) / 8 for seed, name in enumerate("qkvo")}
    model, x = Net(separate, **names).train(), normal(4, 32, WIDTH)
    integrations.compress_model(model, "L1", checkpoint="optimal", min_bytes=0)
    gradients(model, x)
    assert not any(op.remade for op in integrations.checkpoint.plan_of(model).graph.ops)
