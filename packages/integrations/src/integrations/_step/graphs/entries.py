"""``entry_of``: a dataclass from untrusted JSON, with the type of each field checked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


def loaded(text: str, writer: str) -> Any:
    """What a text of JSON holds.

    Args:
        text: from anywhere.
        writer: what should have written it, for the error.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"text must be what {writer} returned; it is no JSON: {error}") from None


def of_format(content: Any, version: int, writer: str) -> dict[str, Any]:
    """A JSON object without its ``format``.

    Raises:
        ValueError: it is no object, or of another version.
    """
    found = content.get("format") if isinstance(content, dict) else None
    if found != version:
        raise ValueError(f"text must be what {writer} returned, of format {version}; got format {found!r}")
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
        raise ValueError(f"text must be what {writer} returned; it lacks or adds something: {error}") from None
    except ValueError as error:
        raise ValueError(f"text must be what {writer} returned; {error}") from None


def entry_of(kind: type[Kind], content: Any) -> Kind:
    """A dataclass from the JSON object of its fields.

    Raises:
        KeyError, TypeError: it lacks or adds one, or one is of another type.
    """
    return kind(**fields_of(kind, content))


def fields_of(kind: type[Any], content: Any) -> dict[str, Any]:
    """Some of a dataclass's fields from their JSON object.

    Raises:
        KeyError, TypeError: one is not the dataclass's, or of another type.
    """
    if not isinstance(content, Mapping):
        raise TypeError(f"{kind.__name__} must be an object, got {content!r:.40}")
    hints = _hints(kind)  # type: ignore[arg-type]
    return {name: of_type(hints[name], value, name) for name, value in content.items()}


def of_type(hint: Any, value: Any, name: str) -> Any:
    """A value of JSON as a type: plain values, dataclasses, and tuples of these; floats may be written as integers.

    Raises:
        TypeError: the value is of another type.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is tuple:
        if isinstance(value, list):
            return tuple(of_type(args[0], item, name) for item in value)
    elif origin in (Union, UnionType):
        for choice in args:
            try:
                return of_type(choice, value, name)
            except TypeError:
                pass
    elif origin is Literal:
        if value in args:
            return value
    elif is_dataclass(hint):
        return entry_of(hint, value)  # type: ignore[arg-type]
    elif isinstance(value, (int, float) if hint is float else hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise TypeError(f"{name} must be {getattr(hint, '__name__', hint)}, got {value!r:.40}")


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}
