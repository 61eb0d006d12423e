"""``store_seconds`` and ``restore_seconds``: the time that a codec takes for a tensor, by the rates of its device."""

from __future__ import annotations

from collections.abc import Mapping

from actcore import BitMask, Codec, GroupAffine, Offload, Positive, Raw
from integrations.capture.costs.rates import LinearTime, Rates
from integrations.policies.codebooks.codebook import Codebook

GROUPS, MASK = "groups", "mask"
"""Kinds of codecs that take about as long: those with groups of elements, and those with a bit for each. A number of
bits that was measured is a kind of its own."""

# A derivative's steps in 1 to 8 bits against groups of elements: seconds to find the interval of each element, then to
# restore one. Measured on a CPU with AVX-512: 2 ** 21 elements of float32, one thread.
_SLOPES = (0.6, 0.7, 1.1, 1.4, 2.0, 2.6, 3.4, 5.0)
_RESTORED_SLOPES = 3.5


def get_kind(codec: Codec) -> str:
    """The name that rates have for the codec, such as ``"4 bits"``."""
    if isinstance(codec, GroupAffine):
        return f"{codec.bits} bits"
    return MASK if isinstance(codec, BitMask | Positive) else GROUPS


def store_seconds(rates: Rates, codec: Codec | None, numel: int, normalised: bool = False) -> float:
    """The seconds to store a tensor, the session's Python included.

    Args:
        rates: the rates of the tensor's device and dtype.
        codec: what makes the stored form, which ``Offload`` moves to the host; ``None`` if only the shape is stored.
        numel: elements of the tensor.
        normalised: whether the elements are normalised first.
    """
    own = codec.inner if isinstance(codec, Offload) else codec
    times = _SLOPES[own.bits - 1] if isinstance(own, Codebook) else 1.0
    passes = rates.standardizing[0] * normalised * rates.traffic(2 * numel * rates.itemsize)
    return rates.host.store + passes + _seconds(rates, rates.store, rates.to_host, codec, numel, times)


def restore_seconds(rates: Rates, codec: Codec | None, numel: int, normalised: bool = False) -> float:
    """The seconds to restore it, each time; arguments as for ``store_seconds``."""
    made = 0 if codec is None or isinstance(codec, Raw) else numel * rates.itemsize
    own = codec.inner if isinstance(codec, Offload) else codec
    times = _RESTORED_SLOPES if isinstance(own, Codebook) else 1.0
    kernel = _seconds(rates, rates.restore, rates.from_host, codec, numel, times)
    passes = rates.standardizing[1] * normalised * rates.traffic(2 * numel * rates.itemsize)
    return rates.host.restore + kernel + passes + rates.allocation(made)


def _seconds(
    rates: Rates, lines: Mapping[str, LinearTime], crossing: LinearTime, codec: Codec | None, numel: int, times: float
) -> float:
    if isinstance(codec, Offload):
        return _seconds(rates, lines, crossing, codec.inner, numel, times) + crossing.at(
            _nbytes(rates, codec.inner, numel)
        )
    if codec is None or isinstance(codec, Raw):
        return 0.0
    return times * lines.get(get_kind(codec), lines[GROUPS]).at(numel)


def _nbytes(rates: Rates, codec: Codec, numel: int) -> float:
    """The approximate bytes of a stored form."""
    if isinstance(codec, Codebook):
        return codec.stored_bytes(numel)
    if isinstance(codec, GroupAffine):
        return numel * (codec.bits / 8 + 2 * rates.itemsize / codec.group_size)
    return numel / 8 if get_kind(codec) == MASK else numel * rates.itemsize
