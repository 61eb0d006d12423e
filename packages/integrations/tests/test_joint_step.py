"""The step of a joint graph: its values, what backward reads, what is fused, and bytes by arithmetic."""

import pytest
import torch
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx.experimental.proxy_tensor import make_fx

from integrations.capture.costs.rates import constant
from integrations.runtime.compiled.graph_memory import GraphMemory, can_fuse, get_results
from integrations.runtime.compiled.joint_step import JointStep

from .joint_nets import NETS, build
from .nets import normal

aten = torch.ops.aten
X, W = normal(8, 16), normal(16, 16, seed=1)
FULL = X.nbytes  # of what has the shape of X


def traced(function, *inputs):
    graph = make_fx(function, tracing_mode="fake")(*inputs)
    for node, name in zip(graph.graph.find_nodes(op="placeholder"), ("x", "w", "tangents_1"), strict=False):
        node.name = name
    return graph


def make_step(joint, outputs=1):
    step = JointStep(joint, outputs, constant)
    step.graph.check()
    return step


def joint_of_tanh(x, w, tangents):
    """Of ``(x @ w).tanh() @ w``."""
    product = aten.mm(x, w)
    found = aten.tanh(product)
    output = aten.mm(found, w)
    below = aten.mm(tangents, aten.t(w))
    square = aten.mul(found, found)
    left = aten.mul(below, aten.rsub(square, 1))
    return output, aten.mm(left, aten.t(w)), aten.add(aten.mm(aten.t(x), left), aten.mm(aten.t(found), tangents))


def test_values_reads_and_gradients():
    step = make_step(traced(joint_of_tanh, X, W, X))
    graph = step.graph
    # tanh is read by products: it has memory of its own. The pointwise operators of backward have none but the last.
    assert [op.name for op in graph.ops] == ["aten.mm.default", "aten.tanh.default", "aten.mm.default"]
    assert [op.reads for op in graph.ops] == [(), (0,), (1,)]
    assert [value.nbytes for value in graph.values] == [FULL] * 3
    assert graph.outputs == (2,)
    assert graph.gradients == X.nbytes + W.nbytes
    last = len(graph.ops) + len(graph.steps) - 1
    assert graph.values[2].until == last  # it is returned
    assert graph.values[0].saved == -1
    assert graph.values[1].saved >= len(graph.ops)
    assert {value for one in graph.steps for value in one.reads} == {1}
    assert not step.fused


def test_what_only_fused_operators_read_is_no_value():
    def joint(x, w, tangents):
        inner = aten.sin(aten.mm(x, w))
        output = aten.mm(aten.exp(inner), w)
        return output, aten.mul(tangents, output)

    step = make_step(traced(joint, X, W, X))
    # exp is read by a product, sin by exp alone: it is computed in exp's kernel.
    assert [op.name for op in step.graph.ops] == ["aten.mm.default", "aten.exp.default", "aten.mm.default"]
    assert step.graph.ops[1].reads == (0,)
    assert [node.target for node in step.fused] == [aten.sin.default]


def test_a_fused_operator_that_backward_reads_is_a_value_without_memory_in_the_forward():
    def joint(x, w, tangents):
        inner = aten.sin(aten.mm(x, w))
        output = aten.mm(aten.exp(inner), w)
        return output, aten.mm(aten.t(inner), tangents)

    step = make_step(traced(joint, X, W, X))
    names = [op.name for op in step.graph.ops]
    assert names == ["aten.mm.default", "aten.sin.default", "aten.exp.default", "aten.mm.default"]
    [number] = step.graph.ops[1].makes
    assert step.graph.values[number].until == -1
    assert step.graph.values[number].saved >= 0
    assert step.graph.ops[2].reads == (number,)


