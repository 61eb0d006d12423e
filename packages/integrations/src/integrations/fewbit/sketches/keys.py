"""The key of one forward's sketch: a seed and a stream, two int64 on the device, never read by the host."""

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
