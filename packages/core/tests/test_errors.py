"""Wrong input raises, and the text names the argument, the rule, the value it got and the way out."""

import math
import re

import pytest
import torch

import actcore
from actcore import BitMask, Float8, GroupAffine, GroupAffineRows, Narrow, Positive, Raw

GROUP_AFFINE = r"GroupAffine(bits=4, group_size=256, rounding='stochastic')"
FLOATS = "float32, float16, bfloat16, float64"
KEEP = "keep the tensor as it is (actcore.Raw()), or compress its components (values, indices)"

x = torch.zeros(100)
u8 = torch.zeros(100, dtype=torch.uint8)


def raises(error, text, call):
    """``call`` raises exactly this error, with exactly this text."""
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call()


CODEC_ARGUMENTS = [
    (ValueError, "bits must be from 1 to 8, got 0; to keep a tensor exactly use actcore.Raw()", {"bits": 0}),
    (ValueError, "bits must be from 1 to 8, got 9; to keep a tensor exactly use actcore.Raw()", {"bits": 9}),
    (TypeError, "bits must be an int, got 4.0", {"bits": 4.0}),
    (TypeError, "bits must be an int, got True", {"bits": True}),
    (TypeError, "bits must be an int, got '4'", {"bits": "4"}),
    (ValueError, "group_size must be a positive multiple of 32, got 0; the default is 256", {"group_size": 0}),
    (ValueError, "group_size must be a positive multiple of 32, got -32; the default is 256", {"group_size": -32}),
    (ValueError, "group_size must be a positive multiple of 32, got 100; the default is 256", {"group_size": 100}),
    (TypeError, "group_size must be an int, got None", {"group_size": None}),
    (ValueError, "rounding must be one of stochastic, nearest, got 'up'", {"rounding": "up"}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), CODEC_ARGUMENTS)
def test_group_affine_arguments(error, text, arguments):
    raises(error, text, lambda: GroupAffine(**arguments))


FLOAT8_ARGUMENTS = [
    (ValueError, "format must be one of e4m3, e5m2, got 'e4m3fn'", {"format": "e4m3fn"}),
    (ValueError, "format must be one of e4m3, e5m2, got torch.float8_e5m2", {"format": torch.float8_e5m2}),
    (ValueError, "group_size must be a positive multiple of 32, got 16; the default is 256", {"group_size": 16}),
    (TypeError, "group_size must be an int, got 32.0", {"group_size": 32.0}),
    (ValueError, "rounding must be one of stochastic, nearest, got 'down'", {"rounding": "down"}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), FLOAT8_ARGUMENTS)
def test_float8_arguments(error, text, arguments):
    raises(error, text, lambda: Float8(**arguments))


ROWS_ARGUMENTS = [
    (TypeError, "bits must be a tuple of ints, one for each row, got list; try tuple(bits)", {"bits": [4, 4]}),
    (TypeError, "bits must be a tuple of ints, one for each row, got int; try tuple(bits)", {"bits": 4}),
    (TypeError, "bits[1] must be an int, got 4.0", {"bits": (4, 4.0)}),
    (
        ValueError,
        "bits[2] must be from 1 to 8, got 9; to keep a tensor exactly use actcore.Raw()",
        {"bits": (1, 8, 9)},
    ),
    (ValueError, "group_size must be a positive multiple of 32, got 1; the default is 256", {"group_size": 1}),
    (ValueError, "rounding must be one of stochastic, nearest, got None", {"rounding": None}),
]


@pytest.mark.parametrize(("error", "text", "arguments"), ROWS_ARGUMENTS)
def test_group_affine_rows_arguments(error, text, arguments):
    raises(error, text, lambda: GroupAffineRows(**({"bits": (4,)} | arguments)))


@pytest.mark.parametrize("shape", [(), (3,), (3, 5), (0, 2)])
def test_a_tensor_with_other_rows_than_widths(shape):
    raises(
        ValueError,
        f"tensor must have 2 rows, one for each of bits, got shape {shape}",
        lambda: actcore.compress(torch.zeros(shape), GroupAffineRows((4, 2))),
    )


