"""``Raw``: the tensor itself."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from actcore.codec import require_tensors
from actcore.compressed import Compressed
from actcore.ops import Key


@dataclass(frozen=True)
class Raw:
    """Keeps the tensor unchanged, without a copy, for tensors that cannot be stored safely in fewer bytes.

    The stored form shares memory with the tensor and sees later in-place changes to it.
    """

    def compress(self, tensor: Tensor, *, seed: Key = 0, stream: Key = 0) -> Compressed:
        """Return the tensor, detached from its gradient history."""
        return Compressed.of(self, tensor, (tensor.detach(),))

    def decompress(self, compressed: Compressed) -> Tensor:
        """Return the tensor that was stored."""
        require_tensors(compressed)
        found = [(tuple(part.shape), part.dtype) for part in compressed.payload]
        if found != [(compressed.layout.shape, compressed.dtype)]:
            raise ValueError(
                f"the payload of {compressed!r} must be one tensor of that shape and dtype, got {found}; "
                "it is damaged or truncated: store the tensor again"
            )
        return compressed.payload[0]
