"""Which tensor lies in which value's memory.

A value is a storage. Storages are identified by themselves and never by an address of elements, which is used again as
soon as something is freed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from integrations._utils.plain_tensor_types import PLAIN
from integrations._utils.storages import StorageMap
from integrations._utils.torch_internals import conj, is_traceable_wrapper_subclass, neg_view

_STRIDED = torch.strided
_CUDA_BLOCK = 512  # bytes: kMinBlockSize of torch's CUDACachingAllocator


def is_plain(tensor: Tensor) -> bool:
    """Whether the tensor is a view of one storage and nothing else: not sparse, nested, quantised or of a subclass."""
    if type(tensor) not in PLAIN and not isinstance(tensor, torch.nn.Buffer):
        return False
    return tensor.layout is _STRIDED and not tensor.is_nested and not tensor.is_quantized


def is_wrapper(tensor: Tensor) -> bool:
    """Return whether a tensor keeps its elements in other tensors: nested tensors, DTensors and other wrapper
    subclasses, but not sparse tensors."""
    return bool(tensor.is_nested) or is_traceable_wrapper_subclass(tensor)


def get_key(tensor: Tensor) -> int:
    """A key for a plain tensor's storage, valid as long as something refers to the storage, if only weakly."""
    address: int = tensor.untyped_storage()._cdata
    return address


def allocated(nbytes: int, device: torch.device) -> int:
    """The bytes that memory of some size takes, as the device's allocator counts them.

    torch's caching allocator for CUDA hands out blocks of whole multiples of 512 bytes and counts those, in
    ``memory_allocated`` and in its peak. Two things are not counted: a block of the large pool keeps up to 1 MiB that
    the one before it in the same place had more (none with ``expandable_segments``), and what is reserved and not
    handed out depends on the order of all that came before. A tensor on ``meta`` has no memory.
    """
    if device.type == "meta":
        return 0
    return -(-nbytes // _CUDA_BLOCK) * _CUDA_BLOCK if device.type == "cuda" else nbytes


def allocated_for(tensor: Tensor) -> int:
    """``allocated`` for a tensor's whole storage."""
    return allocated(tensor.untyped_storage().nbytes(), tensor.device)


def allocated_for_elements(tensor: Tensor) -> int:
    """``allocated`` for a tensor's elements, including those that a sparse tensor leaves out."""
    return allocated(count_bytes(tensor), tensor.device)


def count_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor's elements."""
    return count_elements(tensor) * tensor.element_size()


def count_elements(tensor: Tensor) -> int:
    """Return the number of a tensor's elements; 0 for a subclass that does not tell it."""
    try:
        return int(tensor.numel())
    except (NotImplementedError, RuntimeError):
        return 0


def iter_parts(tensor: Tensor) -> Iterator[Tensor]:
    """The plain tensors in whose memory a tensor lies, such as those that a DTensor wraps."""
    if is_plain(tensor):
        yield tensor
    elif is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from iter_parts(getattr(tensor, name))


def iter_tensors(given: Any) -> Iterator[Tensor]:
    """The tensors among an operator's arguments or results, which are tensors, lists of them and plain values."""
    for item in given:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from iter_tensors(item)


class Memory:
    """The storages that hold values.

    Attributes:
        storages: the value in each storage.
    """

    def __init__(self) -> None:
        self.storages: StorageMap[int] = StorageMap()

    def value_in(self, tensor: Tensor) -> int | None:
        """The value that a plain tensor is a view of; ``None`` for parameters, inputs and other memory without a
        value."""
        return self.value_at(get_key(tensor))

    def value_at(self, key: int) -> int | None:
        """The value in the storage with this key."""
        return self.storages.by_address.get(key)

    def add(self, tensor: Tensor, value: int) -> None:
        """Notes that the tensor's storage holds this value from now on."""
        self.storages.put(tensor.untyped_storage(), value)

    def new(self, results: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[int, Tensor]]:
        """The results that lie in storages of their own, with their places among all results."""
        found: list[tuple[int, Tensor]] = []
        known = self.storages.by_address
        keys: set[int] | None = None
        for place, result in enumerate(iter_tensors(results)):
            if not is_plain(result):
                continue
            key = get_key(result)
            if key in known:
                continue
            if keys is None:
                given = (*iter_tensors(args), *iter_tensors(kwargs.values())) if kwargs else iter_tensors(args)
                keys = {get_key(tensor) for tensor in given if is_plain(tensor)}
            if key not in keys:
                keys.add(key)  # several results may share one storage
                found.append((place, result))
        return found


class Geometry(NamedTuple):
    """How a tensor lies in its storage."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Geometry:
        """The geometry of a plain tensor."""
        return cls(
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),  # type: ignore[arg-type]
            tensor.dtype,
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def view(self, base: Tensor) -> Tensor:
        """The tensor of this geometry in the storage of ``base``."""
        if base.dtype == self.dtype and not base.is_conj() and not base.is_neg():
            tensor = torch.as_strided(base, self.size, self.stride, self.offset)
        else:
            tensor = base.new_empty(0, dtype=self.dtype)
            tensor.set_(base.untyped_storage(), self.offset, self.size, self.stride)
        if self.conjugate:
            tensor = conj(tensor)
        return neg_view(tensor) if self.negative else tensor


def get_shapes(results: Any) -> tuple[tuple[int, ...], ...]:
    """The shapes of an operator's results. Results of bytes are left out: they are a kernel's notes, whose size depends
    on the kernel."""
    return tuple(tuple(tensor.shape) for tensor in iter_tensors(results) if tensor.dtype is not torch.uint8)