NARROW_ARGUMENTS = [
    (TypeError, "low must be an int, got 0.0", (0.0, 1)),
    (TypeError, "high must be an int, got True", (0, True)),
    (TypeError, "high must be an int, got None", (0, None)),
    (ValueError, f"low must fit in int64, got {-(2**63) - 1}", (-(2**63) - 1, 1)),
    (ValueError, f"high must fit in int64, got {2**63}", (0, 2**63)),
    (ValueError, "low must not be above high, got low=2 and high=1", (2, 1)),
]


@pytest.mark.parametrize(("error", "text", "ends"), NARROW_ARGUMENTS)
def test_narrow_arguments(error, text, ends):
    raises(error, text, lambda: Narrow(*ends))


def test_narrow_on_a_dtype_and_values_that_it_does_not_store():
    raises(
        ValueError,
        "the range of Narrow(low=256, high=300) has no value of torch.uint8; pass the range of the tensor",
        lambda: actcore.compress(u8, Narrow(256, 300)),
    )
    raises(
        ValueError,
        "Narrow(low=0, high=9) stores values from low to high, but an element is outside; pass a wider range",
        lambda: actcore.compress(u8 + 10, Narrow(0, 9)),
    )
    raises(
        TypeError,
        "Narrow(low=0, high=9) takes bool, uint8, int8, int16, int32, int64, got torch.float32; "
        "floats have forms of their own: actcore.GroupAffine(), actcore.Raw()",
        lambda: actcore.compress(x, Narrow(0, 9)),
    )


BIT_MASK_ARGUMENTS = [
    (ValueError, "values must be two finite numbers, got (0, nan)", (0, math.nan)),
    (ValueError, "values must be two finite numbers, got (0, -inf)", (0, -math.inf)),
    (ValueError, "values must be two finite numbers, got (0, 1, 2)", (0, 1, 2)),
    (ValueError, "values must be two finite numbers, got ()", ()),
    (TypeError, "values must be a tuple of two numbers, got [0, 1]", [0, 1]),
    (TypeError, "values must be a tuple of two numbers, got 1", 1),
    (TypeError, "values must be a tuple of two numbers, got ('0', '1')", ("0", "1")),
]


@pytest.mark.parametrize(("error", "text", "values"), BIT_MASK_ARGUMENTS)
def test_bit_mask_arguments(error, text, values):
    raises(error, text, lambda: BitMask(values))


def test_a_bit_mask_value_beyond_every_float():
    with pytest.raises(ValueError, match=r"values must be two finite numbers, got \(0, 1000"):
        BitMask((0, 10**400))


@pytest.mark.parametrize("tensor", [[1.0, 2.0], None, 1.0], ids=repr)
def test_compress_takes_a_tensor(tensor):
    raises(
        TypeError,
        f"tensor must be a torch.Tensor, got {type(tensor).__name__}",
        lambda: actcore.compress(tensor, GroupAffine()),
    )


@pytest.mark.parametrize("codec", [None, "GroupAffine", 4, GroupAffine, BitMask], ids=repr)
def test_compress_takes_a_codec(codec):
    """A class is none either: the parentheses are missing."""
    raises(
        TypeError,
        f"codec must have compress and decompress, got {codec!r}; try actcore.GroupAffine(bits=4)",
        lambda: actcore.compress(x, codec),
    )


@pytest.mark.parametrize("compressed", [None, x, (x,)], ids=lambda value: type(value).__name__)
def test_decompress_takes_a_compressed(compressed):
    raises(
        TypeError,
        f"compressed must be an actcore.Compressed, got {type(compressed).__name__}",
        lambda: actcore.decompress(compressed),
    )


@pytest.mark.parametrize("name", ["seed", "stream"])
def test_seed_and_stream_are_64_bit_integers(name):
    for value in (1.0, "1", None, True):
        raises(
            TypeError,
            f"{name} must be an int or an int64 tensor of one element, got {value!r}",
            lambda value=value: actcore.compress(x, GroupAffine(), **{name: value}),
        )
    for value in (2**64, -(2**63) - 1):
        raises(
            ValueError,
            f"{name} must fit in 64 bits, got {value}",
            lambda value=value: actcore.compress(x, GroupAffine(), **{name: value}),
        )


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.complex64, torch.float8_e4m3fn])
def test_dtypes_that_a_codec_does_not_take(dtype):
    tensor = torch.zeros(100).to(dtype)
    raises(
        TypeError,
        f"{GROUP_AFFINE} takes {FLOATS}, got {dtype}; "
        "integers and masks have exact forms: actcore.Narrow, actcore.BitMask",
        lambda: actcore.compress(tensor, GroupAffine()),
    )
    for codec in (Float8(), GroupAffineRows((4,) * 100)):
        raises(
            TypeError,
            f"{codec!r} takes {FLOATS}, got {dtype}; "
            "integers and masks have exact forms: actcore.Narrow, actcore.BitMask",
            lambda codec=codec: actcore.compress(tensor, codec),
        )
    raises(
        TypeError,
        f"Positive() takes {FLOATS}, got {dtype}; keep it as it is: actcore.Raw()",
        lambda: actcore.compress(tensor, Positive()),
    )


