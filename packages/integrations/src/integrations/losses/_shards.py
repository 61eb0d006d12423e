"""``VocabularyShard``: a layer in tensor parallel, of whose classes each rank has some.

The weight is a ``DTensor`` placed as ``Shard(0)``. Each rank computes the logits of its own classes, from hidden states
that all ranks have. The softmax needs the largest logit and the sum of exponentials of all ranks, of each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from integrations.tracing.tensors import is_dtensor


@dataclass(frozen=True)
class VocabularyShard:
    """The classes of which this rank has the rows of a weight.

    Args:
        mesh: the ``DeviceMesh``, of one dimension, over which the weight is sharded.
        first: the first of this rank's classes.
        classes: the number of classes of all ranks.
    """

    mesh: Any
    first: int
    classes: int

    @classmethod
    def of(cls, weight: Any) -> VocabularyShard:
        """The shard of a ``DTensor`` for which ``why_whole`` finds nothing."""
        mesh, classes = weight.device_mesh, weight.shape[0]
        return cls(mesh, mesh.get_local_rank() * _most(classes, mesh), classes)

    @property
    def most(self) -> int:
        """The most classes that a rank has. Chunks, which all ranks cut alike, are sized by it."""
        return _most(self.classes, self.mesh)

    @property
    def numbers(self) -> tuple[str, int, int]:
        """The arguments of the operator that say what this shard is."""
        return self.mesh.get_group().group_name, self.first, self.classes

    @staticmethod
    def local(hidden: Any, weight: Any, bias: Any | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """What this rank computes with, as plain tensors: the input, and its parts of weight and bias. In backward, the
        gradient of the input is the sum over the ranks."""
        from torch.distributed.tensor import Partial

        given = _arrived(hidden.to_local(grad_placements=[Partial()]))
        return given, weight.to_local(), None if bias is None else bias.to_local()

    def join(self, outputs: Tensor) -> Tensor:
        """The ``DTensor`` of the outputs of all ranks, (..., classes), each of which has those of its classes."""
        from torch.distributed.tensor import DTensor, Shard

        shape = torch.Size((*outputs.shape[:-1], self.classes))
        stride = torch.empty(shape, device="meta").stride()
        placements = [Shard(outputs.dim() - 1)]
        return DTensor.from_local(outputs, self.mesh, placements, run_check=False, shape=shape, stride=stride)

    def replicate(self, values: Tensor) -> Tensor:
        """The ``DTensor`` of values that are equal on all ranks."""
        from torch.distributed.tensor import DTensor, Replicate

        return DTensor.from_local(values, self.mesh, [Replicate()], run_check=False)

    def total(self, values: Tensor) -> Tensor:
        """The sum over the ranks, which each gets with the whole gradient in backward."""
        from torch.distributed.tensor import DTensor, Partial, Replicate

        parts = DTensor.from_local(values, self.mesh, [Partial()], run_check=False)
        return _arrived(parts.redistribute(placements=[Replicate()]).to_local())

    def own_copy(self, name: str, tensor: Any) -> Any:
        """This rank's copy of an argument that all ranks have.

        Raises:
            ValueError: it is a ``DTensor`` of which each rank has a part.
        """
        if tensor is None or not is_dtensor(tensor):
            return tensor
        if not is_replicated(tensor, self.mesh):
            raise ValueError(
                f"{name} must be a plain tensor, or placed as (Replicate(),) on the mesh of weight, got "
                f"{tensor.placements}"
            )
        return _arrived(tensor.to_local())

    def own(self, classes: Tensor) -> tuple[Tensor, Tensor]:
        """Where each of some classes is in this rank's part of a weight, any place for those of other ranks; and
        whether it is this rank's."""
        return own_classes(classes, self.first, min(self.most, self.classes - self.first), self.classes)


def own_classes(classes: Tensor, first: int, count: int, of_all: int) -> tuple[Tensor, Tensor]:
    """The same for a rank with ``count`` classes from ``first``, of ``of_all`` classes of all ranks. A number that
    is no class stays as it is, so that indexing with it raises."""
    places = classes - first
    known = (classes >= 0) & (classes < of_all)
    return torch.where(known, places.clamp(0, count - 1), classes), (places >= 0) & (places < count)


def why_whole(weight: Tensor, bias: Tensor | None) -> str:
    """Why a loss in chunks cannot use a weight or a bias that is a ``DTensor``, in words; empty if it can."""
    from torch.distributed.tensor import Shard

    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if not is_dtensor(tensor):
            return f"the {name} is a plain tensor, and the other parameter a DTensor"
        mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
        if mesh.ndim != 1 or type(placements[0]) is not Shard or placements[0].dim != 0:
            return (
                f"the {name} is a DTensor placed as {tuple(placements)} on a mesh of shape {tuple(mesh.shape)}, and "
                "must be placed as (Shard(dim=0),) on a mesh of one dimension, as ColwiseParallel does"
            )
    mesh = weight.device_mesh  # type: ignore[attr-defined]
    if (mesh.size() - 1) * _most(len(weight), mesh) >= len(weight):
        return f"a rank has none of the {len(weight)} classes, but each of the {mesh.size()} ranks must have one"
    return ""


def is_replicated(tensor: Any, mesh: Any) -> bool:
    """Whether a tensor is a ``DTensor`` that all ranks of a mesh have whole."""
    alike = is_dtensor(tensor) and tensor.device_mesh == mesh
    return alike and all(placement.is_replicate() for placement in tensor.placements)


def _most(classes: int, mesh: Any) -> int:
    return -(-classes // int(mesh.size()))


def _arrived(tensor: Tensor) -> Tensor:
    """A tensor of which a collective may not have returned yet, as a plain tensor."""
    found: Tensor = _Arrived.apply(tensor) if hasattr(tensor, "wait") else tensor
    return found


class _Arrived(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Tensor:
        found: Tensor = tensor.wait().detach()
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient
