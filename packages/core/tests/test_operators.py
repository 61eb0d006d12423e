"""The raw operators: schema, fake kernels and autograd rules agree, and wrong arguments raise."""

import re

import pytest
import torch

from actcore.ops import OPERATORS, group_count, packed_bytes

from .samples import BITS, DTYPES, name_of, normal

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
every_width = pytest.mark.parametrize("bits", BITS)


def opcheck(operator, *arguments):
    """All of opcheck, and its check of the autograd rule with inputs that ask for gradients."""
    torch.library.opcheck(getattr(ops, operator).default, arguments)
    if any(isinstance(argument, torch.Tensor) and argument.is_floating_point() for argument in arguments):
        torch.library.opcheck(
            getattr(ops, operator).default, asking_for_gradients(arguments), test_utils="test_autograd_registration"
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
    return {
        "group_affine_compress": (x, 3, 256, True, 0, 0),
        "group_affine_decompress": (u8[: packed_bytes(numel, 3)], bounds, numel, 3, 256),
        "pack_bits": (u8, 3),
        "unpack_bits": (u8[: packed_bytes(numel, 3)], 3, numel),
        "bit_mask_compress": (x, 0.0, 1.0),
        "bit_mask_decompress": (u8[: packed_bytes(numel, 1)], numel, dtype, 0.0, 1.0),
        "positive_mask": (x,),
    }


def test_every_operator_is_listed_and_called_here():
    schemas = {schema.name for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("actcore::")}
    assert schemas == {f"actcore::{name}" for name in OPERATORS} == {f"actcore::{name}" for name in calls()}


def outputs_of(operator, arguments):
    result = getattr(ops, operator)(*arguments)
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


@pytest.mark.parametrize("operator", OPERATORS)
def test_backward_through_an_operator_raises(operator):
    """Rather than give a gradient that lacks a term."""
    outputs = outputs_of(operator, asking_for_gradients(calls()[operator]))
    differentiable = [output for output in outputs if output.requires_grad]
    if operator in ("group_affine_compress", "group_affine_decompress"):
        assert len(differentiable) == 1
    for output in differentiable:
        with pytest.raises(
            RuntimeError,
            match=rf"actcore::{operator} stores a tensor and has no gradient, but backward reached it; "
            r"give it tensor.detach\(\), or save tensors through torch.autograd.graph.saved_tensors_hooks",
        ):
            output.sum().backward()


F32, U8 = torch.zeros(1000), torch.zeros(1000, dtype=torch.uint8)
BOUNDS = torch.zeros(4, 2)
CODES = U8[:375]
DAMAGED = "the stored form is damaged or belongs to another tensor"
WRONG = [
    ("group_affine_compress", (F32, 0, 256, True, 0, 0), "bits must be from 1 to 8, got 0"),
    ("group_affine_compress", (F32, 9, 256, True, 0, 0), "bits must be from 1 to 8, got 9"),
    (
        "group_affine_compress",
        (F32, 4, 0, True, 0, 0),
        "group_size must be a positive multiple of 32, got 0",
    ),
    (
        "group_affine_compress",
        (F32, 4, -256, True, 0, 0),
        "group_size must be a positive multiple of 32, got -256",
    ),
    (
        "group_affine_compress",
        (F32, 4, 100, True, 0, 0),
        "group_size must be a positive multiple of 32, got 100",
    ),
    (
        "group_affine_compress",
        (F32.long(), 4, 256, True, 0, 0),
        "input must be float32, float64, float16 or bfloat16",
    ),
    (
        "group_affine_compress",
        (F32.view(25, 40).t(), 4, 256, True, 0, 0),
        "input must be contiguous; call .contiguous() first",
    ),
    ("group_affine_decompress", (CODES, BOUNDS, 1000, 0, 256), "bits must be from 1 to 8, got 0"),
    (
        "group_affine_decompress",
        (CODES, BOUNDS, 1000, 3, 31),
        "group_size must be a positive multiple of 32, got 31",
    ),
    ("group_affine_decompress", (CODES, BOUNDS, -1, 3, 256), "numel must not be negative, got -1"),
    (
        "group_affine_decompress",
        (CODES[:-1], BOUNDS, 1000, 3, 256),
        f"codes must hold 375 bytes, got 374; {DAMAGED}",
    ),
    (
        "group_affine_decompress",
        (CODES, BOUNDS[:-1], 1000, 3, 256),
        f"bounds must hold 4 pairs, got 6 values; {DAMAGED}",
    ),
    ("group_affine_decompress", (CODES.char(), BOUNDS, 1000, 3, 256), "codes must be uint8"),
    (
        "group_affine_decompress",
        (CODES, BOUNDS.int(), 1000, 3, 256),
        "bounds must be float32, float64, float16 or bfloat16",
    ),
    (
        "group_affine_decompress",
        (CODES, torch.zeros(2, 4).t(), 1000, 3, 256),
        "bounds must be contiguous; call .contiguous() first",
    ),
    (
        "group_affine_decompress",
        (U8[:750:2], BOUNDS, 1000, 3, 256),
        "codes must be contiguous; call .contiguous() first",
    ),
    ("pack_bits", (U8, 9), "bits must be from 1 to 8, got 9"),
    ("pack_bits", (F32, 4), "codes must be uint8"),
    ("pack_bits", (U8[::2], 4), "codes must be contiguous; call .contiguous() first"),
    ("unpack_bits", (CODES, -1, 1000), "bits must be from 1 to 8, got -1"),
    ("unpack_bits", (CODES, 3, 992), f"packed must hold 372 bytes, got 375; {DAMAGED}"),
    ("unpack_bits", (CODES, 3, 1001), f"packed must hold 376 bytes, got 375; {DAMAGED}"),
    ("unpack_bits", (CODES, 3, -8), "numel must not be negative, got -8"),
    ("unpack_bits", (F32, 3, 1000), "packed must be uint8"),
    (
        "bit_mask_compress",
        (F32.to(torch.complex128), 0.0, 1.0),
        "input must be bool, an integer or a floating-point type of at most 8 bytes",
    ),
    ("bit_mask_compress", (F32[::2], 0.0, 1.0), "input must be contiguous; call .contiguous() first"),
    (
        "bit_mask_decompress",
        (U8[:125], 1000, torch.complex64, 0.0, 1.0),
        "dtype must be bool, an integer or a floating-point type of at most 8 bytes",
    ),
    (
        "bit_mask_decompress",
        (U8[:124], 1000, torch.float32, 0.0, 1.0),
        f"mask must hold 125 bytes, got 124; {DAMAGED}",
    ),
    (
        "bit_mask_decompress",
        (U8[:125], 1000, torch.int8, 0.0, 1e300),
        "high must fit in the integers of the tensor, got 1e+300",
    ),
    (
        "bit_mask_compress",
        (U8, float("nan"), 1.0),
        "low must fit in the integers of the tensor, got nan",
    ),
    ("bit_mask_decompress", (U8[:125], -1, torch.float32, 0.0, 1.0), "numel must not be negative, got -1"),
    ("positive_mask", (U8,), "input must be float32, float64, float16 or bfloat16"),
    ("positive_mask", (F32[::2],), "input must be contiguous; call .contiguous() first"),
]


@pytest.mark.parametrize(("operator", "arguments", "text"), WRONG, ids=range(len(WRONG)))
def test_wrong_arguments(operator, arguments, text):
    with pytest.raises(RuntimeError, match=re.escape(f"actcore::{operator}: {text}")):
        getattr(ops, operator)(*arguments)
