"""``StorageCandidates``: the stores in which each value of a graph may wait, and what each of them takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from actcore import Form
from integrations._utils.checked_json import of_type, read_entry, read_fields
from integrations.planner.sensitivity.saves import Save
from integrations.policies.stores import Store

_MOST = 64  # options of a value: more than there are stores, each on the device and on the host


@dataclass(frozen=True, kw_only=True)
class Option(Form):
    """A store for a value, in the terms that the search weighs: bytes, seconds, noise.

    Attributes:
        store: the store, for all operators that save the value and all repetitions that read it. ``None``: that of a
            level, which has no name and is the only one.
    """

    store: Store | None


@dataclass(frozen=True)
class StorageCandidates:
    """The stores for each value of a graph, an entry for each value.

    Attributes:
        options: the stores beside keeping the value as it is; empty if there are none.
        weights: the square of the gradient's relative error for a noise of 1 in what backward reads.
        aside: bytes that the forward stores of a value that is recomputed from rounded values: what backward decides
            by, such as signs.
        limits: the most noise that a store may have, of each value; empty if there are none. Stores with more are not
            chosen.
        saves: the tensors that autograd saves, from which the weights follow; empty if they are not known.
        stored_at: the operator after which autograd has saved the value, and it is stored; -1 if it never is.
        repeating: seconds that repeating an operator takes beside the operator's own.
        following: seconds that a tape takes beside a forward's own, if anything is recomputed.
    """

    options: tuple[tuple[Option, ...], ...]
    weights: tuple[float, ...]
    aside: tuple[int, ...]
    stored_at: tuple[int, ...]
    repeating: float = 0.0
    following: float = 0.0
    limits: tuple[float, ...] = ()
    saves: tuple[Save, ...] = ()

    @classmethod
    def none(cls, values: int) -> StorageCandidates:
        """Candidates without stores for this number of values: each is kept as it is or recomputed."""
        return cls(((),) * values, (0.0,) * values, (0,) * values, (-1,) * values)

    def weighted(self, weights: tuple[float, ...], limits: tuple[float, ...] = ()) -> StorageCandidates:
        """Return the candidates with other weights and limits."""
        return replace(self, weights=weights, limits=limits)

    def exact(self) -> StorageCandidates:
        """The candidates without stores that round."""
        return replace(self, options=tuple(tuple(one for one in row if one.noise == 0) for row in self.options))

    def allowing(self, allows: Callable[[Store], bool]) -> StorageCandidates:
        """Return the candidates without the stores that are not allowed."""
        rows = {
            row: tuple(one for one in row if one.store is None or allows(one.store))
            for row in dict.fromkeys(self.options)
        }
        return replace(self, options=tuple(rows[row] for row in self.options))

    def option(self, value: int, store: Store) -> Option:
        """A value's option with this store.

        Raises:
            KeyError: there is none.
        """
        for one in self.options[value]:
            if one.store == store:
                return one
        raise KeyError(f"value {value} has no store {store}")

    def content(self) -> dict[str, Any]:
        """The JSON object of the candidates, in which equal rows are written once."""
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
            "limits": list(self.limits),
            "saves": list(self.saves),
        }

    @classmethod
    def from_content(cls, content: Any, values: int) -> StorageCandidates:
        """The candidates of such a JSON object, for this number of values.

        Raises:
            KeyError, TypeError, ValueError: it is not one.
        """
        given = dict(content)
        rows = [tuple(map(_option, row)) for row in given.pop("rows")]
        places = of_type(tuple[int, ...], given.pop("row"), "row")
        if not all(0 <= place < len(rows) for place in places):
            raise ValueError("row must name rows")
        if any(len(row) > _MOST for row in rows):  # or few bytes might say very many, a row for each value
            raise ValueError(f"each of rows must have at most {_MOST} options")
        found = cls(options=tuple(rows[place] for place in places), **read_fields(cls, given))
        if len(found.limits) not in (0, values) or any(not 0 <= save.value < values for save in found.saves):
            raise ValueError(f"limits and saves must be of {values} values")
        if any(len(entries) != values for entries in (found.options, found.weights, found.aside, found.stored_at)):
            raise ValueError(f"candidates must have an entry for each of {values} values")
        return found


def _option(content: Mapping[str, Any]) -> Option:
    words = of_type(str | None, content["store"], "store")
    return read_entry(Option, {**content, "store": None if words is None else asdict(Store.of(words))})
