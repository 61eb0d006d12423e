"""The raw operators: schema, fake kernels and autograd rules agree."""

import pytest
import torch

import actcore
from actcore.fused import FUSED_OPERATORS
from actcore.ops import GRAPH_OPERATORS, OPERATORS, WRITING_OPERATORS, group_count, packed_bytes

from .samples import BITS, DTYPES, FORMATS, INTEGERS, integers, name_of, normal

ops = torch.ops.actcore
KEY = (torch.tensor([1]), torch.tensor([-2]))
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)


def overload_of(operator):
    """The operator of this name, such as ``pack_bits`` or ``float8_compress.tensor``."""
    name, _, overload = operator.partition(".")
    return getattr(getattr(ops, name), overload or "default")


def opcheck(operator, *arguments):
    """All of opcheck, and its check of the autograd rule with inputs that ask for gradients."""
    torch.library.opcheck(overload_of(operator), arguments)
    if any(isinstance(argument, torch.Tensor) and argument.is_floating_point() for argument in arguments):
        torch.library.opcheck(
            overload_of(operator), asking_for_gradients(arguments), test_utils="test_autograd_registration"
        )


def asking_for_gradients(arguments):
    return tuple(
        argument.clone().requires_grad_()
        if isinstance(argument, torch.Tensor) and argument.is_floating_point()
        else argument
        for argument in arguments
    )


@every_dtype
@pytest.mark.parametrize("stochastic", [True, False])
@pytest.mark.parametrize(("bits", "group_size", "shape"), [(1, 32, (100,)), (4, 256, (3, 5, 40)), (8, 1024, ())])
def test_opcheck_group_affine(dtype, stochastic, bits, group_size, shape):
    x = normal(torch.Size(shape).numel(), dtype).view(shape)
    opcheck("group_affine_compress", x, bits, group_size, stochastic, 1, -2)
    codes, bounds = ops.group_affine_compress(x, bits, group_size, stochastic, 1, -2)
    opcheck("group_affine_decompress", codes, bounds, x.numel(), bits, group_size)
    opcheck("group_affine_compress.tensor", x, bits, group_size, stochastic, *KEY)


@every_dtype
@pytest.mark.parametrize("format", FORMATS.values(), ids=name_of)
def test_opcheck_float8(dtype, format):
    x = normal(600, dtype).view(3, 5, 40)
    opcheck("float8_compress", x, format, 96, True, 1, -2)
    opcheck("float8_compress.tensor", x, format, 96, True, *KEY)
    opcheck("float8_decompress", *ops.float8_compress(x, format, 96, True, 1, -2), format, 96)


@every_dtype
def test_opcheck_rows(dtype):
    x, bits = normal(600, dtype).view(3, 200), torch.tensor([1, 4, 8])
    opcheck("group_affine_rows_compress", x, bits, 325, 96, True, 1, -2)
    opcheck("group_affine_rows_compress.tensor", x, bits, 325, 96, True, *KEY)
    codes, bounds, _ = ops.group_affine_rows_compress(x, bits, 325, 96, True, 1, -2)
    opcheck("group_affine_rows_decompress", codes, bounds, bits, 600, 96)


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS], ids=name_of)
def test_opcheck_narrow(dtype):
    low, high = (0, 1) if dtype == torch.bool else (0, min(1000, torch.iinfo(dtype).max))
    x = integers(100, low, high, dtype).view(4, 25)
    opcheck("narrow_compress", x, low, high)
    opcheck("narrow_decompress", ops.narrow_compress(x, low, high)[0], 100, dtype, low, high)


@every_width
def test_opcheck_packing(bits):
    codes = torch.arange(100).remainder(2**bits).to(torch.uint8)
    opcheck("pack_bits", codes, bits)
    opcheck("unpack_bits", ops.pack_bits(codes, bits)[0], bits, 100)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.int16, torch.int64, *DTYPES], ids=name_of)
def test_opcheck_masks(dtype):
    x = (normal(100) > 0).to(dtype).view(10, 10)
    opcheck("bit_mask_compress", x, 0.0, 1.0)
    opcheck("bit_mask_decompress", ops.bit_mask_compress(x, 0.0, 1.0)[0], 100, dtype, 0.0, 1.0)
    if dtype in DTYPES:
        opcheck("positive_mask", x)


def calls(dtype=torch.float32, device="cpu", numel=1000):
    """One call of every operator, by name."""
    x = torch.ones(numel, dtype=dtype, device=device)
    u8 = torch.ones(numel, dtype=torch.uint8, device=device)
    bounds = torch.ones(group_count(numel, 256), 2, dtype=dtype, device=device)
    key = (torch.zeros(1, dtype=torch.int64, device=device),) * 2
    widths = torch.full((1,), 3, dtype=torch.uint8, device=device)
    codes_of_rows = u8[: packed_bytes(numel, 3)]
    statistics = torch.ones(2, 1, dtype=torch.promote_types(dtype, torch.float32), device=device)
    return {
        "group_affine_compress": (x, 3, 256, True, 0, 0),
        "group_affine_compress.tensor": (x, 3, 256, True, *key),
        "group_affine_clamped_compress": (x, 3, 256, True, 0, 0, -1.0, 2.0),
        "group_affine_standardized_compress": (x, 3, 256, True, 0, 0, 1, max(numel, 1), 0),
        "group_affine_standardized_decompress": (
            u8[: packed_bytes(numel, 3)],
            bounds,
            statistics,
            numel,
            max(numel, 1),
            0,
            3,
            256,
        ),
        "group_affine_standardized_activation": (
            *(u8[: packed_bytes(numel, 3)], bounds, statistics[0], statistics[1], x, numel, max(numel, 1), 0, 3, 256),
            "relu",
        ),
        "has_wide_group": (x, 256),
        "group_affine_rows_compress": (x, widths, numel, 256, True, 0, 0),
        "group_affine_rows_compress.tensor": (x, widths, numel, 256, True, *key),
        "group_affine_rows_decompress": (codes_of_rows, bounds, widths, numel, 256),
        "float8_compress": (x, torch.float8_e4m3fn, 256, True, 0, 0),
        "float8_compress.tensor": (x, torch.float8_e5m2, 256, True, *key),
        "float8_decompress": (u8, bounds[:, 0].contiguous(), torch.float8_e4m3fn, 256),
        "narrow_compress": (u8, 0, 20),
        "narrow_decompress": (u8[: packed_bytes(numel, 5)], numel, torch.int32, -4, 20),
        "group_affine_decompress": (u8[: packed_bytes(numel, 3)], bounds, numel, 3, 256),
        "pack_bits": (u8, 3),
        "unpack_bits": (u8[: packed_bytes(numel, 3)], 3, numel),
        "bit_mask_compress": (x, 0.0, 1.0),
        "bit_mask_decompress": (u8[: packed_bytes(numel, 1)], numel, dtype, 0.0, 1.0),
        "positive_mask": (x,),
    }


def test_every_operator_is_listed_and_called_here():
    schemas = {
        f"{schema.name}.{schema.overload_name}".removesuffix(".")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("actcore::")
    }
    schemas.remove("actcore::next_stream")  # of Python; its tests are in test_graph_hooks.py
    schemas -= {"actcore::region_stream", "actcore::enter_region"}  # in test_regions.py, as those for graphs
    assert schemas == {
        f"actcore::{name}" for name in (*OPERATORS, *GRAPH_OPERATORS, *WRITING_OPERATORS, *FUSED_OPERATORS)
    }
    assert set(calls()) == set(OPERATORS)  # those of the fused ones: test_masked, test_stepwise, test_pool


def outputs_of(operator, arguments):
    result = overload_of(operator)(*arguments)
    return result if isinstance(result, tuple) else (result,)


@every_dtype
@pytest.mark.parametrize("operator", OPERATORS)
def test_meta_tensors_give_the_shapes_that_the_kernels_give(operator, dtype):
    for numel in (0, 1, 257, 1000):
        real = outputs_of(operator, calls(dtype, "cpu", numel)[operator])
        fake = outputs_of(operator, calls(dtype, "meta", numel)[operator])
        for one, other in zip(real, fake, strict=True):
            assert other.device.type == "meta"
            assert (other.shape, other.dtype, other.stride()) == (one.shape, one.dtype, one.stride())


@pytest.mark.filterwarnings("error:There is a performance drop")
@pytest.mark.parametrize("operator", OPERATORS)
def test_vmap_is_a_call_a_sample(operator):
    arguments = calls(torch.float32, "cpu", 257)[operator]
    first, *rest = arguments
    batch = torch.stack([first, first.flip(0)], dim=-1)
    call = overload_of(operator)
    got = torch.func.vmap(lambda x: call(x, *rest), in_dims=-1)(batch)
    for sample, one in enumerate((first, first.flip(0).contiguous())):
        expected = call(one, *rest)
        for found, output in zip(
            *(value if isinstance(value, tuple) else (value,) for value in (got, expected)), strict=True
        ):
            assert torch.equal(found[sample], output)


def test_codecs_under_vmap():
    x = torch.randn(512, 4)
    for codec in (actcore.GroupAffine(8), actcore.Float8(), actcore.Positive()):
        got = torch.func.vmap(lambda x, codec=codec: actcore.decompress(actcore.compress(x, codec)), in_dims=1)(x)
        for sample in range(4):
            column = x[:, sample].contiguous()
            assert torch.equal(got[sample], actcore.decompress(actcore.compress(column, codec)))


@pytest.mark.parametrize("operator", OPERATORS)
def test_backward_through_an_operator_raises(operator):
    """Rather than give a gradient that lacks a term."""
    outputs = outputs_of(operator, asking_for_gradients(calls()[operator]))
    differentiable = [output for output in outputs if output.requires_grad]
    if operator.startswith(("group_affine", "float8")):
        assert len(differentiable) == (2 if operator == "group_affine_standardized_compress" else 1)
    for output in differentiable:
        with pytest.raises(
            RuntimeError,
            match=rf"actcore::{operator} stores a tensor and has no gradient, but backward reached it; "
            r"give it tensor.detach\(\), or save tensors through torch.autograd.graph.saved_tensors_hooks",
        ):
            output.sum().backward()
