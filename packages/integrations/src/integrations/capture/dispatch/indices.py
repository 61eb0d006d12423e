"""Computes what a forward may look at, even where everything else is fake.

Masks, positions and indices decide which way a forward takes: transformers' models check whether a mask masks anything,
and attend without one if it does not. Such tensors are small, and depend on nothing that is fake. So tensors of
integers and truth values are real, and code that asks for their elements, or whether they are fake, is answered as in
training. Small tensors of fractions on the way from one to the other (a mask made of ``torch.ones``, the logarithm of a
distance) have real twins, one for each fake storage, until something unknown is written there. The twin is looked up by
the storage in which a tensor lies at that moment, since ``set_`` and ``.data`` give it another.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from integrations._utils.torch_internals import FakeTensor, OpOverload, tree_map_only, unset_fake_temporarily
from integrations.capture.dispatch.memory import Geometry, get_key, is_plain, iter_parts, iter_tensors
from integrations.capture.dispatch.operators import Traits

_MOST = 1 << 24
"""A tensor with more elements is fake."""

_MOST_OF_TWINS = 1 << 20
"""A tensor of fractions with more elements has no twin, and packed weights with more have no elements."""

# Weights are packed in these dtypes. Masks are of truth values, and positions of 64 bits.
_PACKED = frozenset(
    # GPTQ packs eight weights into an int32.
    {torch.int8, torch.uint8, torch.int16, torch.uint16, torch.int32, torch.uint32}
)

# These make tensors of numbers alone, always the same ones.
_FACTORIES = frozenset(
    f"aten::{name}" for name in ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")
)

_TWIN = "_actcore_twin"  # an attribute of fake tensors' storages


class MixedIndices(RuntimeError):
    """Unknown elements were about to be written into real integers or truth values."""


@dataclass(slots=True, eq=False)
class _Twin:
    """The real memory beside a fake storage.

    Attributes:
        base: some tensor in that memory.
        valid: whether the elements are still those that the fake storage would have.
        shared: whether real integers or truth values lie there, too.
    """

    base: Tensor
    shared: bool
    valid: bool = True


def is_index(tensor: Tensor) -> bool:
    """Whether a tensor is of integers or truth values and small enough to be computed."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() <= _MOST


def keeps_elements(tensor: Tensor) -> bool:
    """Whether the stand-in of a parameter, buffer or input, or a tensor made in a forward, is to have its elements.

    Large weights that are packed in integers are not, nor what they are unpacked to: a forward does not look at them,
    and makes fractions of all of them.
    """
    return is_index(tensor) and (tensor.dtype not in _PACKED or tensor.numel() <= _MOST_OF_TWINS)


