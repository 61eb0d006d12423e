"""``Conversions``: the layers that ``compress_model`` exchanges for others that keep less, and how to undo that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from integrations import fewbit, qmodules
from integrations.api.handle.conversion_arguments import (
    read_activations,
    read_layers,
    read_linear,
    read_loss,
    read_q_level,
)
from integrations.api.handle.kept_modules import kept_modules
from integrations.fewbit.layer_kinds import is_linear
from integrations.losses.chunked_head import ChunkedHead
from integrations.losses.head import chunk_logits, find_head
from integrations.planner.chunked import ChunkedLoss
from integrations.policies.levels import Level

RECORD = "_integrations_conversions"


@dataclass(frozen=True)
class Conversions:
    """What is to be exchanged.

    Attributes:
        activations: ``fewbit.convert``'s arguments for activations; ``None`` leaves them.
        linear: ``RandomizedLinear``'s arguments; ``None`` leaves linear layers.
        layers: ``QModule``'s arguments; ``None`` leaves layers.
        loss: ``chunk_logits``'s arguments; ``None`` leaves the layer that makes the logits.
        planned: the path of the layer whose logits plans have chosen not to make; ``None`` if none has. It is not
            asked for.
    """

    activations: Mapping[str, Any] | None = field(default=None, hash=False)
    linear: Mapping[str, Any] | None = field(default=None, hash=False)
    layers: Mapping[str, Any] | None = field(default=None, hash=False)
    loss: Mapping[str, Any] | None = field(default=None, hash=False)
    planned: str | None = field(default=None, compare=False)

    @classmethod
    def asked(cls, activations: Any, linear: Any, layers: Any, loss: Any = None) -> Conversions:
        """The exchanges in ``compress_model``'s arguments.

        Raises:
            TypeError: one has the wrong type.
            ValueError: a name is unknown, or a number out of range.
        """
        return cls(read_activations(activations), read_linear(linear), read_layers(layers), read_loss(loss))

    def require_repeatable(self, **planned: Any) -> None:
        """Checks that the Q-layers go together with a plan of what backward recomputes.

        Args:
            planned: the arguments that ask for such a plan; ``None`` where one was not given.

        Raises:
            ValueError: the Q-layers choose their bits anew in each forward.
        """
        if self.layers is None:
            return
        name, value = next((name, value) for name, value in planned.items() if value is not None)
        level = read_q_level(self.layers)
        if level.per_sample or level.per_layer or (level.norms and level.norm_adaptive):
            raise ValueError(
                f"{name} must be None with Q-layers whose level chooses bits by sample or by layer, got {value!r}: no "
                "plan counts their measurements; pass layers='ActNN-L2', which uses 4 bits for all, or leave out "
                f"{name}= or layers="
            )

    def __bool__(self) -> bool:
        return any(given is not None for given in vars(self).values())

    @contextmanager
    def applied(self, model: nn.Module, level: Level) -> Iterator[None]:
        """Exchanges the layers for a block, and for good once it is over. If anything raises, here or in the block, the
        model is left as it was.

        Args:
            model: its own layers change.
            level: what it keeps exactly is not exchanged, and sketches are stored in its bits, unless ``linear`` says
                in how many.

        Raises:
            TypeError, ValueError: what ``fewbit.convert`` and ``QModule`` refuse; an option that applies to no layer;
                or a model that is itself such a layer, and cannot be exchanged in place.
        """
        modules = set(kept_modules(model, level.keep))
        named = [(name, module) for name, module in model.named_modules(remove_duplicate=False) if name]
        kept = [name for name, module in named if module in modules]
        # Their logits need the layer as it is.
        heads = [] if self.loss is None else [find_head(model, **self.loss)]
        unconverted = [name for name, module in named if module in modules or module in heads]
        with ExitStack() as undoing:
            if self._converts:
                _undo_later(undoing, model, fewbit.is_converted, fewbit.restore_model)
                done = fewbit.convert(model, **self._conversion(level, unconverted))
                _require_inside(model, done, fewbit.restore_model)
                self._require_sketches(model)
            if self.layers is not None:
                _undo_later(undoing, model, qmodules.is_converted, qmodules.restore_model)
                done = qmodules.QModule(model, **self.layers)
                _require_inside(model, done, qmodules.restore_model)
                _require_q_layers(model, kept)
            if self.loss is not None:
                _undo_later(undoing, model, self.heads, self._take_out_heads)
                chunk_logits(find_head(model, **self.loss))
            if self:
                undoing.callback(model.__dict__.pop, RECORD, None)
                model.__dict__[RECORD] = self
            yield
            undoing.pop_all()

    @classmethod
    def of(cls, model: nn.Module) -> Conversions | None:
        """The exchanges that were applied to a model."""
        found = model.__dict__.get(RECORD)
        return found if isinstance(found, cls) else None

    @staticmethod
    def undo(model: nn.Module) -> None:
        """Undoes the exchanges of a model, if it has any."""
        found = Conversions.of(model)
        if found is None:
            return
        # Some may have been undone by hand. The heads are parts of layers that may go, and are held for what follows.
        heads = [(head, head.model) for head in found.heads(model)]
        try:
            found._take_out_heads(model)
            if found.layers is not None and qmodules.is_converted(model):
                qmodules.restore_model(model)
        except BaseException:
            for head, _ in heads:
                head.put()
            raise
        if found._converts and fewbit.is_converted(model):
            fewbit.restore_model(model)
        del model.__dict__[RECORD]

    def heads(self, model: nn.Module) -> list[ChunkedHead]:
        """The replaced layers that make logits: one, with copies that PEFT may have made; none if it is gone."""
        return list(filter(None, map(ChunkedHead.of, model.modules()))) if self.has_heads else []

    @property
    def has_heads(self) -> bool:
        """Whether layers that make logits may be replaced."""
        return self.loss is not None or self.planned is not None

    @staticmethod
    def follow(model: nn.Module, chunked: ChunkedLoss | None, bounded: bool = False) -> None:
        """Have a model's forwards compute the loss as a plan says, from now on. What ``loss=`` asked for stays.

        Args:
            model: the model.
            chunked: the plan's.
            bounded: whether the plan keeps to a memory, without a fallback.

        Raises:
            ValueError: the model has no such layer.
        """
        found = Conversions.of(model)
        if found is not None and found.loss is not None:
            if (head := ChunkedHead.of(find_head(model, **found.loss))) is not None:
                _plan_loss(head, chunked, bounded)
            return
        known = None if found is None else found.planned
        if known is not None and (chunked is None or chunked.head != known):
            before = ChunkedHead.of(model.get_submodule(known))
            if before is not None:
                before.chunks = False
        if chunked is None:
            return
        layer = find_head(model, chunked.head)
        head = ChunkedHead.of(layer)
        if head is None and chunked.head != known:  # otherwise something has wrapped it since
            head = chunk_logits(layer, by_plan=True)
            model.__dict__[RECORD] = replace(found or Conversions(), planned=chunked.head)
        if head is not None:
            head.chunks = True
            _plan_loss(head, chunked, bounded)

    def _take_out_heads(self, model: nn.Module) -> None:
        for head in self.heads(model):
            head.take_out()

    def why_no_activations(self, model: nn.Module) -> str:
        """Why activations in few bits do nothing for a model whose forwards have called none so far; empty if one was
        called, or none were asked for."""
        if self.activations is None or not fewbit.is_converted(model):
            return ""
        summary = fewbit.summary(model)
        if summary.activations:
            return ""
        reasons = _reasons({**summary.kept, **_joined(summary.kept_calls)})
        return (
            f"activations= had no effect, because the forward called no activation that has a few-bit form{reasons}: "
            "if no forward calls one, leave the option out"
        )

    def plain(self) -> dict[str, list[str] | None]:
        """What was asked for, as plain values. Two that differ exchange other layers."""
        return {
            name: None if given is None else sorted(f"{key}={value!r}" for key, value in given.items() if _plain(value))
            for name, given in vars(self).items()
            if name != "planned"
        }

    @classmethod
    def told(cls, model: nn.Module) -> str:
        """What was exchanged in a model, for a report; empty if nothing was."""
        exchanges = cls.of(model)
        if exchanges is not None:
            return exchanges._in_words(model)
        by_hand = cls(  # by QModule and fewbit.convert
            activations={} if fewbit.is_converted(model) else None,
            linear={} if fewbit.is_converted(model) and fewbit.summary(model).sketched else None,
            layers={} if qmodules.is_converted(model) else None,
        )
        return by_hand._in_words(model) if by_hand else ""

    def _in_words(self, model: nn.Module) -> str:
        parts = []
        if self._converts and not fewbit.is_converted(model):
            parts.append("few-bit layers, which have been undone since")
        elif self._converts:
            summary = fewbit.summary(model)
            if self.activations is not None:
                parts.append(f"{_count(summary.activations, 'activation')} in {summary.bits} bits")
            if self.linear is not None:
                parts.append(f"a sketch of its input in {_count(summary.sketched, 'linear layer')}")
        if self.layers is not None and not qmodules.is_converted(model):
            parts.append("Q-layers, which have been undone since")
        elif self.layers is not None:
            parts.append(_count(len(qmodules.summary(model).converted), "Q-layer"))
        heads = self.heads(model)
        if self.loss is not None:
            parts.append(ChunkedHead.in_words(heads))
        elif any(head.chunks for head in heads):
            parts.append(f"{ChunkedHead.in_words(heads)}, chosen by the plan")
        return f"Exchanged: {', '.join(parts)}." if parts else ""

    @property
    def _converts(self) -> bool:
        return self.activations is not None or self.linear is not None

    def _conversion(self, level: Level, kept: Sequence[str]) -> dict[str, Any]:
        """Arguments of ``fewbit.convert``."""
        given: dict[str, Any] = {"functions": (), "calls": False}
        if self.activations is not None:
            given = dict(self.activations)
        if kept:
            exact = given.pop("skip", given.get("keep", ()))
            exact = (exact,) if isinstance(exact, str | type) else tuple(exact)
            given["keep"] = (*exact, *kept)
        linear = self.linear
        if linear is not None and level.bits is not None:
            linear = {"bits": level.bits, **linear}
        return {**given, "linear": linear}

    def _require_sketches(self, model: nn.Module) -> None:
        summary = fewbit.summary(model)
        if self.linear is not None and not summary.sketched:
            kept = {path: why for path, why in summary.kept.items() if is_linear(model.get_submodule(path))}
            raise ValueError(
                f"linear must be None for a {type(model).__name__}, none of whose linear layers can keep a "
                f"sketch{_reasons(kept)}; leave the option out"
            )


def _plan_loss(head: ChunkedHead, chunked: ChunkedLoss | None, bounded: bool) -> None:
    """Have a layer leave its logits to the loss of a plan."""
    head.planned_rows = None if chunked is None else chunked.rows or None
    head.planned = chunked
    head.requires_chunks = bounded and chunked is not None and chunked.outside
    head.requires_one_loss = bounded and chunked is not None and chunked.assumed


def _plain(value: object) -> bool:
    """Whether a value has the same representation in another process."""
    return value is None or isinstance(value, bool | int | float | str | qmodules.QLevel)


def _undo_later(
    undoing: ExitStack, model: nn.Module, is_done: Callable[[nn.Module], Any], undo: Callable[[nn.Module], Any]
) -> None:
    """Has the end of ``undoing`` undo what is going to be done to a model, as far as it came; nothing that was done to
    it before."""
    if not is_done(model):
        undoing.callback(lambda: undo(model) if is_done(model) else None)


def _require_inside(model: nn.Module, done: nn.Module, undo: Callable[[nn.Module], Any]) -> None:
    if done is not model:
        undo(done)
        raise ValueError(
            f"model must contain the layers to convert, but this {type(model).__name__} is itself such a layer: pass "
            f"nn.Sequential(model), or use a {type(done).__name__} instead"
        )


def _require_q_layers(model: nn.Module, kept: Sequence[str]) -> None:
    summary = qmodules.summary(model)
    if both := sorted(summary.converted.keys() & set(kept)):
        raise ValueError(
            f"keep must not name layers that layers= converts, got {both[0]!r}, a {summary.converted[both[0]][0]}; "
            "Q-layers keep nothing exactly"
        )
    if not summary.converted:
        raise ValueError(
            f"layers must be None for a {type(model).__name__}, none of whose layers can become a "
            f"Q-layer{_reasons(summary.kept)}; leave the option out"
        )


def _joined(reasons: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    return {path: ", ".join(several) for path, several in reasons.items()}


def _reasons(kept: Mapping[str, str], most: int = 3) -> str:
    """Why layers were kept, in brackets: the first few different reasons."""
    different = list(dict.fromkeys(kept.values()))[:most]
    return f" ({'; '.join(different)})" if different else ""


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
