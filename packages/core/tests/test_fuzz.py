"""Damaged stored forms, made at random: each raises what it should or decompresses, and no memory is touched wrongly.

Whether memory is touched wrongly is seen by AddressSanitizer: `nox -s sanitize` runs this with kernels built for it,
and with many more examples. ACTCORE_FUZZ_EXAMPLES says how many. What is damaged, and how, is in ``damage.py``.
"""

import copy
import dataclasses
import os
import re
import resource
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import actcore
from actcore import Layout
from actcore.fused.guards import guarded_bytes
from actcore.ops import packed_bytes

from .damage import CODECS, NUMBERS, STORED_DTYPES, damaged, stored
from .samples import DTYPES, NUMELS, normal

NO_MEMORY = re.compile("DefaultCPUAllocator: |actcore: CPU out of memory")  # the latter up to torch 2.11's headers
DAMAGED = "it is damaged or truncated: store the tensor again"

EXAMPLES = int(os.environ.get("ACTCORE_FUZZ_EXAMPLES", "200"))
# The same examples in every run of the normal suite; new ones each time where there are many.
fuzz = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="ACTCORE_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=list(HealthCheck),
)

ROOM = (8 if "ACTCORE_FUZZ_EXAMPLES" in os.environ else 1) << 30


@pytest.fixture(autouse=True)
def little_room():
    """To make very many elements raises, and takes not all memory that there is, nor seconds to fill and read them.
    AddressSanitizer has a limit of its own."""
    pages = Path("/proc/self/statm")
    if "libasan" in os.environ.get("LD_PRELOAD", "") or not pages.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(pages.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def result_of(function, *arguments):
    """What it returns, or the error that it raises."""
    try:
        return function(*arguments)
    except (ValueError, RuntimeError) as error:
        return error


def read(tensor: Tensor) -> None:
    """Reads every element, so that one outside of its memory is found. Large tensors leave no memory for a copy."""
    distinct = Layout.of(tensor).distinct_shape
    elements = result_of(tensor.as_strided(distinct, tensor.stride()).clone)
    assert isinstance(elements, Tensor) or NO_MEMORY.search(str(elements))


@fuzz
@given(damaged())
def test_a_damaged_form_is_refused_or_decompresses(c):
    y = result_of(actcore.decompress, c)
    if isinstance(y, ValueError):
        assert DAMAGED in str(y)
    elif isinstance(y, RuntimeError):  # strides that are possible, but not on this machine
        assert NO_MEMORY.search(str(y))
    else:
        assert (y.shape, y.dtype, y.device) == (c.shape, c.dtype, c.device)
        read(y)


@fuzz
@given(CODECS, stored())
def test_another_codec_refuses_what_it_cannot_have_stored(codec, c):
    """Though the form is sound, and it is the codec that is asked, not the form."""
    y = result_of(codec.decompress, c)
    if isinstance(y, Exception):
        assert isinstance(y, ValueError)
        assert DAMAGED in str(y)
    else:
        assert (y.shape, y.dtype) == (c.shape, c.dtype)
        read(y)


@fuzz
@given(stored())
def test_an_undamaged_form_decompresses(c):
    """The damage is what the other test refuses."""
    y = actcore.decompress(c)
    assert (y.shape, y.dtype) == (c.shape, c.dtype)
    read(y)


def tensors(*dtypes):
    """Small tensors, dense or not, of these dtypes and at times of another."""

    def make(numel, dtype, step, shape_of_bounds):
        x = torch.arange(numel * step).to(dtype)[::step]
        return x.view(-1, 2) if shape_of_bounds and numel % 2 == 0 else x

    kinds = st.one_of(st.sampled_from(dtypes), st.sampled_from(dtypes), STORED_DTYPES)
    numels = st.one_of(st.integers(0, 40), st.sampled_from(NUMELS))
    return st.builds(make, numels, kinds, st.sampled_from([1, 1, 1, 2]), st.booleans())


INT64 = st.one_of(st.integers(-(2**63), 2**63 - 1), NUMBERS.filter(lambda number: -(2**63) <= number < 2**63))
WIDTHS = st.one_of(st.integers(1, 8), INT64)
GROUP_SIZES = st.one_of(st.sampled_from([32, 64, 256]), INT64)
VALUES = st.one_of(st.sampled_from([0.0, 1.0]), st.floats())
FORMATS = st.sampled_from([torch.float8_e4m3fn, torch.float8_e5m2, torch.float32])
KEYS = tensors(torch.int64)
FLOATS, BYTES = tensors(*DTYPES), tensors(torch.uint8)

# What each operator takes, right or wrong. A new operator needs a line here.
ARGUMENTS = {
    "group_affine_compress": (FLOATS, WIDTHS, GROUP_SIZES, st.booleans(), INT64, INT64),
    "group_affine_decompress": (BYTES, FLOATS, INT64, WIDTHS, GROUP_SIZES),
    "group_affine_compress.tensor": (FLOATS, WIDTHS, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "group_affine_clamped_compress": (FLOATS, WIDTHS, GROUP_SIZES, st.booleans(), INT64, INT64, VALUES, VALUES),
    "group_affine_standardized_compress": (
        FLOATS,
        WIDTHS,
        GROUP_SIZES,
        st.booleans(),
        INT64,
        INT64,
        INT64,
        INT64,
        INT64,
    ),
    "group_affine_standardized_decompress": (
        BYTES,
        FLOATS,
        FLOATS,
        INT64,
        INT64,
        INT64,
        WIDTHS,
        GROUP_SIZES,
    ),
    "group_affine_standardized_activation": (
        *(BYTES, FLOATS, FLOATS, FLOATS, st.one_of(st.none(), FLOATS), INT64, INT64, INT64, WIDTHS, GROUP_SIZES),
        st.sampled_from(["none", "relu", "silu", "gelu", "gelu_tanh", "tanh"]),
    ),
    "has_wide_group": (FLOATS, GROUP_SIZES),
    "group_affine_rows_compress": (FLOATS, BYTES, INT64, GROUP_SIZES, st.booleans(), INT64, INT64),
    "group_affine_rows_compress.tensor": (FLOATS, BYTES, INT64, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "group_affine_rows_decompress": (BYTES, FLOATS, BYTES, INT64, GROUP_SIZES),
    "float8_compress": (FLOATS, FORMATS, GROUP_SIZES, st.booleans(), INT64, INT64),
    "float8_compress.tensor": (FLOATS, FORMATS, GROUP_SIZES, st.booleans(), KEYS, KEYS),
    "float8_decompress": (BYTES, FLOATS, FORMATS, GROUP_SIZES),
    "narrow_compress": (tensors(torch.int64, torch.uint8), INT64, INT64),
    "narrow_decompress": (BYTES, INT64, STORED_DTYPES, INT64, INT64),
    "pack_bits": (BYTES, WIDTHS),
    "unpack_bits": (BYTES, WIDTHS, INT64),
    "bit_mask_compress": (st.one_of(FLOATS, BYTES), VALUES, VALUES),
    "bit_mask_decompress": (BYTES, INT64, STORED_DTYPES, VALUES, VALUES),
    "positive_mask": (FLOATS,),
}


GUARD_NAMES = st.sampled_from(["none", "nan", "nonfinite", "", "None"])

# The fused operators whose stored form is read by the place that an element lies at.
FUSED_ARGUMENTS = {
    "stepwise_codes": (FLOATS, FLOATS, WIDTHS, st.booleans(), GUARD_NAMES),
    "stepwise_backward": (FLOATS, BYTES, FLOATS, WIDTHS, st.booleans()),
    "level_codes": (FLOATS, FLOATS, FLOATS, WIDTHS, INT64, INT64, st.one_of(st.none(), KEYS), GUARD_NAMES),
}


def overload_of(operator):
    name, _, overload = operator.partition(".")
    return getattr(getattr(torch.ops.actcore, name), overload or "default")


@pytest.mark.parametrize("operator", [*ARGUMENTS, *FUSED_ARGUMENTS])
def test_an_operator_given_anything_raises_or_returns(operator):
    @settings(fuzz, max_examples=max(10, EXAMPLES // 4))
    @given(st.tuples(*(ARGUMENTS | FUSED_ARGUMENTS)[operator]))
    def run(arguments):
        outputs = result_of(overload_of(operator), *arguments)
        if isinstance(outputs, RuntimeError):
            assert f"actcore::{operator.partition('.')[0]}: " in str(outputs) or NO_MEMORY.search(str(outputs))
            return
        for output in outputs if isinstance(outputs, tuple) else (outputs,):
            read(output)

    run()


@fuzz
@given(st.integers(1, 8), st.sampled_from([32, 64, 256]), st.sampled_from(NUMELS), st.sampled_from(DTYPES), st.data())
def test_group_affine_decompresses_any_bytes(bits, group_size, numel, dtype, data):
    """Payloads of the right size and any content: codes and bounds that were never stored together."""
    groups = -(-numel // group_size)
    size = packed_bytes(numel, bits)
    content = data.draw(st.binary(min_size=1, max_size=64))
    codes = torch.tensor(list(content), dtype=torch.uint8).repeat(size // len(content) + 1)[:size].clone()
    raw = torch.tensor(list(content[::-1]), dtype=torch.uint8).repeat(2 * groups * dtype.itemsize)
    bounds = raw[: 2 * groups * dtype.itemsize].clone().view(dtype).view(groups, 2)
    y = torch.ops.actcore.group_affine_decompress(codes, bounds, numel, bits, group_size)
    assert (y.shape, y.dtype) == ((numel,), dtype)
    read(y)


@fuzz
@given(st.integers(1, 8), st.sampled_from(NUMELS), st.sampled_from(DTYPES), st.booleans(), st.data())
def test_stepwise_backward_reads_any_bytes(bits, numel, dtype, guarded, data):
    """Codes and guards of the right size and any content, and fewer levels than the codes may name."""
    size = guarded_bytes(numel, bits, guarded)
    content = data.draw(st.binary(min_size=1, max_size=64))
    codes = torch.tensor(list(content), dtype=torch.uint8).repeat(size // len(content) + 1)[:size].clone()
    levels = torch.ones(data.draw(st.integers(1, 2**bits)), dtype=torch.float64 if dtype == torch.float64 else None)
    y = torch.ops.actcore.stepwise_backward(torch.ones(numel, dtype=dtype), codes, levels, bits, guarded)
    assert (y.shape, y.dtype) == ((numel,), dtype)
    assert bool((y.isnan() | (y == 1)).all())
    read(y)


@pytest.mark.parametrize("value", [0, -32, 33, 2**62, "256", None], ids=repr)
def test_a_damaged_group_size(value):
    """group_size=0 was a ZeroDivisionError."""
    c = actcore.compress(normal(1000), actcore.GroupAffine(4))
    codec = copy.copy(c.codec)
    object.__setattr__(codec, "group_size", value)
    with pytest.raises(ValueError, match=DAMAGED) as error:
        actcore.decompress(dataclasses.replace(c, codec=codec))
    assert f"group_size={value!r}" in str(error.value)
    assert "group_size must be" in str(error.value)


def test_every_operator_and_codec_is_fuzzed():
    assert set(ARGUMENTS) == set(actcore.ops.OPERATORS)