def test_views_are_no_values_and_lie_in_what_they_are_of():
    def joint(x, w, tangents):
        product = aten.mm(x, w)
        view = aten.view(product, [16, 8])
        return aten.mm(w, view), aten.mm(aten.t(view), tangents)

    step = make_step(traced(joint, X, W, normal(16, 8)))
    assert [op.name for op in step.graph.ops] == ["aten.mm.default", "aten.mm.default"]
    assert {node.target for node in step.nodes[0]} == {aten.mm.default, aten.view.default}
    assert step.graph.ops[1].reads == (0,)
    assert step.graph.values[0].saved >= 0


def test_what_is_random_is_not_repeated():
    def joint(x, w, tangents):
        output, mask = aten.native_dropout(aten.mm(x, w), 0.5, True)
        return output, aten.mm(aten.t(x), aten.mul(tangents, mask))

    graph = make_step(traced(joint, X, W, X)).graph
    assert {op.name: op.repeatable for op in graph.ops} == {
        "aten.mm.default": True,
        "aten.native_dropout.default": False,
    }
    assert [value.nbytes for value in graph.values] == [FULL, FULL, X.numel()]  # a mask has a byte for each element


@pytest.mark.parametrize("name", NETS)
def test_the_graphs_of_nets_check_and_have_their_bytes(name):
    model, inputs = build(name)
    parameters = dict(model.named_parameters()) | dict(model.named_buffers())

    def function(*given):
        leaves = dict(zip(parameters, given, strict=False))
        output = torch.func.functional_call(model, leaves, given[len(parameters) :])
        return (torch.utils._pytree.tree_leaves(output)[0],)

    model.eval()  # neither draws nor changes statistics
    joint = aot_export_joint_simple(function, (*parameters.values(), *inputs), trace_joint=True)
    step = make_step(joint)
    graph = step.graph
    assert graph.gradients >= 0
    assert any(value.saved >= 0 for value in graph.values)
    assert len(graph.values) == len(step.nodes)
    made = {node for nodes in step.nodes for node in nodes}
    assert made.isdisjoint(step.fused)
    for value, nodes in zip(graph.values, step.nodes, strict=True):
        held = {tensor.untyped_storage().nbytes() for node in nodes for tensor in get_results(node)}
        assert value.nbytes in held


# ---- memory ----


def memory_of(function, *inputs):
    graph = traced(function, *inputs).graph
    return GraphMemory(graph, lambda node: False, lambda node: True)


def test_bytes_alive_follow_from_arithmetic():
    def function(x, w):
        one = aten.mm(x, w)
        two = aten.mm(one, w)
        return aten.mm(aten.add(two, one), w)

    memory = memory_of(function, X, W)
    kernels = memory.kernels()
    # mm; mm; add, which a product reads, so that it has memory; mm.
    assert [node.target for node in kernels] == [aten.mm.default] * 2 + [aten.add.Tensor, aten.mm.default]
    alive = memory.alive(kernels, memory.memories.values(), memory.lasting)
    assert alive == [FULL, 2 * FULL, 3 * FULL, 4 * FULL]  # what a kernel is the last to read counts in the next, too


def test_a_chain_has_three_tensors_at_a_time():
    def function(x, w):
        for _ in range(5):
            x = aten.mm(x, w)
        return x

    memory = memory_of(function, X, W)
    alive = memory.alive(memory.kernels(), memory.memories.values(), memory.lasting)
    assert alive == [FULL, 2 * FULL, 3 * FULL, 3 * FULL, 3 * FULL]
    kept = memory.alive(memory.kernels(), memory.memories.values(), memory.memories.values())
    assert kept == [FULL * count for count in range(1, 6)]


def test_what_can_be_fused():
    graph = traced(joint_of_tanh, X, W, X).graph
    fused = {str(node.target) for node in graph.nodes if node.op == "call_function" and can_fuse(node)}
    assert {"aten.tanh.default", "aten.mul.Tensor"} <= fused
    assert not {"aten.mm.default", "aten.t.default"} & fused
    drawn = traced(lambda x: aten.native_dropout(x, 0.5, True)[0] + aten.rand_like(x), X).graph
    assert not [node for node in drawn.nodes if "rand" in node.name or "dropout" in node.name if can_fuse(node)]
