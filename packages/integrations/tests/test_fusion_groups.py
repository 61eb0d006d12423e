"""Which kernels inductor may fuse, and the bytes that are alive then, by arithmetic and under inductor."""

import itertools
from functools import partial

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint as checkpointed

import integrations
from integrations.runtime.compiled import partition
from integrations.runtime.compiled.graph_memory import GraphMemory

from .joint_nets import second_peak, trace_joint
from .libraries import library_or_skip
from .nets import normal, profiled_bytes

aten = torch.ops.aten
X, W = normal(8, 16), normal(16, 16, seed=1)
FULL = X.nbytes  # of what has the shape of X


def count(function, *inputs, changed=()):
    """By kernel of a function's graph: its name and the tensors of X's size that are alive, fused and not."""
    graph = make_fx(function, tracing_mode="fake")(*inputs).graph
    memory = GraphMemory(graph, lambda node: False, lambda node: True, joins_sums=True)
    kernels = memory.kernels()
    with torch._inductor.config.patch(dict(changed)):
        groups = memory.find_groups(kernels)
    memories = memory.memories.values()
    alive = [
        memory.alive(kernels, memories, memory.lasting, groups=groups, is_fused=is_fused) for is_fused in (True, False)
    ]
    names = [node.target.overloadpacket.__name__ for node in kernels]
    return names, *([nbytes / FULL for nbytes in one] for one in alive)


def test_what_a_product_reads_is_free_behind_it():
    def chain(x, w):
        for _ in range(4):
            x = aten.mm(x, w)
        return x

    for alive in count(chain, X, W)[1:]:
        assert alive == [1, 2, 2, 2]


def gated(x, w):
    """Backward of ``silu(gate) * up``: the sigmoid is stored, since two operators read it."""
    gate, up, given = aten.mm(x, w), aten.mm(x, w), aten.mm(x, w)
    sigmoid = aten.sigmoid(gate)
    one = aten.mul(aten.mul(given, up), aten.mul(sigmoid, aten.sub(2, sigmoid)))
    return aten.mm(one, w)


def test_a_result_that_only_the_fused_kernel_reads_has_no_memory():
    """The fused kernel also writes its result over a product of matrices that nothing else reads."""
    names, fused, unfused = count(gated, X, W)
    assert names == ["mm", "mm", "mm", "sigmoid", "mul", "mm"]
    assert fused == [1, 2, 3, 3, 3, 2]
    assert unfused == [1, 2, 3, 3, 3, 2]


def test_a_sum_over_rows_is_a_kernel_of_its_own():
    """As the gradient of a bias: on a CPU it goes through the elements in another order. What is computed within the
    kernel before it has no memory."""

    def function(x, w):
        gate, given = aten.mm(x, w), aten.mm(x, w)
        sigmoid = aten.sigmoid(gate)
        one = aten.mul(given, aten.mul(sigmoid, aten.sub(2, sigmoid)))
        return aten.mm(one, w), aten.sum(one, [0])

    names, fused, unfused = count(function, X, W)
    assert names == ["mm", "mm", "sigmoid", "mul", "mm", "sum"]
    assert fused[:5] == unfused[:5] == [1, 2, 2, 2, 2]


def test_what_is_concatenated_is_computed_there():
    def function(x, w):
        one = aten.mm(x, w)
        first, other = aten.tanh(one), aten.neg(aten.mm(x, w))
        return aten.mm(aten.cat([first, other]), w)

    names, fused, unfused = count(function, X, W)
    assert names == ["mm", "mm", "cat", "mm"]
    assert fused == unfused == [1, 2, 4, 4]


def pass_messages(x, w):
    """What each edge passes on is computed in the kernel that adds it up."""
    places = torch.arange(64) % 8
    return aten.mm(aten.index_put(x, [places], aten.tanh(aten.index(aten.mm(x, w), [places])), True), w)


def test_what_is_read_and_written_at_indices_has_no_memory():
    names, fused, unfused = count(pass_messages, X, W)
    assert names[-3:] == ["mm", "index_put", "mm"]
    places = 64 * 8 / FULL
    for alive in (fused, unfused):
        assert alive[-3:] == [1 + places, 2 + places, 2]


def test_zeros_into_which_a_slice_is_written_have_no_memory():
    """As in the backward of a slice: the zeros, and what is written into them, are computed where the sum is."""

    def halves(x, w):
        one = aten.mm(x, w)
        zeros = aten.full([8, 16], 0.0)
        first = aten.slice_scatter(zeros, aten.neg(aten.slice(one, 1, 0, 8)), 1, 8, 16)
        other = aten.slice_scatter(zeros, aten.slice(one, 1, 8, 16), 1, 0, 8)
        return aten.mm(aten.add(first, other), w)

    names, fused, unfused = count(halves, X, W)
    assert names == ["mm", "add", "mm"]
    assert fused == unfused == [1, 2, 2]


def test_with_two_readers_a_product_is_not_written_over():
    def joined(x, w):
        one = aten.mm(x, w)
        first = aten.mm(aten.tanh(one), w)
        return first, aten.mm(aten.mul(one, 2), w)

    names, fused, unfused = count(joined, X, W)
    assert names == ["mm", "tanh", "mm", "mul", "mm"]
    assert unfused == [1, 2, 3, 3, 3]
    assert fused == [1, 2, 3, 3, 3]


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: aten.mm(aten.mul(aten.mm(x, w), w[0]), w),  # a row: loops of other sizes
        lambda x, w: aten.mm(aten.mul(aten.mm(x, w), aten.t(aten.mm(aten.t(w)[:, :16], aten.t(x)))), w),
        lambda x, w: aten.mm(aten.add(aten.mm(x, w), x[:, :1]), w),
    ],
)
def test_elsewhere_a_product_is_not_written_over(function):
    names, *both = count(function, X, W)
    at = max(place for place, name in enumerate(names) if name != "mm")
    for alive in both:
        assert alive[at] == at + 1


