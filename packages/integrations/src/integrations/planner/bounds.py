"""``Bounds``: what a plan has to keep to, as a user says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, get_args

from integrations.planner.budget import LEAST, Budget, python_number, require_budget, require_error, require_ratio
from integrations.policies.levels import resolve_level
from integrations.policies.stores import Store

WAYS = ("recompute", "exact", "bits", "slopes", "host")
"""What a plan may do with a value other than keep it as it is: recompute it; store exactly what backward needs of it,
such as signs, masks and shapes; round it to few bits; store an activation's derivative in steps; move it to host
memory."""

ROUNDING = ("bits", "slopes")
"""The ways that round, as do forms such as ``"8 bits"``."""

ONLY_RECOMPUTE = ("recompute",)
"""The ways of a plan that only says what is recomputed."""

USUAL_ERROR = 0.1
"""The bound on the gradient's error that messages suggest to users who may let a plan round. Without a bound, plans are
exact."""

FULL: Final = "full"
"""The loss that is computed from whole logits."""

Fallback = Literal["error", "least"]
"""What happens to a budget that cannot be met: an error, or the plan of the least memory with a warning."""

UNBIASED_SLOPE_BITS = 6
"""The least bits of a derivative that are used unless ``stores`` names fewer. The steps of a derivative are fixed ahead
and not drawn, so their errors do not average out: their mean is at most 0.006 of the derivative in 6 bits, 0.05 in 5
and 0.14 in 4, for SiLU and GELU and inputs with a deviation of 0.02 to 2."""

EIGHT_BITS = 0.01
"""The least bound that 8 bits for everything are taken to keep: their error is 0.009 where the whole gradient is as
wrong as what backward reads, see ``sensitivity.weights.estimate_noise``."""

_EIGHT = Store(8)


@dataclass(frozen=True)
class Bounds:
    """What a plan has to keep to. What is not bounded is minimized: the time within ``memory``, the memory within
    ``time``, the error if both are given beside an error, and the memory if neither is.

    Attributes:
        memory: the most that forward and backward may have allocated at once beyond what is still allocated after them:
            bytes, a string such as ``"8GiB"``, a fraction of the largest plain step's so far, ``"least"`` or
            ``"auto"``.
        time: the step's time over the plain step's, 1 or more.
        error: the error of the whole gradient, relative to its norm; 0 rounds nothing. ``None``: a level says how
            everything is rounded.
        stores: the ways of ``WAYS`` that are allowed, and names of single stores, such as ``"8 bits"``.
        fallback: what happens in front of a forward if no plan keeps to the bounds: ``"error"``, or ``"least"``, which
            takes the plan of the least memory and warns.
        loss: ``"full"`` if the loss has to be computed from whole logits. Otherwise a plan within ``memory`` may choose
            the loss in chunks.
        in_flight: how many forwards are alive at once that have not had their backward, at most. ``None``: as many as
            the pipeline's schedule has, and otherwise one.

    Raises:
        TypeError: one has the wrong type.
        ValueError: one is out of range, or unknown.
    """

    memory: Budget | None = None
    time: float | None = None
    error: float | None = 0.0
    stores: tuple[str, ...] = WAYS
    fallback: Fallback = "error"
    loss: Literal["full"] | None = None
    in_flight: int | None = None

    def __post_init__(self) -> None:
        for name in ("memory", "time", "error", "in_flight"):
            object.__setattr__(self, name, python_number(getattr(self, name)))
        if self.memory is not None:
            require_budget(self.memory, "memory")
        if self.time is not None:
            require_ratio(self.time)
        if self.error is not None:
            require_error(self.error)
        if self.fallback not in get_args(Fallback):
            raise ValueError(f"fallback must be 'error' or 'least', got {self.fallback!r}")
        if self.loss not in (None, FULL):
            raise ValueError(f"loss must be 'full' or None, got {self.loss!r}")
        if self.in_flight is not None:
            _require_count(self.in_flight)
        object.__setattr__(self, "stores", _checked(self.stores))

    @classmethod
    def asked(
        cls,
        memory: Any,
        time: Any,
        error: Any,
        stores: Any,
        level: str | None,
        options: Mapping[str, Any],
        fallback: Any = None,
        loss: Any = None,
        in_flight: Any = None,
    ) -> Self | None:
        """Return the bounds in the arguments of ``compress_model``; ``None`` if none is given.

        Without ``error`` the plan is exact, unless a level says how tensors are stored.

        Raises:
            TypeError, ValueError: as for ``Bounds``, ``given`` and ``resolve_level``; or the error is bounded beside
                such a level; or there is a fallback, or a number of forwards in flight, without bounds.
        """
        if fallback not in (None, "error", LEAST):
            raise ValueError(f"fallback must be 'error' or 'least', got {fallback!r}")
        if memory is None and time is None and error is None and stores is None:
            if fallback == LEAST:
                raise ValueError(
                    "fallback must be left out without memory=, got 'least'; pass memory= to use fallback='least'"
                )
            if in_flight is not None:
                raise ValueError(
                    f"in_flight must be left out without memory=, got {in_flight!r}: only the plans of memory=, time=, "
                    "error= and stores= depend on it"
                )
            return None
        name = "L0" if level is None else level
        resolved = resolve_level(name, options)
        more: dict[str, Any] = {"fallback": fallback or "error", "loss": FULL if loss == FULL else None}
        more["in_flight"] = in_flight
        if resolved.off:
            return cls.given(memory, time, error, stores, **more)
        found = cls(memory, time, 0.0 if error is None else error, WAYS if stores is None else stores, **more)
        bits = sorted(option for option in options if option.endswith("bits"))
        if error is None and level is None and bits:
            raise ValueError(
                f"{bits[0]} must be left out with memory=, time= or stores= if there is no level, got "
                f"{options[bits[0]]!r}: such plans are exact, but {bits[0]} rounds. Pass level='L1' for a level's "
                f"bits, or error={USUAL_ERROR} to let the plan choose bits within this error"
            )
        if error is not None:
            raise ValueError(
                f"error must be None with level {resolved.title(name)}, which chooses how tensors are stored, got "
                f"{error!r}; leave out the level and its options to let the plan choose how each tensor is stored "
                "within the error"
            )
        return replace(found, error=None)

    @classmethod
    def given(cls, memory: Any, time: Any, error: Any, stores: Any, **more: Any) -> Self:
        """Return the bounds for these arguments of ``integrations.plan``, with ``None`` for those that were left out.

        Raises:
            TypeError, ValueError: as for ``Bounds``; or ``stores`` names a way that rounds, and there is no error.
        """
        found = cls(memory, time, 0.0 if error is None else error, WAYS if stores is None else stores, **more)
        rounding = [way for way in found.stores if way in ROUNDING or way not in WAYS]
        if error is None and stores is not None and rounding:
            named = ", ".join(map(repr, rounding))
            raise ValueError(
                f"error must be given if stores names {named}, because these round: pass error={USUAL_ERROR} to "
                f"bound the gradient's error, or leave {named} out for exact gradients"
            )
        return found

    @property
    def exact(self) -> bool:
        """Whether nothing may be rounded."""
        return self.error == 0

    @property
    def recomputes(self) -> bool:
        """Whether backward may recompute values."""
        return "recompute" in self.stores

    def allows(self, store: Store) -> bool:
        """Whether values may wait in this store."""
        if not store.exact and self.exact:
            return False
        if store.host and "host" not in self.stores:
            return False
        if str(replace(store, host=False)) in self.stores:
            return True
        if store.slope_bits is not None and (store.slope_bits < UNBIASED_SLOPE_BITS or "slopes" not in self.stores):
            return False
        if store.bits is not None:
            return "bits" in self.stores
        return store.slope_bits is not None or store.host or "exact" in self.stores

    @property
    def rounds_unforeseen(self) -> bool:
        """Whether tensors that a plan has not foreseen may be stored in 8 bits."""
        return (self.error or 0.0) >= EIGHT_BITS and self.allows(_EIGHT)

    @property
    def for_any_path(self) -> Self:
        """The bounds for a model whose forward takes different paths: values are rounded to 8 bits or not at all.

        Fewer bits and few-bit derivatives are chosen by the gradient of one path, and may be too few for another.
        """
        if not self.error:
            return self
        ways = [way for way in self.stores if way in ("recompute", "exact", "host")]
        return replace(self, stores=(*ways, str(_EIGHT)) if self.rounds_unforeseen else tuple(ways))

    @property
    def falls_back(self) -> bool:
        """Whether bounds that cannot be met are dropped for the least memory."""
        return self.fallback == LEAST

    @property
    def promises_memory(self) -> bool:
        """Whether steps keep to a memory, without a fallback."""
        return self.memory is not None and not self.falls_back

    @property
    def promises_bytes(self) -> bool:
        """Whether steps keep to a number of bytes, without a fallback."""
        return self.promises_memory and self.memory != LEAST

    @property
    def chooses_loss(self) -> bool:
        """Whether a plan may compute the loss in chunks though nobody asked for it. A plan that only recomputes may
        not: it keeps every bit."""
        return self.memory is not None and self.loss is None and self.stores != ONLY_RECOMPUTE

    def content(self) -> dict[str, Any]:
        """Return the JSON object of the bounds."""
        found = {"memory": self.memory, "time": self.time, "error": self.error, "stores": list(self.stores)}
        given = {"fallback": self.fallback} if self.falls_back else {}
        others = {name: getattr(self, name) for name in ("loss", "in_flight") if getattr(self, name) is not None}
        return {**found, **given, **others}

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return the bounds of such a JSON object.

        Raises:
            TypeError, ValueError: it is not one.
        """
        added = {"fallback", "loss", "in_flight"}  # they are left out where they are the default
        if set(content) | added != {"memory", "time", "error", "stores"} | added:
            raise ValueError(f"bounds must have memory, time, error and stores, got {sorted(map(str, content))}")
        return cls(**content)

    def __str__(self) -> str:
        found = [] if self.memory is None else [f"memory={self.memory!r}"]
        if self.time is not None:
            found.append(f"time={self.time:g}")
        if self.error is not None:
            found.append(f"error={self.error:g}")
        if self.stores != WAYS:
            found.append(f"stores={self.stores!r}")
        if self.falls_back:
            found.append(f"fallback={self.fallback!r}")
        if self.loss is not None and self.memory is not None:
            found.append(f"loss={self.loss!r}")
        if self.in_flight is not None:
            found.append(f"in_flight={self.in_flight}")
        return ", ".join(found)


