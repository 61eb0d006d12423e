"""The key of one forward's sketch, a seed and a stream: two int64 on the device, never read by the host. The noise that
it gives is that of Philox4x32-10 (Salmon et al., SC 2011), in torch's integers.

Its words are those of actcore's kernels and of ``actcore.reference``, for the same seed, stream and block. Nothing here
waits for the device, and the key may change between replays of a CUDA graph.
"""

from __future__ import annotations

import torch
from torch import Tensor

import actcore


def drawn_key(like: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A key on the device of ``like``, drawn from a generator, ``None`` for torch's own: ``torch.manual_seed`` decides.

    Ranks whose generators are alike get different keys.
    """
    if generator is None:
        key: Tensor = _drawn(like.detach())
        return key
    return _draw(like.device, generator)


# An operator of the input: in a compiled layer torch's own randint, which has no input, is drawn anew in backward, and
# the sketch there is another one. The tag: two calls are never one.
@torch.library.custom_op("integrations::sketch_key", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def _drawn(like: Tensor) -> Tensor:
    return _draw(like.device, None)


@_drawn.register_fake
def _(like: Tensor) -> Tensor:
    return like.new_empty(2, dtype=torch.int64)


def _draw(device: torch.device, generator: torch.Generator | None) -> Tensor:
    source = device if generator is None else generator.device
    draw = torch.randint(-(2**63), 2**63 - 1, (1,), dtype=torch.int64, device=source, generator=generator)
    return _key(draw.to(device, non_blocking=True), _signed(actcore.stream_of("sketch", 0, actcore.current_rank())))


def seeded_key(device: torch.device, seed: int, stream: int | Tensor) -> Tensor:
    """The key of a seed and a stream, ``Int64["1"]`` where it is a tensor."""
    return _key(torch.full((1,), _signed(seed), dtype=torch.int64, device=device), stream)


def next_stream(like: Tensor, seed: int) -> Tensor:
    """The next stream of this process's counter for a seed: ``Int64["1"]`` on the device of ``like``."""
    counter: int = actcore.stream_of(f"sketches of seed {seed}", 0, 0) >> 1
    stream: Tensor = torch.ops.actcore.next_stream(like.detach(), counter)
    return stream


def _key(seed: Tensor, stream: int | Tensor) -> Tensor:
    if not isinstance(stream, Tensor):
        stream = torch.full((1,), _signed(stream), dtype=torch.int64, device=seed.device)
    return torch.cat([seed, stream])


def _signed(number: int) -> int:
    """The low 64 bits, as torch's signed integers hold them."""
    return (number + 2**63) % 2**64 - 2**63


_WORD = 0xFFFFFFFF


def philox(key: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four random words of 32 bits, as int64, for each counter.

    Args:
        key: ``Int64["2"]``: seed and stream.
        low: ``Int64["..."]``, the counter's lower word, 0 to 2**32 - 1.
        high: ``Int64["..."]``, its upper word; the two are broadcast together.
    """
    k0, k1 = key[0] & _WORD, key[0] >> 32 & _WORD
    x0, x1, x2, x3 = low, high, key[1] & _WORD, key[1] >> 32 & _WORD
    rounds = counters(0, 10, key.device)
    keys0, keys1 = (k0 + rounds * 0x9E3779B9) & _WORD, (k1 + rounds * 0xBB67AE85) & _WORD
    for k0, k1 in zip(keys0.unbind(), keys1.unbind(), strict=True):
        p0, p1 = x0 * 0xD2511F53, x2 * 0xCD9E8D57  # int64 wraps modulo 2**64, which keeps both halves right
        x0, x1 = (p1 >> 32 & _WORD) ^ x1 ^ k0, p1 & _WORD
        x2, x3 = (p0 >> 32 & _WORD) ^ x3 ^ k1, p0 & _WORD
    return x0, x1, x2, x3


def counters(start: int, end: int, device: torch.device) -> Tensor:
    """``Int64["end - start"]``: the numbers from ``start`` on."""
    return torch.arange(start, end, device=device)


def uniforms(key: Tensor, number: int) -> Tensor:
    """``Float64["number"]``: uniform in [0, 1), multiples of 2**-52."""
    low = counters(0, (number + 1) // 2, key.device)
    x0, x1, x2, x3 = philox(key, low, torch.zeros_like(low))
    words = torch.stack([x0 | (x1 & 0xFFFFF) << 32, x2 | (x3 & 0xFFFFF) << 32], dim=-1)
    return words.reshape(-1)[:number].double() * 2.0**-52


def subsets(key: Tensor, number: int, size: int, high: Tensor) -> Tensor:
    """``number`` distinct numbers below ``size``, uniformly at random, for each ``high``.

    Args:
        high: ``Int64["b"]``, the counter's upper word; equal ones give equal subsets.

    Returns:
        ``Int64["b number"]``.
    """
    x0, x1, _, _ = philox(key, counters(0, size, key.device), high[:, None])
    # The order of random numbers of 63 bits is a random order: two are equal with a probability below size**2 / 2**64.
    return (x0 | (x1 & 0x7FFFFFFF) << 32).argsort(dim=-1)[:, :number]
