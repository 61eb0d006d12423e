"""What a forward may look at is computed even where the rest is fake.

Masks, positions and indices decide which way a forward takes: transformers' models look whether a mask masks, and
attend without one if it does not. They are small beside what is fake, and depend on nothing that is. Integers and truth
values are real tensors, so that whoever asks for their elements, or whether they are fake, is answered as in training.
Of small fractions on the way from one to the other (a mask that is made of ``torch.ones``, the logarithm of a distance)
a real twin is kept beside the fake tensor, until something that is not known is written there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_map_only

from integrations.checkpoint.dispatch.memory import is_plain, key_of, tensors_of
from integrations.checkpoint.dispatch.operators import Traits

_MOST = 1 << 24
"""Elements: a larger tensor is fake."""

_MOST_OF_TWINS = 1 << 20
"""Elements: a larger tensor of fractions has no twin."""

# They make the same of nothing but numbers.
_FACTORIES = frozenset(
    f"aten::{name}" for name in ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "zeros")
)


_TWIN = "_actcore_twin"  # an attribute of fake tensors


class MixedIndices(RuntimeError):
    """Elements that are not known were about to be written into integers or truth values that are."""


def is_index(tensor: Tensor) -> bool:
    """Whether it is of integers or truth values, and no larger than those that are computed."""
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex and tensor.numel() <= _MOST


def call(function: OpOverload, traits: Traits, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls an operator of a forward on fake tensors: on elements, if all that it reads is known.

    Raises:
        MixedIndices: it would write what is not known into integers or truth values that are real, and stay as they
            were: a fake result would take their place.
    """
    given = [*tensors_of(args), *tensors_of(kwargs.values())]
    written = traits.written(args, kwargs)
    if not _follows(function, traits, args, given, written):
        for tensor in written:
            _forget(tensor)
            if is_index(tensor) and _is_real(tensor) and any(isinstance(other, FakeTensor) for other in given):
                raise MixedIndices(f"{traits.name} writes what depends on elements into integers or truth values")
        return function(*args, **kwargs)
    known_args, known_kwargs = tree_map_only(Tensor, _known, (args, kwargs))
    with unset_fake_temporarily():
        known = function(*known_args, **known_kwargs)
    results = list(_results(known))
    if not any(isinstance(result, Tensor) and not is_index(result) for result in results):
        return known  # indices, or an element that the forward looks at
    made = function(*args, **kwargs)
    validity = {key_of(_known(tensor)): _twin(tensor)[1] for tensor in given if _twin(tensor)}
    for fake, result in zip(_results(made), results, strict=True):
        if isinstance(fake, FakeTensor) and _twin(fake) is None and result.numel() <= _MOST_OF_TWINS:
            setattr(fake, _TWIN, (result, validity.get(key_of(result), [True])))
    return made


def _follows(
    function: OpOverload, traits: Traits, args: tuple[Any, ...], given: list[Tensor], written: list[Tensor]
) -> bool:
    """Whether the elements of a call's results follow from what is known, and are few."""
    if traits.random or not traits.known or _elements(args) > _MOST:
        return False
    if not given and function._schema.name not in _FACTORIES:
        return False
    return all(map(_is_known, given)) and all(is_index(tensor) or not _is_real(tensor) for tensor in written)


def _is_real(tensor: Tensor) -> bool:
    return not isinstance(tensor, FakeTensor)


def _is_known(tensor: Tensor) -> bool:
    """Whether somebody knows its elements, and they are few."""
    if not is_plain(tensor):
        return False
    if isinstance(tensor, FakeTensor):
        return _twin(tensor) is not None
    return is_index(tensor) or tensor.numel() <= _MOST_OF_TWINS


def _twin(tensor: Tensor) -> Any:
    """The real tensor beside a fake one, and whether both are still alike: a list of one truth value, which all have
    that lie in the same memory; ``None`` where there is none."""
    found = getattr(tensor, _TWIN, None) if isinstance(tensor, FakeTensor) else None
    return found if found is not None and found[1][0] else None


def _known(tensor: Tensor) -> Tensor:
    found = _twin(tensor)
    return tensor if found is None else found[0]


def _forget(tensor: Tensor) -> None:
    """What is in a tensor's memory is not known any more."""
    found = _twin(tensor)
    if found is not None:
        found[1][0] = False


def _results(made: Any) -> Iterator[Any]:
    if isinstance(made, (list, tuple)):
        yield from made
    else:
        yield made


def _elements(args: tuple[Any, ...]) -> int:
    """Of a factory's size, if that is what it is given."""
    if args and isinstance(args[0], (list, tuple)) and all(isinstance(size, int) for size in args[0]):
        return math.prod(args[0])
    return 0
