"""What runs side by side in one case, and how many bytes each of them must move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.runner.clock import Action

COMPRESS, DECOMPRESS, TRAIN = "compress", "decompress", "forward + backward"
COPY, CLONE = "copy_", "clone"
ACTCORE, TORCH, PLAIN = "actcore", "torch", "plain PyTorch"


@dataclass(frozen=True)
class Contender:
    """One thing to time.

    Attributes:
        who: whose code it is: ``"actcore"``, ``"torch"``, ``"plain PyTorch"`` or a library.
        what: ``"compress"``, ``"decompress"``, ``"forward + backward"``, or the yardsticks ``"copy_"`` and ``"clone"``.
        moved_bytes: that it must read and write at least, each once.
        action: runs it.
    """

    who: str
    what: str
    moved_bytes: int
    action: Action


@dataclass(frozen=True)
class RoundTrip:
    """A way to store a tensor, and back.

    Attributes:
        who: whose.
        compress, decompress: of a flat tensor; what is between them is its own affair.
        parts: the tensors of a stored form, which are written by the one and read by the other.
        dtypes: that it takes; ``None`` for all of the case's.
    """

    who: str
    compress: Callable[[Tensor], Any]
    decompress: Callable[[Any], Tensor]
    parts: Callable[[Any], list[Tensor]]
    dtypes: tuple[torch.dtype, ...] | None = None

    def contenders(self, x: Tensor) -> Iterator[Contender]:
        """Both ways, for the tensor ``x``."""
        if self.dtypes is not None and x.dtype not in self.dtypes:
            return
        stored = self.compress(x)
        moved = x.nbytes + sum(part.nbytes for part in self.parts(stored))
        yield Contender(self.who, COMPRESS, moved, lambda: self.compress(x))
        yield Contender(self.who, DECOMPRESS, moved, lambda: self.decompress(stored))


@dataclass(frozen=True)
class Pass:
    """An operator in training: forward, then backward with a given gradient.

    Attributes:
        who: whose.
        function: of a tensor that requires gradients.
    """

    who: str
    function: Callable[[Tensor], Tensor]

    def contenders(self, x: Tensor) -> Iterator[Contender]:
        """Forward and backward together, for the tensor ``x``."""
        saved: list[Tensor] = []

        def note(tensor: Tensor) -> Tensor:
            saved.append(tensor)
            return tensor

        leaf = x.detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            y = self.function(leaf)
        # On the device: a host draws normal values of a gibibyte in seconds.
        gradient = torch.randn(y.shape, generator=torch.Generator(x.device).manual_seed(1), device=x.device).to(y)
        # What is kept besides input and result is written and read; the input or the result, kept, is only read again.
        known = {x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()}
        kept = sum(part.nbytes * (1 if part.untyped_storage().data_ptr() in known else 2) for part in saved)
        moved = 2 * x.nbytes + 2 * y.nbytes + kept
        del y
        saved.clear()

        def run() -> object:
            leaf = x.detach().requires_grad_()
            y = self.function(leaf)
            return y, torch.autograd.grad(y, leaf, gradient)

        yield Contender(self.who, TRAIN, moved, run)


def yardsticks(x: Tensor) -> Iterator[Contender]:
    """A copy into memory that is there, and one into new memory: the units of the results."""
    target = torch.empty_like(x)
    yield Contender(TORCH, COPY, 2 * x.nbytes, lambda: target.copy_(x))
    yield Contender(TORCH, CLONE, 2 * x.nbytes, lambda: x.clone())
