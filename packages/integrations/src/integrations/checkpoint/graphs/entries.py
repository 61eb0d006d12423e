"""``entry_of``: a dataclass from JSON, which may come from anywhere, with each field of its own type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

Kind = TypeVar("Kind")


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
    """A value of JSON as a type: plain values, dataclasses, and tuples of such; floats may be written as integers.

    Raises:
        TypeError: it is of another.
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