def call(function: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operator of a forward on fake tensors; on real elements if all that it reads is known.

    Raises:
        MixedIndices: it would write unknown elements into real integers or truth values. These stay as they were.
    """
    given = [*iter_tensors(args), *iter_tensors(kwargs.values())]
    if traits.view and any(isinstance(tensor, FakeTensor) for tensor in given):
        return function(*args, **kwargs)  # a view lies in the same fake storage, and is known if that is
    written = traits.written(args, kwargs)
    if traits.updates_statistics(args):
        written += iter_tensors(args[place] for place in traits.statistics[:2])
    if not _follows(function, traits, args, given, written):
        _forget(traits, written)
        return function(*args, **kwargs)
    made, is_made = None, False
    if not _is_small(function, traits, given):
        with suppress(Exception):  # sizes may depend on elements; an error of the call itself is raised below
            made, is_made = function(*args, **kwargs), True
        if not all(keeps_elements(result) or result.numel() <= _MOST_OF_TWINS for result in iter_tensors([made])):
            _forget(traits, written)
            return made
    known_args, known_kwargs = tree_map_only(Tensor, _copied if traits.view else _known, (args, kwargs))
    with unset_fake_temporarily():
        known = function(*known_args, **known_kwargs)
    results = list(iter_tensors([known]))
    if all(map(is_index, results)) and not any(isinstance(tensor, FakeTensor) for tensor in written):
        return known  # indices, or an element that the forward looks at
    if not is_made:
        made = function(*args, **kwargs)
    for fake, result in zip(iter_tensors([made]), results, strict=True):
        _attach(fake, result, given)
    return made


def _follows(
    function: OpOverload, traits: Traits, args: tuple[Any, ...], given: list[Tensor], written: list[Tensor]
) -> bool:
    """Whether the elements of a call's results follow from known ones."""
    if traits.random or not traits.known or any(isinstance(item, torch.UntypedStorage) for item in args):
        return False
    if not given and function._schema.name not in _FACTORIES:
        return False
    return all(map(_is_known, given)) and all(map(_may_be_written, written))


def _may_be_written(tensor: Tensor) -> bool:
    """Whether a write to a known tensor is seen through all tensors in its memory, and by nothing outside of the
    capture."""
    if _is_real(tensor):
        return is_index(tensor)
    found = _twin(tensor)
    return found is not None and not found.shared


def _is_small(function: OpOverload, traits: Traits, given: list[Tensor]) -> bool:
    """Whether the results take little to compute, as far as their sizes are known without a call on fake tensors."""
    if traits.view:
        return True
    if torch.Tag.pointwise not in function.tags:
        return False
    try:
        elements: int = math.prod(torch.broadcast_shapes(*(tensor.shape for tensor in given)))
        return elements <= _MOST_OF_TWINS
    except RuntimeError:  # an out argument of another shape
        return False


def _is_real(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor)


def _is_known(tensor: Tensor) -> bool:
    """Whether a tensor's elements are known, and few."""
    if not is_plain(tensor):
        return False
    if _is_real(tensor) and is_index(tensor):
        return True
    return tensor.numel() <= _MOST_OF_TWINS and (_is_real(tensor) or _twin(tensor) is not None)


def _twin(tensor: Tensor) -> _Twin | None:
    """The twin of a plain fake tensor's storage; ``None`` if it has no valid one."""
    storage = tensor.untyped_storage()
    found: _Twin | None = getattr(storage, _TWIN, None)
    if found is None or not found.valid or found.base.untyped_storage().nbytes() != storage.nbytes():
        return None
    return found


def _known(tensor: Tensor) -> Tensor:
    """The real tensor in the place of one whose elements are known."""
    if _is_real(tensor):
        return tensor
    found = _twin(tensor)
    assert found is not None
    with unset_fake_temporarily():
        return Geometry.of(tensor).view(found.base)


def _copied(tensor: Tensor) -> Tensor:
    """The same for a view's base: a copy of fractions that belong to the caller, which would be written otherwise."""
    if is_index(tensor):
        return tensor
    with unset_fake_temporarily():
        return tensor.clone()


def _attach(fake: Tensor, result: Tensor, given: list[Tensor]) -> None:
    """Notes an operator's real result beside its fake one."""
    if not isinstance(fake, FakeTensor):
        return
    fake.constant = None  # torch's own twin of a literal does not follow ``.data``
    if not is_plain(fake) or not is_plain(result):
        return
    storage, key = fake.untyped_storage(), get_key(result)
    found: _Twin | None = getattr(storage, _TWIN, None)
    if found is not None:
        found.valid = found.valid and get_key(found.base) == key  # otherwise it lies elsewhere than the fake one
        return
    if Geometry.of(fake) != Geometry.of(result) or storage.nbytes() != result.untyped_storage().nbytes():
        return
    twin = _Twin(result, shared=False)
    for tensor in given:
        if _is_real(tensor) and get_key(tensor) == key:
            if not is_index(tensor):
                return
            twin.shared = True
        elif not _is_real(tensor):
            beside = _twin(tensor)
            if beside is not None and get_key(beside.base) == key:
                twin = beside
    setattr(storage, _TWIN, twin)


def _forget(traits: Traits, written: list[Tensor]) -> None:
    """Marks the elements in the memory of these tensors as unknown."""
    mixed = False
    for tensor in written:
        mixed |= is_index(tensor) and _is_real(tensor)
        for part in iter_parts(tensor):
            found = _twin(part) if isinstance(part, FakeTensor) else None
            if found is not None:
                found.valid = False
                mixed |= found.shared
    if mixed:
        raise MixedIndices(f"{traits.name} writes values that depend on elements into integer or bool tensors")