def test_dtypes_that_a_bit_mask_does_not_take():
    raises(
        TypeError,
        f"BitMask(values=(0, 1)) takes bool, uint8, int8, int16, int32, int64, {FLOATS}, got torch.complex64; "
        "keep it as it is: actcore.Raw()",
        lambda: actcore.compress(x.to(torch.complex64), BitMask()),
    )


def tensors_without_strides():
    eye = torch.eye(4)
    yield "torch.sparse_coo and dtype torch.float32", eye.to_sparse()
    yield "torch.sparse_csr and dtype torch.float32", eye.to_sparse_csr()
    yield "torch.jagged and dtype torch.float32", torch.nested.nested_tensor([x, x[:3]], layout=torch.jagged)
    yield "torch.strided and dtype torch.float32", torch.nested.nested_tensor([x, x[:3]], layout=torch.strided)


@pytest.mark.filterwarnings(
    "ignore:Sparse CSR tensor support:UserWarning", "ignore:The PyTorch API of nested:UserWarning"
)
@pytest.mark.parametrize(
    "codec", [GroupAffine(), Float8(), GroupAffineRows((4,)), Positive(), BitMask(), Narrow(0, 1)], ids=repr
)
def test_sparse_and_jagged_tensors(codec):
    for found, tensor in tensors_without_strides():
        raises(
            TypeError,
            f"{codec!r} takes strided tensors, got layout {found}; {KEEP}",
            lambda tensor=tensor: actcore.compress(tensor, codec),
        )


PACK_ARGUMENTS = [
    (ValueError, "bits must be from 1 to 8, got 9", lambda: actcore.pack_bits(u8, 9)),
    (TypeError, "bits must be an int, got 1.0", lambda: actcore.pack_bits(u8, 1.0)),
    (TypeError, "bits must be an int, got True", lambda: actcore.pack_bits(u8, True)),
    (
        TypeError,
        "codes must be a uint8 tensor, got torch.int64; cast with .to(torch.uint8)",
        lambda: actcore.pack_bits(torch.zeros(3, dtype=torch.int64), 1),
    ),
    (
        TypeError,
        "codes must be a uint8 tensor, got list; cast with .to(torch.uint8)",
        lambda: actcore.pack_bits([1, 2], 1),
    ),
    (
        ValueError,
        "codes must be below 2**bits = 4, but one is not; use more bits or clamp the codes",
        lambda: actcore.pack_bits(u8 + 4, 2),
    ),
    (ValueError, "bits must be from 1 to 8, got 0", lambda: actcore.unpack_bits(u8, 0, 100)),
    (TypeError, "packed must be a uint8 tensor, got torch.float32", lambda: actcore.unpack_bits(x, 1, 800)),
    (TypeError, "packed must be a uint8 tensor, got bytes", lambda: actcore.unpack_bits(b"abc", 1, 24)),
    (TypeError, "numel must be an int, got 8.0", lambda: actcore.unpack_bits(u8[:1], 1, 8.0)),
    (
        ValueError,
        "packed must hold 38 bytes for numel=100 codes of 3 bits, got 100",
        lambda: actcore.unpack_bits(u8, 3, 100),
    ),
    (
        ValueError,
        "packed must hold 0 bytes for numel=-1 codes of 3 bits, got 0",
        lambda: actcore.unpack_bits(u8[:0], 3, -1),
    ),
]


@pytest.mark.parametrize(("error", "text", "call"), PACK_ARGUMENTS, ids=range(len(PACK_ARGUMENTS)))
def test_packing(error, text, call):
    raises(error, text, call)


def test_raw_takes_everything():
    for _, tensor in list(tensors_without_strides())[:3]:
        assert actcore.decompress(actcore.compress(tensor, Raw())).layout == tensor.layout