@pytest.mark.parametrize(
    "changed",
    [
        {"inplace_buffers": False},
        {"max_autotune": True},
        {"benchmark_fusion": True},
        {"max_fusion_size": 1},
        {"cpp.max_horizontal_fusion_size": 1},
        {"max_fusion_unique_io_buffers": 2},
    ],
)
def test_settings_by_which_inductor_does_otherwise(changed):
    expected, found = count(gated, X, W), count(gated, X, W, changed=changed)
    assert max(found[2]) > max(expected[2])


def test_what_a_kernel_reads_is_alive_until_all_have_run_that_may_be_fused_with_it():
    """Fused, the products that read the first result run behind the second one's kernel."""

    def divided(x, w):
        one, other = aten.mm(x, w), aten.mm(x, w)
        first = aten.add(one, aten.sum(one, [0], True))
        second = aten.mm(first, w)
        third = aten.mul(first, other)
        return aten.sum(aten.mm(second, w)), aten.mm(third, w)

    names, fused, unfused = count(divided, X, W)
    assert names == ["mm", "mm", "sum", "add", "mm", "mul", "mm", "sum", "mm"]
    assert unfused[names.index("mul")] > 4  # both products of x, the two results, and that of the product between
    assert fused[names.index("add")] == fused[names.index("mul")]


def test_kernels_that_would_wait_for_each_other_are_not_fused():
    def divided(x, w):
        first = aten.tanh(aten.mm(x, w))
        second = aten.mm(first, w)
        return aten.mm(aten.mul(first, second), w)

    names, fused, unfused = count(divided, X, W)
    assert names == ["mm", "tanh", "mm", "mul", "mm"]
    assert fused == unfused == [1, 1, 2, 2, 2]


def crossed(x, w):
    """Has two pairs of pointwise operators. If one pair were fused, the other could not be."""
    one, other = aten.sigmoid(x), aten.exp(x)
    first, second = aten.mm(one, w), aten.mm(other, w)
    return aten.mm(aten.mul(one, second), w), aten.mm(aten.mul(other, first), w)


def test_of_groups_that_would_wait_for_each_other_one_is_fused():
    """Inductor may fuse either, so no product is certainly written over."""
    names, fused, unfused = count(crossed, X, W)
    assert names == ["sigmoid", "exp", "mm", "mm", "mul", "mm", "mul", "mm"]
    assert fused == [4, 1, 4, 2, 4, 4, 4, 3]  # "exp" runs first, then "mm", then "sigmoid" and "mul" at once
    assert unfused == [1, 2, 3, 4, 5, 4, 4, 3]


class Late(nn.Module):
    """A sum of eight products that inductor computes in the kernel of its last reader, behind wide layers."""

    def __init__(self, width=32):
        super().__init__()
        self.terms = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(8))
        sizes = (width, width, 4 * width, 4 * width, width)
        self.chain = nn.Sequential(*(nn.Linear(*pair, bias=False) for pair in itertools.pairwise(sizes)))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        total = sum((place + 2) * term(x) for place, term in enumerate(self.terms))
        return (total * self.chain(x)).sum() + self.out(total).sum()


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_a_kernel_that_inductor_puts_behind_others_is_counted_there():
    """Counted where its first operator was, the step took 1.13 times its promise."""
    torch.manual_seed(0)
    model, x = Late().train(), normal(512, 32)
    integrations.compress_model(model, memory="least", error=0)
    function = torch.compile(model)
    found = second_peak(model, lambda: function(x).backward())
    assert found <= trace_joint(model).peak


def llama():
    transformers = library_or_skip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_attention_heads": 4, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=4, use_cache=False, **sizes)
    return transformers.LlamaForCausalLM(config).train()


def measure(model, ids):
    function = torch.compile(model)

    def step():
        model.zero_grad()
        function(input_ids=ids, labels=ids).loss.backward()

    for _ in range(2):
        step()
    model.zero_grad()
    peak, gradients = profiled_bytes(step)
    return peak - gradients


@pytest.mark.usefixtures("fresh_compiler", "nothing_expected", "quick_kernels", "empty_kernels")
def test_the_least_plan_of_a_llama_is_counted_below_checkpoints_around_each_block(monkeypatch):
    """It was counted as 1.3 times these bytes, so that a budget was refused that the step keeps."""
    counted, count = [], partition.count_peak

    def noted(*arguments):
        counted.append(count(*arguments))
        return counted[-1]

    monkeypatch.setattr(partition, "count_peak", noted)
    ids = torch.arange(128).reshape(2, 64) % 61
    model = llama()
    for block in model.model.layers:
        block.forward = partial(checkpointed, block.forward, use_reentrant=False)
    blocks = measure(model, ids)
    torch.compiler.reset()
    model = llama()
    integrations.compress_model(model, memory="least", error=0)
    found = measure(model, ids)
    assert counted[-1].peak < blocks
    assert found <= 1.05 * counted[-1].peak
