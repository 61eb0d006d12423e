"""What comes from outside, JSON and states: bounded as it is read, and each entry checked for its type."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")

LONGEST = 1 << 28
"""Characters of a text. A plan has some hundreds for each value and choice: this is one of a million."""
DEEPEST = 32
"""Objects and lists in each other. A plan with its stores, and the plans beside it, has 8."""

_PLAIN = (bool, int, float, str, type(None), Mapping, list, tuple)


def loaded(text: str, writer: str) -> Any:
    """What a text of JSON holds.

    Its numbers are finite. What it takes in memory is within some 30 times the text, which ``LONGEST`` bounds.

    Args:
        text: from anywhere.
        writer: what should have written it, for the error.

    Raises:
        TypeError: it is no text.
        ValueError: it is no JSON, or longer or deeper than what the writer writes.
    """
    if not isinstance(text, str):
        raise TypeError(f"text must be the output of {writer}, got {type(text).__name__}")
    if len(text) > LONGEST:
        raise ValueError(f"text must be the output of {writer}, of at most {LONGEST} characters, got {len(text)}")
    try:
        content = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        content = None
    except ValueError as error:  # besides JSONDecodeError: an integer of more digits than Python reads
        raise ValueError(f"text must be the output of {writer}; it is not JSON: {error}") from None
    else:
        if _depth_within(DEEPEST, content):
            return content
    raise ValueError(f"text must be the output of {writer}; it is nested more than {DEEPEST} levels deep")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"numbers must be finite, got {text:.40}")
    return number


def _depth_within(most: int, content: Any) -> bool:
    """Whether lists and objects are in each other at most so many times. Without recursion: they may be far deeper."""
    found = [content]
    for _ in range(most + 1):
        found = [one for one in found if isinstance(one, (dict, list))]
        if not found:
            return True
        found = [inner for one in found for inner in (one.values() if isinstance(one, dict) else one)]
    return False


def require_plain(content: Any) -> None:
    """Checks that a state has plain values alone: a tensor among them has no truth, and compares element by element.

    Raises:
        TypeError: it has another value.
        ValueError: it is deeper than ``DEEPEST``.
    """
    found = [content]
    for _ in range(DEEPEST):
        found = [inner for one in found for inner in (one.values() if isinstance(one, Mapping) else one)]
        if other := [one for one in found if not isinstance(one, _PLAIN)]:
            raise TypeError(
                f"a state must contain only numbers, strings, mappings and lists, got {type(other[0]).__name__}"
            )
        found = [one for one in found if isinstance(one, (Mapping, list, tuple))]
        if not found:
            return
    raise ValueError(f"a state must be nested at most {DEEPEST} levels deep")


def of_format(content: Any, version: int, writer: str) -> dict[str, Any]:
    """A JSON object without its ``format``.

    Raises:
        ValueError: it is no object, or of another version.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if found != version:
        raise ValueError(f"text must be the output of {writer}, of format {version}; got format {found!r}")
    return {name: value for name, value in content.items() if name != "format"}


@contextmanager
def complete(writer: str) -> Iterator[None]:
    """A block that takes an object apart. What is raised in it is raised as an error about the text.

    Raises:
        ValueError: the object lacks or adds an entry, or one is of another type, or contradicts others.
    """
    try:
        yield
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"text must be the output of {writer}; a field is missing, unknown or of another type: {error}"
        ) from None
    except ValueError as error:
        raise ValueError(f"text must be the output of {writer}; {error}") from None


def read_entry(kind: type[Kind], content: Any) -> Kind:
    """A dataclass from the mapping of its fields.

    Raises:
        TypeError: it lacks or adds one, or one is of another type.
    """
    return kind(**read_fields(kind, content))


def read_fields(kind: type[Any], content: Any) -> dict[str, Any]:
    """Some of a dataclass's fields from their mapping.

    Raises:
        TypeError: one is not the dataclass's, or of another type.
    """
    if not isinstance(content, Mapping):
        raise TypeError(f"{kind.__name__} must be an object, got {content!r:.40}")
    hints = _hints(kind)  # type: ignore[arg-type]  # a class can be hashed
    if unknown := [name for name in content if name not in hints]:
        raise TypeError(f"{kind.__name__} has no {', '.join(f'{name!r:.40}' for name in unknown[:5])}")
    return {name: of_type(hints[name], value, name) for name, value in content.items()}


def of_type(hint: Any, value: Any, name: str) -> Any:
    """A value as a type: plain values, dataclasses, named tuples, and tuples of these; floats may be written as
    integers. An integer has 64 bits at most, as everything that counts bytes, elements and steps.

    Raises:
        TypeError: the value is of another type.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        if isinstance(value, (list, tuple)):
            return tuple(of_type(args[0], item, name) for item in value)
    elif origin in (Union, UnionType):
        for choice in args:
            try:
                return of_type(choice, value, name)
            except TypeError:
                pass
    elif origin is Literal:
        if type(value) in map(type, args) and value in args:
            return value
    elif is_dataclass(hint):
        return read_entry(hint, value)  # type: ignore[arg-type]
    elif isinstance(hint, type) and issubclass(hint, tuple):
        if isinstance(value, (list, tuple)) and len(value) == len(_hints(hint)):
            return hint(*(of_type(one, item, name) for one, item in zip(_hints(hint).values(), value, strict=True)))
    elif _is(hint, value):
        return value
    raise TypeError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r:.40}")


def _is(hint: Any, value: Any) -> bool:
    """Whether a value is of a plain type."""
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, int):
        return (hint is float and abs(value) <= sys.float_info.max) or (hint is int and -(2**63) <= value < 2**63)
    return isinstance(value, hint)


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    known = get_type_hints(kind)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    return {name: known[name] for name in names}
