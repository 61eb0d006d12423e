"""``Menus``: the stores that each value of a graph may wait in, and what each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from actcore import Form
from integrations.rules.stores import Store
from integrations.step.graphs.entries import entry_of, fields_of, of_type


@dataclass(frozen=True, kw_only=True)
class Option(Form):
    """A store for a value, with the form that the search weighs: bytes, seconds, noise.

    Attributes:
        store: for all operators that save the value, and repetitions that read it. ``None``: that of a level, which
            has no name, and is the only one there is.
    """

    store: Store | None


@dataclass(frozen=True)
class Menus:
    """What may be stored of each value of a graph. An entry for each value.

    Attributes:
        options: the stores beside keeping the value as it is. Empty: there are none.
        weights: the square of the gradient's relative error if the noise is 1 in what backward reads.
        aside: bytes that the forward stores of a value that is recomputed from what is rounded: what backward decides
            by, such as signs.
        stored_at: the operator after which autograd has saved the value, so that it is stored; -1 where it never does.
        repeating: seconds that an operator takes beside its own where it is repeated.
        following: seconds that a tape takes beside a forward's own, where anything is recomputed.
    """

    options: tuple[tuple[Option, ...], ...]
    weights: tuple[float, ...]
    aside: tuple[int, ...]
    stored_at: tuple[int, ...]
    repeating: float = 0.0
    following: float = 0.0

    @classmethod
    def none(cls, values: int) -> Menus:
        """Those of as many values that are kept as they are or recomputed."""
        return cls(((),) * values, (0.0,) * values, (0,) * values, (-1,) * values)

    def weighted(self, weights: tuple[float, ...]) -> Menus:
        """The same with other weights."""
        return replace(self, weights=weights)

    def exact(self) -> Menus:
        """What of them rounds nothing."""
        return replace(self, options=tuple(tuple(one for one in row if one.noise == 0) for row in self.options))

    def option(self, value: int, store: Store) -> Option:
        """A value's option of that store.

        Raises:
            KeyError: there is none.
        """
        for one in self.options[value]:
            if one.store == store:
                return one
        raise KeyError(f"value {value} has no store {store}")

    def content(self) -> dict[str, Any]:
        """They as a JSON object, in which equal rows are written once."""
        rows = list(dict.fromkeys(self.options))
        place = {row: number for number, row in enumerate(rows)}
        return {
            "rows": [[{**asdict(one), "store": one.store and str(one.store)} for one in row] for row in rows],
            "row": [place[row] for row in self.options],
            "weights": list(self.weights),
            "aside": list(self.aside),
            "stored_at": list(self.stored_at),
            "repeating": self.repeating,
            "following": self.following,
        }

    @classmethod
    def from_content(cls, content: Any, values: int) -> Menus:
        """Those of such a JSON object, for so many values.

        Raises:
            KeyError, TypeError, ValueError: it is none.
        """
        given = dict(content)
        rows = [tuple(map(_option, row)) for row in given.pop("rows")]
        places = of_type(tuple[int, ...], given.pop("row"), "row")
        if not all(0 <= place < len(rows) for place in places):
            raise ValueError("row must name rows")
        found = cls(options=tuple(rows[place] for place in places), **fields_of(cls, given))
        if any(len(entries) != values for entries in (found.options, found.weights, found.aside, found.stored_at)):
            raise ValueError(f"menus must have an entry for each of {values} values")
        return found


def _option(content: Mapping[str, Any]) -> Option:
    words = of_type(str | None, content["store"], "store")
    return entry_of(Option, {**content, "store": None if words is None else asdict(Store.of(words))})
