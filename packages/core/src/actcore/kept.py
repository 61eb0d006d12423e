"""``Kept``: a tensor that a pack hook leaves as it is, and the version check that autograd then no longer makes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor that is kept exactly, and its version when it was saved.

    Autograd checks versions only if no hook is active, so ``unpack`` does it.
    """

    tensor: Tensor
    version: int

    @classmethod
    def of(cls, tensor: Tensor) -> Kept:
        """Return a ``Kept`` with ``tensor``, detached."""
        # Detached: the tensor may be the result of the very node that will hold this, and a cycle through C++ is
        # never collected. The alias shares the version counter.
        return cls(tensor.detach(), tensor._version)

    def unpack(self) -> Tensor:
        """Return the tensor.

        Raises:
            RuntimeError: the tensor was changed in place since; the message begins as torch's.
        """
        found = self.tensor._version
        if found != self.version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{self.tensor.type()} {list(self.tensor.shape)}] is at version {found}; expected version "
                f"{self.version} instead. Hint: saved-tensor hooks keep this tensor exactly and check its version in "
                "place of autograd; use an out-of-place operation, or change the tensor after backward."
            )
        return self.tensor