def _require_count(in_flight: object) -> None:
    if isinstance(in_flight, bool) or not isinstance(in_flight, int):
        raise TypeError(f"in_flight must be a number of forwards as an int, got {in_flight!r}")
    if in_flight < 1:
        raise ValueError(f"in_flight must be 1 or more, got {in_flight}; 1 is a backward after each forward")


def _checked(stores: object) -> tuple[str, ...]:
    """The ways, each once: first those of ``WAYS``, in its order."""
    named = ", ".join(map(repr, WAYS))
    if isinstance(stores, str):
        one = (stores if stores in WAYS else WAYS[0],)
        raise TypeError(
            f"stores must be a sequence of {named}, got the string {stores!r}; to name one store, pass {one!r}"
        )
    if not isinstance(stores, Iterable):
        raise TypeError(f"stores must be a sequence of {named}, got {stores!r}")
    found = set()
    for word in stores:
        if not isinstance(word, str):
            raise TypeError(f"stores must be a sequence of {named}, got {word!r} in it")
        if word not in WAYS and not _is_store(word):
            raise ValueError(f"stores must be a sequence of {named}, or of forms such as '8 bits', got {word!r}")
        found.add(word)
    return (*(word for word in WAYS if word in found), *sorted(found.difference(WAYS)))


def _is_store(word: str) -> bool:
    try:
        store = Store.of(word)
    except ValueError:
        return False
    return not store.exact and not store.host
