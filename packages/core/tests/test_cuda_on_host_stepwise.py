"""The same as test_cuda_on_host.py, of few-bit derivatives."""

import pytest
import torch

import actcore  # noqa: F401 - its operators

from .emulation import ELEMENT_TYPES, Written, at_offset, same_bytes
from .fused_samples import levels_for
from .samples import BITS, DTYPES, NUMELS, integers, name_of, normal, not_finite

ops = torch.ops.actcore
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
GUARDS = ("none", "nan", "nonfinite")

SEED, STREAM = 2**60, -5


def samples(dtype):
    """With the bytes beyond a multiple of 16 at which their memory begins."""
    yield from ((normal(numel, dtype), skip) for numel in (*NUMELS[1:], 5000) for skip in (0, 1, 3))
    yield from ((x, 0) for x in not_finite(dtype).values())


def coded(expected, numel, bits, guard, skip):
    """Memory for codes, and where their guard's bytes are."""
    written = Written(expected.numel(), torch.uint8, skip=skip)
    return written, written.data_ptr() + (numel * bits + 7) // 8 if guard != "none" else 0


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_codes_and_gradients(kernels, dtype, bits):
    boundaries, levels = levels_for(bits, dtype)
    for number, (x, skip) in enumerate(samples(dtype)):
        guard, even = GUARDS[number % 3], number % 2 == 1
        table = (boundaries + 2).contiguous() if even else boundaries
        case = f"numel={x.numel()} skip={skip} guard={guard} even={even}"
        expected = ops.stepwise_codes(x, table, bits, even, guard)
        written, guards = coded(expected, x.numel(), bits, guard, skip)
        given = at_offset(x, skip * x.element_size())
        what = (given.data_ptr(), ELEMENT_TYPES[dtype], x.numel(), table.data_ptr(), table.numel(), bits, even)
        to = (written.data_ptr(), GUARDS.index(guard), guards)
        kernels.run("stepwise_codes", kernels.struct("StepwiseCodes")(*what, *to))
        same_bytes(written.tensor(), expected, case)

        gradient = ops.stepwise_backward(x, expected, levels, bits, guard != "none")
        codes, output = at_offset(expected, skip), Written(x.numel(), dtype, skip=skip * x.element_size())
        guards = codes.data_ptr() + (x.numel() * bits + 7) // 8 if guard != "none" else 0
        what = (given.data_ptr(), codes.data_ptr(), ELEMENT_TYPES[dtype], x.numel(), levels.data_ptr(), levels.numel())
        to = (bits, guards, output.data_ptr())
        kernels.run("stepwise_backward", kernels.struct("StepwiseBackward")(*what, *to))
        same_bytes(output.tensor(), gradient, case)


@every_dtype
@pytest.mark.parametrize("bits", [1, 3, 8])
def test_derivatives_rounded_to_levels(kernels, dtype, bits):
    levels = levels_for(bits, dtype)[1].sort().values
    if levels.numel() < 2:
        levels = torch.cat([levels, levels + 1])
    for number, (x, skip) in enumerate(samples(dtype)):
        guard, draw = GUARDS[number % 3], torch.tensor([7]) if number % 2 else None
        slope = x.sin().to(dtype)
        expected = ops.level_codes(slope, x, levels, bits, SEED, STREAM, draw, guard)
        written, guards = coded(expected, x.numel(), bits, guard, skip)
        slopes, inputs = (at_offset(part, skip * x.element_size()) for part in (slope, x))
        what = (slopes.data_ptr(), inputs.data_ptr(), ELEMENT_TYPES[dtype], x.numel())
        table = (levels.data_ptr(), levels.numel())
        noise = (bits, SEED, STREAM % 2**64, 0 if draw is None else draw.data_ptr())
        to = (written.data_ptr(), GUARDS.index(guard), guards)
        kernels.run("level_codes", kernels.struct("LevelCodes")(*what, *table, *noise, *to))
        same_bytes(written.tensor(), expected, f"numel={x.numel()} skip={skip} guard={guard} draw={draw}")


@every_dtype
@pytest.mark.parametrize("bits", BITS)
def test_a_code_without_a_level_gives_nan(kernels, dtype, bits):
    levels = levels_for(bits, dtype, missing=1)[1]
    gradient = normal(1100, dtype)
    codes = ops.pack_bits(integers(gradient.numel(), 0, 2**bits - 1, torch.uint8), bits)[0]
    expected = ops.stepwise_backward(gradient, codes, levels, bits, False)
    assert expected.isnan().any()
    output = Written(gradient.numel(), dtype)
    what = (gradient.data_ptr(), codes.data_ptr(), ELEMENT_TYPES[dtype], gradient.numel(), levels.data_ptr())
    kernels.run(
        "stepwise_backward", kernels.struct("StepwiseBackward")(*what, levels.numel(), bits, 0, output.data_ptr())
    )
    same_bytes(output.tensor(), expected, f"bits={bits}")
