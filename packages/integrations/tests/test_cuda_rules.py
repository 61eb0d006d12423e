"""Operators that only CUDA has are known as their kin on the CPU are."""

import pytest
import torch
import torch.nn.functional as F
from torch._functorch.aot_autograd import aot_function
from torch._functorch.partitioners import default_partition
from torch._subclasses.fake_tensor import FakeTensorMode

from integrations.capture.dispatch.decisions import Decides, decides
from integrations.capture.dispatch.operators import get_traits
from integrations.policies.aten_rules import _ATTENTIONS, BackwardUses

aten = torch.ops.aten
SIZE = (2, 4, 16, 8)
ATTENTIONS = {
    "for_cpu": lambda *qkv: aten._scaled_dot_product_flash_attention_for_cpu(*qkv, 0.0)[0],
    "flash": lambda *qkv: aten._scaled_dot_product_flash_attention(*qkv, 0.1)[0],
    "efficient": lambda *qkv: aten._scaled_dot_product_efficient_attention(*qkv, None, True, 0.1)[0],
    "cudnn": lambda *qkv: aten._scaled_dot_product_cudnn_attention(*qkv, None, True, 0.1)[0],
    "flash alone": lambda *qkv: aten._flash_attention_forward(*qkv, None, None, 16, 16, 0.1, False, False)[0],
    "efficient alone": lambda *qkv: aten._efficient_attention_forward(*qkv, None, None, None, None, None, 0.1, 0, True)[
        0
    ],
}

# Results by which a kernel's backward draws the same dropout again.
NOTES = {"rng_state", "philox_seed", "philox_offset", "debug_attn_mask"}


def schemas(condition):
    """Of torch's operators, those of ``out=`` aside."""
    found = [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]
    return [schema for schema in found if "out" not in schema.overload_name and condition(schema)]


def names(arguments):
    return [argument.name for argument in arguments]


def tags(schema):
    return {tag.name for tag in overload(schema).tags}


def overload(schema):
    return getattr(getattr(aten, schema.name.removeprefix("aten::")), schema.overload_name or "default")


def uses(function, *sizes):
    """What compiled code's backward does with what forward hands to it: by size, operators and roles."""
    graphs = []

    def take(module, _):
        graphs.append(module.graph)
        return module

    with FakeTensorMode():
        inputs = [torch.empty(size, requires_grad=True) for size in sizes]
        compiled = aot_function(function, fw_compiler=take, bw_compiler=take, partition_fn=default_partition)
        compiled(*inputs).sum().backward()
    forward, backward = graphs
    saved = [node for node in forward.output_node().args[0][1:] if node is not None]
    found = BackwardUses(forward, backward)
    return [
        (tuple(node.meta["val"].shape), sorted({(use.operator, use.role) for use in found.uses_of(node)}))
        for node in saved
        if not node.name.startswith("primals")
    ]


@pytest.mark.filterwarnings("ignore:Your compiler for AOTAutograd")
@pytest.mark.parametrize("kernel", ATTENTIONS)
def test_a_kernel_of_attention_is_rounded_where_the_cpus_is(kernel):
    """Value and result are factors of products. Query, key, the sums and the seeds are exact."""
    exact, factor = ("", ""), ("mul", "input")
    found = uses(lambda *qkv: ATTENTIONS[kernel](*(part.sin() for part in qkv)), SIZE, SIZE, SIZE)
    query, key, value, *own = found
    *notes, result = own
    assert query[1] == key[1] == [exact]
    # Kept by the partitioner for a forward that it might repeat, too, which nobody knows.
    assert value[1] in ([factor], [exact, factor])
    assert result == (SIZE, [factor])
    assert all(use == [exact] for _, use in notes)


def test_every_backward_of_attention_has_its_places():
    found = schemas(lambda schema: "attention_" in schema.name and schema.name.endswith("backward"))
    assert len(found) >= 8
    for schema in found:
        given = names(schema.arguments)
        name = schema.name.removeprefix("aten::")
        assert _ATTENTIONS[name] == (given.index("value"), given.index("out"))


def test_attention_draws_only_with_dropout():
    """Else a repetition would set the generator's state for nothing."""
    found = schemas(lambda schema: "dropout_p" in names(schema.arguments) and "nondeterministic_seeded" in tags(schema))
    assert len(found) >= 4
    for schema in found:
        traits, given = get_traits(overload(schema)), names(schema.arguments)
        args = [None] * given.index("dropout_p")
        assert given[traits.dropout] == "dropout_p"
        for probability in (0, 0.0, 0.5):
            assert traits.draws((*args, probability), {}) == traits.draws((), {"dropout_p": probability})
            assert traits.draws((*args, probability), {}) == (probability > 0)
    assert get_traits(aten.native_dropout.default).draws((), {})
    assert not get_traits(aten.mul.Tensor).draws((), {})


def test_notes_of_a_kernel_decide_nothing():
    found = schemas(lambda schema: NOTES & set(names(schema.returns)))
    assert {schema.name for schema in found} >= {
        "aten::_scaled_dot_product_flash_attention",
        "aten::_scaled_dot_product_efficient_attention",
        "aten::_scaled_dot_product_cudnn_attention",
    }
    query, seed = torch.empty(SIZE, requires_grad=True), torch.empty(2, dtype=torch.int64)
    for schema in found:
        assert decides(overload(schema), (query, query, query), (query, seed)) is Decides.NOTHING, schema.name


def test_whoever_updates_running_statistics_is_known():
    """Schemas do not tell. Of what has such arguments, some pass them on to another operator, and some only read."""
    passed_on = {"batch_norm", "instance_norm", "_batch_norm_impl_index"}
    read = {"_batch_norm_no_update", "_native_batch_norm_legit_no_training"}
    made_anew = {"_native_batch_norm_legit_functional", "_batch_norm_with_update_functional"}
    found = schemas(lambda schema: "running_mean" in names(schema.arguments) and "backward" not in schema.name)
    for schema in found:
        name, given = schema.name.removeprefix("aten::"), names(schema.arguments)
        expected = () if name in passed_on | read | made_anew else (given.index("running_mean"),)
        assert get_traits(overload(schema)).statistics[:1] == expected, name


def test_dropout_on_cuda_saves_truth_values():
    with FakeTensorMode():
        x = torch.empty(4, 8, device="cuda", requires_grad=True)
        node = F.dropout(x, 0.1).grad_fn
    assert node.name() == "NativeDropoutBackward0"
    assert node._saved_result1.dtype is torch.bool
