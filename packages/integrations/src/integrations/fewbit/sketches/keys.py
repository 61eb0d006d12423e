"""The key of one forward's sketch: a seed and a stream, two int64 on the device, never read by the host."""

from __future__ import annotations

import torch
from torch import Tensor

import actcore


def drawn_key(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """A key drawn from a generator, ``None`` for torch's own of the device: ``torch.manual_seed`` decides.

    Ranks whose generators are alike get different keys.
    """
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
