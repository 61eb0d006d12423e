"""``Exchanges``: the layers that ``compress_model`` exchanges for others that keep less, and how that is undone."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from torch import nn

from integrations import fewbit, qmodules
from integrations.fewbit.linear_kinds import is_linear
from integrations.qmodules.levels import resolve_level

RECORD = "_integrations_exchanges"

FEWBIT, RANDOMIZED, Q = "fewbit", "randomized", "q"
RATIO = 0.2
"""Of ``linear="randomized"``: the rows of a sketch as a share of the tokens. FewBit's table begins with it."""


@dataclass(frozen=True)
class Exchanges:
    """What is to be exchanged.

    Attributes:
        activations: ``fewbit.convert``'s arguments for activations; ``None`` leaves them.
        linear: ``RandomizedLinear``'s arguments; ``None`` leaves linear layers.
        layers: ``QModule``'s arguments; ``None`` leaves layers.
    """

    activations: Mapping[str, Any] | None = field(default=None, hash=False)
    linear: Mapping[str, Any] | None = field(default=None, hash=False)
    layers: Mapping[str, Any] | None = field(default=None, hash=False)

    @classmethod
    def asked(cls, activations: Any, linear: Any, layers: Any) -> Exchanges:
        """Those of ``compress_model``'s arguments.

        Raises:
            TypeError: one has the wrong type.
            ValueError: a name is unknown, or a number out of range.
        """
        return cls(_activations(activations), _linear(linear), _layers(layers))

    def require_repeatable(self) -> None:
        """Refuses Q-layers with which a plan of what backward makes again cannot go.

        Raises:
            ValueError: they choose their bits anew in each forward.
        """
        if self.layers is None:
            return
        given = dict(self.layers)
        level = resolve_level(given.pop("level", None) or "L3", given)
        if level.per_sample or level.per_layer or (level.norms and level.norm_adaptive):
            raise ValueError(
                "checkpoint must be None with Q-layers whose level chooses bits by sample or by layer: what they "
                "measure now and then is in no plan; take layers='L2', which has 4 bits for all, or leave out one of "
                "the two"
            )

    def __bool__(self) -> bool:
        return any(given is not None for given in (self.activations, self.linear, self.layers))

    def apply(self, model: nn.Module) -> None:
        """Exchanges the layers, or raises and leaves the model as it was.

        Raises:
            TypeError, ValueError: what ``fewbit.convert`` and ``QModule`` refuse; an option that applies to no layer;
                or a model that is itself such a layer, and cannot be exchanged in place.
        """
        with ExitStack() as undoing:
            if self._converts:
                done = fewbit.convert(model, **self._conversion())
                undoing.callback(fewbit.restore_model, done)
                _require_inside(model, done)
                self._require_sketches(model)
            if self.layers is not None:
                done = qmodules.QModule(model, **self.layers)
                undoing.callback(qmodules.revert, done)
                _require_inside(model, done)
                _require_q_layers(model)
            undoing.pop_all()
        model.__dict__[RECORD] = self

    @classmethod
    def of(cls, model: nn.Module) -> Exchanges | None:
        """Those that were applied to a model."""
        found = model.__dict__.get(RECORD)
        return found if isinstance(found, cls) else None

    @staticmethod
    def undo(model: nn.Module) -> None:
        """Undoes those of a model, if there are any."""
        found = model.__dict__.pop(RECORD, None)
        if isinstance(found, Exchanges):  # and nobody has undone it by hand
            if found.layers is not None and qmodules.is_converted(model):
                qmodules.revert(model)
            if found._converts and fewbit.is_converted(model):
                fewbit.restore_model(model)

    def require_calls(self, model: nn.Module) -> None:
        """Refuses activations in few bits of a model that turns out to have none: neither layers nor calls.

        Raises:
            ValueError: a training forward came by none.
        """
        if self.activations is None:
            return
        summary = fewbit.summary(model)
        if not summary.activations:
            raise ValueError(
                f"activations must be None for a {type(model).__name__}: its forward came by no activation that has a "
                f"few-bit form{_reasons({**summary.kept, **_joined(summary.kept_calls)})}; restore_model, and leave "
                "the option out"
            )

    def in_words(self, model: nn.Module) -> str:
        """What was exchanged, for a report."""
        parts = []
        if self._converts:
            summary = fewbit.summary(model)
            if self.activations is not None:
                parts.append(f"{_count(summary.activations, 'activation')} in {summary.bits} bits")
            if self.linear is not None:
                parts.append(f"a sketch of its input in {_count(summary.sketched, 'linear layer')}")
        if self.layers is not None:
            parts.append(_count(len(qmodules.summary(model).converted), "Q-layer"))
        return f"Exchanged: {', '.join(parts)}."

    @property
    def _converts(self) -> bool:
        return self.activations is not None or self.linear is not None

    def _conversion(self) -> dict[str, Any]:
        """Arguments of ``fewbit.convert``."""
        alone = {"functions": (), "calls": False} if self.activations is None else {}
        return {**alone, **(self.activations or {}), "linear": self.linear}

    def _require_sketches(self, model: nn.Module) -> None:
        summary = fewbit.summary(model)
        if self.linear is not None and not summary.sketched:
            kept = {path: why for path, why in summary.kept.items() if is_linear(model.get_submodule(path))}
            raise ValueError(
                f"linear must be None for a {type(model).__name__}, which has no linear layer that can keep a sketch"
                f"{_reasons(kept)}; leave the option out"
            )


