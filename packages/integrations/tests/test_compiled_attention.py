"""Attention in compiled code: backward recomputes it from the query, key and value that are stored."""

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition

import integrations
from integrations.policies.aten_attention import is_recomputed, recompute_attention

from .nets import Net, assert_same, gradients, normal, relative_error, rows
from .regions import compiled, make_report, trained

pytestmark = pytest.mark.usefixtures("fresh_compiler")

SIZE = (2, 4, 48, 16)
KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
CALLS = {
    "plain": {},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
    "masked": {},
}


@pytest.mark.parametrize("name", CALLS)
def test_the_gradient_is_that_of_what_is_stored(name):
    """Bit for bit: the result and the sums of the forward, which are spoilt here, are not asked."""
    graphs, mask = [], normal(48 * 48, seed=7).view(48, 48) if name == "masked" else None

    def attend(query, key, value, mask):
        return F.scaled_dot_product_attention(query * 1, key * 1, value * 1, mask, **CALLS[name]) * 1

    def remake(module, inputs):
        for node in module.graph.find_nodes(op="placeholder"):
            value = node.meta["val"]
            if node.users and all(KERNEL in str(user.target) and node in user.args[4:6] for user in node.users):
                with module.graph.inserting_after(node):
                    spoilt = module.graph.call_function(torch.full_like, (node, float("nan")))
                spoilt.meta["val"] = value
                node.replace_all_uses_with(spoilt, delete_user_cb=lambda user, spoilt=spoilt: user is not spoilt)
        recompute_attention(module.graph, lambda node: True)
        graphs.append(module.graph)
        module.recompile()
        return make_boxed_func(module)

    def keep(module, inputs):
        return make_boxed_func(module)

    given = [normal(2 * 4 * 48 * 16, seed=seed).view(SIZE).requires_grad_() for seed in range(3)]
    torchs = torch.autograd.grad(attend(*given, mask).square().sum(), given)
    ours = aot_function(attend, fw_compiler=keep, bw_compiler=remake, partition_fn=default_partition)
    found = torch.autograd.grad(ours(*given, mask).square().sum(), given)
    assert all(map(torch.equal, found, torchs))
    assert [is_recomputed(node) for node in graphs[0].nodes if f"{KERNEL}_backward" in str(node.target)] == [True]


class Attention(torch.nn.Module):
    """One projection for query, key and value, as vision transformers have."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.three, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)

    def forward(self, x):
        query, key, value = self.three(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2))


INPUT = normal(8 * 48 * 64).view(8, 48, 64)


def test_query_key_and_value_wait_in_the_bits_of_attention():
    model, eager, expected = Attention(), integrations.compress_model(Attention()), gradients(Attention(), INPUT)
    integrations.compress_model(model)
    function = compiled(model)
    ours, others = [], []
    for _ in range(6):
        ours.append(relative_error(expected, trained(model, function, INPUT)) ** 2)
        others.append(relative_error(expected, gradients(eager, INPUT)) ** 2)
    stored = [row for row in rows(model) if f"{KERNEL}_backward" in row.operator]
    assert [row.codec.split(",")[0] for row in stored if len(row.shape) == 4] == ["GroupAffine(bits=7"] * 3
    assert not [row for row in rows(model) if row.codec == "kept" and row.shape[-1] == 48]  # the sums
    assert 0 < sum(ours) < 1.5 * sum(others)  # of six draws each, whose sums scatter by a fifth
    assert in_bits(model) <= 1.1 * in_bits(eager)


def in_bits(model):
    """The bytes of what is rounded."""
    return sum(row.stored_bytes for row in make_report(model).rows if row.codec.startswith("GroupAffine"))


def test_attention_of_what_is_kept_is_not_recomputed():
    model = integrations.compress_model(Attention(), min_bytes=1 << 30)
    trained(model, compiled(model), INPUT)
    assert {row.codec for row in rows(model) if KERNEL in row.operator} == {"kept"}


def test_attention_of_exact_inputs_is_exact():
    """Of a region's own inputs, which are kept."""
    model = Net(lambda self, x: F.scaled_dot_product_attention(x, x, x * self.w), w=normal(16))
    x = normal(2 * 4 * 48 * 16).view(SIZE)
    expected = gradients(model, x)
    integrations.compress_model(model, keep=[""])
    assert_same(trained(model, compiled(model), x), expected)


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition"])
def test_attention_that_torch_takes_apart_has_the_same_bits(backend):
    """No kernel has a gradient for a learned bias. Query, key and value were stored in the bits of linear inputs."""

    class Biased(Attention):
        def __init__(self):
            super().__init__()
            self.bias = torch.nn.Parameter(normal(4 * 48 * 48).view(4, 48, 48))

        def forward(self, x):
            query, key, value = self.three(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
            made = F.scaled_dot_product_attention(query, key, value, self.bias)
            return self.out(made.transpose(1, 2).flatten(-2))

    model = integrations.compress_model(Biased())
    trained(model, compiled(model, backend=backend), INPUT)
    operands = [row for row in rows(model) if row.operator == "bmm"]
    assert len(operands) >= 3
    assert {row.codec.split(",")[0] for row in operands} == {"GroupAffine(bits=7"}
