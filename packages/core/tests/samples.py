"""The tensors that tests compress, and what tests share to compare them."""

import math
import random

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BITS = range(1, 9)
GROUP_SIZES = (32, 64, 96, 256, 1024)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}

# Around every border that a kernel has: 8 codes, 16 noise bytes, vectors of 4 to 16, tiles of 128, rows of 32, groups.
NUMELS = (0, 1, 7, 8, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1000, 2049)


def name_of(value: object) -> str:
    """A parameter's name in pytest's list."""
    return str(value).removeprefix("torch.")


def normal(numel: int, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> Tensor:
    """Standard normal values, the same ones in every run."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(numel, generator=generator, dtype=torch.float64).to(dtype)


def uniform(numel: int, low: float, high: float, *, seed: int = 0) -> Tensor:
    """Float64 values between ``low`` and ``high``, whose difference may overflow."""
    unit = torch.rand(numel, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return low * (1 - unit) + high * unit


def integers(numel: int, low: int, high: int, dtype: torch.dtype = torch.int64, *, seed: int = 0) -> Tensor:
    """Integers from ``low`` to ``high``, both among them where there is room for two."""
    generator = random.Random(seed)
    values = [generator.randint(low, high) for _ in range(numel)]
    if numel > 1:
        values[numel // 2], values[-1] = low, high
    return torch.tensor(values, dtype=dtype)


def hard_ranges(dtype: torch.dtype, numel: int = 600) -> dict[str, Tensor]:
    """Tensors whose ranges are hard for arithmetic in ``dtype``, by name."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps  # the smallest positive value
    scaled_up_below = 2.0**-900 if dtype == torch.float64 else 2.0**-100
    places = torch.arange(numel, dtype=torch.float64)
    largest = torch.full((numel,), info.max, dtype=torch.float64)
    cases = {
        "offset 1": 1 + uniform(numel, 0, 1),
        "offset 1e4": 1e4 + uniform(numel, 0, 1),
        "one ulp": 1 + info.eps * (places % 2),
        "subnormals": subnormal * (places % 5),
        "up to the smallest normal": uniform(numel, -info.smallest_normal, info.smallest_normal),
        "range overflows": uniform(numel, -info.max, info.max),
        "range barely fits": uniform(numel, 0, info.max),
        "only the extremes": largest.where(places % 2 == 0, -largest),
        "outlier": (largest / 2).where(places % 100 == 0, places),
        "constant": torch.full((numel,), 0.1, dtype=torch.float64),
        "largest constant": -largest,
        "smallest constant": torch.full((numel,), subnormal, dtype=torch.float64),
        "zeros of both signs": torch.where(places % 2 == 0, 0.0, -0.0),
        "negative zeros": torch.full((numel,), -0.0, dtype=torch.float64),
        "ties": (places % 511) / 2,
    }
    if info.smallest_normal < scaled_up_below:
        cases["at the scaling threshold"] = scaled_up_below * (places % 256) / 255
        cases["below the scaling threshold"] = scaled_up_below * (1 - info.eps) * (places % 256) / 255
    return {name: values.to(dtype) for name, values in cases.items()}


def not_finite(dtype: torch.dtype, numel: int = 600) -> dict[str, Tensor]:
    """Tensors with one element of the second group of 256 (or the last of all) that is not finite."""
    cases = {}
    for name, strange in (("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf)):
        for place in (256, 300, 511, numel - 1):
            values = normal(numel, dtype)
            values[place] = strange
            cases[f"{name} at {place}"] = values
    both = normal(numel, dtype)
    both[300], both[400] = math.inf, -math.inf
    return cases | {"both infinities": both} | (_unusual_nans(numel) if dtype == torch.bfloat16 else {})


def _unusual_nans(numel: int) -> dict[str, Tensor]:
    """Of bfloat16, by their bits: negative ones, and those of the most and the least bits, at the front, in the middle
    and at the end of the second group, and all over it."""
    cases = {}
    for bits in (0xFFC0, 0xFFFF, 0xFF81, 0x7FFF, 0x7F81):
        for place in (slice(256, 257), slice(300, 301), slice(511, 512), slice(256, 512), slice(numel - 1, numel)):
            values = normal(numel, torch.bfloat16)
            values.view(torch.int16)[place] = bits - (bits >> 15 << 16)
            cases[f"nan {bits:#x} at {place.start} to {place.stop}"] = values
    return cases


def as_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes, in contiguous order."""
    return tensor.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8)


def same_bits(got: Tensor, expected: Tensor) -> bool:
    """Whether two tensors agree in shape, dtype and every bit. Zeros of both signs differ; any NaN equals any other."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    return torch.equal(as_bytes(got.where(~got.isnan(), 0)), as_bytes(expected.where(~expected.isnan(), 0))) and (
        torch.equal(got.isnan(), expected.isnan())
    )


def assert_same_bytes(got: Tensor, expected: Tensor, case: object = "") -> None:
    """Every bit, those of NaN included: the same seed gives on the GPU the bytes that it gives on the CPU."""
    assert got.device.type == "cuda", case
    assert got.shape == expected.shape, case
    assert got.dtype == expected.dtype, case
    assert torch.equal(as_bytes(got.cpu()), as_bytes(expected)), case