def _activations(given: Any) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        if "linear" in given:
            raise ValueError("activations must be fewbit.convert's arguments but for linear, which is an option itself")
        return dict(given)
    if isinstance(given, str):
        if given != FEWBIT:
            raise ValueError(f"activations must be 'fewbit', bits from 1 to 8, or a mapping, got {given!r}")
        return {}
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(
            f"activations must be 'fewbit', bits from 1 to 8, or a mapping of fewbit.convert's arguments, got {given!r}"
        )
    if not 1 <= given <= 8:
        raise ValueError(f"activations must be 'fewbit' or bits from 1 to 8, got {given}; 3 are the default")
    return {"bits": given}


def _linear(given: Any) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, str):
        if given != RANDOMIZED:
            raise ValueError(f"linear must be 'randomized', a ratio in (0, 1], or a mapping, got {given!r}")
        return {"proj_dim_ratio": RATIO}
    if isinstance(given, bool) or not isinstance(given, Real):
        raise TypeError(
            "linear must be 'randomized', a ratio in (0, 1], or a mapping of RandomizedLinear's arguments, got "
            f"{given!r}"
        )
    if not 0 < float(given) <= 1:
        raise ValueError(f"linear must be 'randomized' or a ratio in (0, 1], got {given}; {RATIO} is the default")
    return {"proj_dim_ratio": float(given)}


def _layers(given: Any) -> Mapping[str, Any] | None:
    if given is None:
        return None
    if isinstance(given, Mapping):
        return dict(given)
    if given == Q:
        return {"level": "L3"}
    if isinstance(given, qmodules.QLevel):
        return {"level": given}
    if not isinstance(given, str):
        raise TypeError(f"layers must be 'q', a level of qmodules.LEVELS, or a mapping of QModule's, got {given!r}")
    if given not in qmodules.LEVELS:
        raise ValueError(f"layers must be 'q' or a level of the Q-layers, {', '.join(qmodules.LEVELS)}; got {given!r}")
    return {"level": given}


def _require_inside(model: nn.Module, done: nn.Module) -> None:
    if done is not model:
        raise ValueError(
            f"model must contain the layers that are exchanged, and this {type(model).__name__} is one itself: take "
            f"nn.Sequential(model), or the {type(done).__name__} in its place"
        )


def _require_q_layers(model: nn.Module) -> None:
    summary = qmodules.summary(model)
    if not summary.converted:
        raise ValueError(
            f"layers must be None for a {type(model).__name__}, which has no layer that has a Q-layer"
            f"{_reasons(summary.kept)}; leave the option out"
        )


def _joined(reasons: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {path: ", ".join(several) for path, several in reasons.items()}


def _reasons(kept: Mapping[str, str], most: int = 3) -> str:
    """Why layers were kept, in brackets; the first few different ones."""
    different = list(dict.fromkeys(kept.values()))[:most]
    return f" ({'; '.join(different)})" if different else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
