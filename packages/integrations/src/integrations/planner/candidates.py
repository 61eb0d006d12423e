"""``storage_candidates``: the stores in which each value may wait, by the rules of the operators that save it.
``make_part``: what a rule's decision stores of one saved tensor."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch

from actcore import BitMask, Codec, GroupAffine, Offload, Raw
from integrations.capture.costs.codecs import restore_seconds, store_seconds
from integrations.capture.costs.rates import Rates, Rating
from integrations.capture.dispatch.memory import allocated
from integrations.capture.graphs.graph import Graph
from integrations.planner.savers import Saver, Seen
from integrations.planner.sensitivity.bit_plan import BitPlan, PlannedBits
from integrations.planner.sensitivity.saves import final_values
from integrations.planner.sensitivity.weights import estimate_noise, usual_weights
from integrations.planner.storage_candidates import Option, StorageCandidates
from integrations.policies.codebooks.codebook import Codebook
from integrations.policies.levels import Level
from integrations.policies.policy import FixedBits, Policy, SaveDecision, make_policy
from integrations.policies.rules import CHECKPOINT, Need
from integrations.policies.slopes import find_codebook
from integrations.policies.stores import Store

WIDTHS = (8, 7, 6, 5, 4, 3, 2)
"""Bits an element. 1 bit is left out: its noise is five times the value itself, which is never worth it."""

SLOPE_WIDTHS = (8, 7, 6, 5, 4, 3, 2, 1)
"""Bits of a derivative, for a value that only activations save. Mostly a derivative has less noise than the value in as
many bits. Where other operators save the value, too, their stored form serves activations at no cost."""

_ALIKE = 0.95
"""A store that serves no repetition is considered only if it holds less than this part of one that does."""

Weigh = Callable[[Graph, StorageCandidates], StorageCandidates]
"""A function that gives a graph's candidates their weights, by the saved tensors in them."""

Allows = Callable[[Store], bool]
"""A function that says whether a store may be used."""


def storage_candidates(
    graph: Graph,
    seen: Seen,
    base: Level,
    rating: Rating,
    weigh: Weigh,
    allows: Allows,
    bits: BitPlan | None = None,
) -> StorageCandidates:
    """Return the stores of a graph's values. Some values have none: small ones, those that the caller holds to the end,
    those whose memory is written later, and casts of parameters, which are never rounded.

    Args:
        graph: the graph, captured while ``seen`` watched.
        seen: what its forward saved.
        base: says of stores what is not in their names. A level that is not off is itself the only store.
        rating: the rates of operators and codecs.
        weigh: gives the candidates their weights.
        allows: whether a store may be used.
        bits: the measured bits of an adaptive level's tensors, by the names under which ``seen`` told them apart.
    """
    last = final_values(graph)
    savers: dict[int, list[Saver]] = defaultdict(list)
    for saver in seen.savers:
        savers[last[saver.value]].append(saver)
    # Memory that was saved before it is written again has a stored form for each part, at a level only.
    parts = {last[saver.value] for saver in seen.savers if last[saver.value] != saver.value} if base.off else set()
    fixed = parts.union(seen.casts, (value.reuses for value in graph.values))
    needed = {value for op in graph.ops for value in op.reads} | {value for step in graph.steps for value in step.reads}
    last_event = len(graph.other) - 1
    policies = _policies(base, seen, allows, bits)
    exact = _Ruled(Store(), make_policy(Store(), base))
    options: list[tuple[Option, ...]] = []
    aside: list[int] = []
    for number, value in enumerate(graph.values):
        outline = seen.outlines[number]
        role = "input" if number in seen.read and number not in seen.masked and not value.exact else "other"
        reader = Saver(number, replace(outline, operator=CHECKPOINT, role=role), 1.0, True)
        seen_of = _OfferedValue(
            value.nbytes, savers[number], reader, rating(outline.device.type, outline.dtype.to_real())
        )
        free = number in needed and number not in fixed and value.until < last_event
        free = free and value.nbytes >= base.min_bytes
        options.append(seen_of.options(policies) if free else ())
        aside.append(seen_of.aside(exact) if graph.rounded else 0)
    kinds = {(outline.device.type, outline.dtype) for outline in seen.outlines}
    hosts = [rating(*kind).host for kind in kinds]
    repeating = max((host.repeat for host in hosts), default=0.0)
    # At a level, the session looks at each call even without a plan.
    following = max((host.follow for host in hosts), default=0.0) * len(graph.ops) if base.off else 0.0
    at = _stored_at(graph)
    saves, none = tuple(seen.saves.found), (0.0,) * len(graph.values)
    return weigh(graph, StorageCandidates(tuple(options), none, tuple(aside), at, repeating, following, saves=saves))


def usual(graph: Graph, candidates: StorageCandidates) -> StorageCandidates:
    """Return the candidates with the weights that are usual before anything is measured."""
    return candidates.weighted(usual_weights(graph, candidates.saves))


def _may_leave(device: torch.device) -> bool:
    """Whether values may wait on the host instead."""
    return device.type == "cuda"


def _policies(base: Level, seen: Seen, allows: Allows, bits: BitPlan | None) -> list[_Ruled]:
    leaves = any(_may_leave(outline.device) for outline in seen.outlines)
    if not base.off:
        fixed = FixedBits(base)
        level = _Ruled(None, fixed if bits is None else PlannedBits(fixed, bits))
        return [level, _Ruled(Store(host=True), level.policy)] if leaves and base.offload else [level]
    stores = [Store(), *map(Store, WIDTHS)]
    if leaves:
        stores += [replace(store, host=True) for store in stores]
    stores[1:1] = [Store(slope_bits=bits) for bits in SLOPE_WIDTHS]
    return [_Ruled(store, make_policy(store, base)) for store in stores if allows(store)]


def _stored_at(graph: Graph) -> tuple[int, ...]:
    found = [-1] * len(graph.values)
    for number in range(len(graph.ops) - 1, -1, -1):
        for value in graph.ops[number].packs:
            if graph.values[value].producer <= number:  # what its memory held before was stored for another value
                found[value] = number
    return tuple(found)


class _Ruled:
    """A store, or ``None`` for that of a level, with the policy of the value's savers. The policy is asked once for
    savers that are alike."""

    def __init__(self, store: Store | None, policy: Policy) -> None:
        self.store = store
        self.host = store is not None and store.host
        self.slopes = store is not None and store.slope_bits is not None
        self.policy = policy
        self.decide = lru_cache(maxsize=None)(policy.decide)


@dataclass(frozen=True)
class _OfferedValue:
    """A value with the tensors that save it.

    Attributes:
        nbytes: of its memory.
        savers: in the order of the forward.
        reader: the tensor as which a repetition would store what it reads of the value.
        rates: of its device and dtype.
    """

    nbytes: int
    savers: Sequence[Saver]
    reader: Saver
    rates: Rates

    def options(self, policies: Sequence[_Ruled]) -> tuple[Option, ...]:
        """The stores worth considering: none that holds as much as another one that is as good."""
        found: list[Option] = []
        slopes = any(saver.activation is not None for saver in self.savers)
        for ruled in policies:
            if ruled.slopes and not slopes:
                continue
            for option in self._of(ruled):
                if option.held < self.nbytes and not any(_is_as_good(other, option) for other in found):
                    found.append(option)
        return tuple(found)

    def _of(self, ruled: _Ruled) -> list[Option]:
        parts = [make_part(ruled.decide(saver.saved), saver, self.nbytes) for saver in self.savers]
        read = make_part(ruled.decide(self.reader.saved), self.reader, self.nbytes)
        if ruled.host:
            return [self._on_host(ruled, [*parts, read])]
        found = []
        if parts and not any(part.keeps for part in parts):
            found.append(self._option(ruled, parts, serves=False))
        if not any(part.keeps for part in (*parts, read)):
            found.insert(0, self._option(ruled, [*parts, read], serves=True))
            if found[-1].held > _ALIKE * found[0].held:
                return found[:1]
        return found

    def _option(self, ruled: _Ruled, parts: Sequence[StoredPart], serves: bool) -> Option:
        stored = _stored(parts)
        codecs = [part.codec for part in stored]
        # A level's seconds are not counted: it has no choice, and the times are those beyond its own.
        named = ruled.store is not None
        return Option(
            store=ruled.store,
            held=min(self.nbytes, sum(part.nbytes for part in stored)),
            restored=self.nbytes if any(codec is not None for codec in codecs) else 0,
            passing=max((self.nbytes for part in stored if part.passing), default=0),
            store_seconds=named * sum(self._seconds(store_seconds, part) for part in stored),
            restore_seconds=named * max(self._seconds(restore_seconds, part) for part in stored),
            noise=named * _noise(stored),
            serves=serves,
        )

    def _on_host(self, ruled: _Ruled, parts: Sequence[StoredPart]) -> Option:
        """The option of host memory. The device holds only what is being copied, made before it leaves or after it has
        come back."""
        stored = _stored(parts)
        crossing = sum(part.nbytes for part in stored if not part.keeps)
        # A tensor with gaps between its elements, as a part of a larger one may have, is made dense before it leaves.
        whole = all(saver.share >= 1 for saver in self.savers) or not any(part.keeps for part in stored)
        codecs = [Offload(part.codec) for part in stored if part.codec is not None]
        return Option(
            store=ruled.store,
            held=0,
            restored=self.nbytes + crossing,
            passing=crossing + max((self.nbytes for part in stored if part.passing or not whole), default=0),
            store_seconds=sum(store_seconds(self.rates, codec, self._numel) for codec in codecs),
            restore_seconds=max((restore_seconds(self.rates, codec, self._numel) for codec in codecs), default=0.0),
            noise=_noise(stored),
        )

    def _seconds(self, taken: Callable[..., float], part: StoredPart) -> float:
        return taken(self.rates, part.codec, self._numel, part.normalised)

    def aside(self, ruled: _Ruled) -> int:
        """Bytes that the forward stores of the value even if it is recomputed from rounded values."""
        decided = [(ruled.decide(saver.saved), saver) for saver in self.savers]
        parts = [make_part(decision, saver, self.nbytes) for decision, saver in decided if decision.from_forward]
        return min(self.nbytes, sum(part.nbytes for part in _stored(parts)))

    @property
    def _numel(self) -> int:
        """Real numbers that codecs store: a complex number is two."""
        return self.nbytes // self.reader.saved.dtype.to_real().itemsize


def _stored(parts: Sequence[StoredPart]) -> list[StoredPart]:
    """The parts that are held together: of parts that share a stored form the largest, and each other kind once."""
    shared = [part for part in parts if not part.alone]
    own = {(part.codec, part.nbytes): part for part in parts if part.alone}
    return [*([max(shared, key=lambda part: part.nbytes)] if shared else []), *own.values()]


def _noise(parts: Sequence[StoredPart]) -> float:
    return max((part.noise for part in parts), default=0.0)


def _is_as_good(one: Option, other: Option) -> bool:
    """Whether ``one`` is at least as good as ``other`` in every respect."""
    return (
        one.held <= other.held
        and one.noise <= other.noise
        and one.serves >= other.serves
        and one.restored <= other.restored
        and one.store_seconds + one.restore_seconds <= other.store_seconds + other.restore_seconds
    )


class StoredPart(NamedTuple):
    """What is stored for one saver of a value.

    Attributes:
        codec: the codec; ``Raw`` if the tensor is kept as it is, ``None`` if only its shape is stored.
        nbytes: bytes of all of the value's memory in that form.
        alone: whether it serves this saver alone, and is not shared.
        passing: whether storing it takes another tensor of that size.
        normalised: whether it is stored normalised, with its statistics.
    """

    codec: Codec | None
    nbytes: int
    alone: bool = False
    passing: bool = False
    normalised: bool = False

    @property
    def keeps(self) -> bool:
        """Whether the memory stays as it is."""
        return isinstance(self.codec, Raw)

    @property
    def noise(self) -> float:
        """The noise of rounded elements, or the noise that would do the same harm as a rounded derivative; 0 if nothing
        is rounded."""
        codec = self.codec.inner if isinstance(self.codec, Offload) else self.codec
        if isinstance(codec, Codebook):
            return codec.noise
        return estimate_noise(codec.bits) if isinstance(codec, GroupAffine) else 0.0


def make_part(decision: SaveDecision, saver: Saver, nbytes: int) -> StoredPart:
    """What a decision stores of a tensor, never more than the bytes of its value.

    Args:
        decision: that of the tensor's policy.
        saver: the tensor.
        nbytes: bytes of the value.
    """
    found = _part(decision, saver)
    size = int(found.nbytes / (min(saver.share, 1.0) or 1.0))
    return found._replace(nbytes=min(allocated(size, saver.saved.device), nbytes))


def _part(decision: SaveDecision, saver: Saver) -> StoredPart:
    saved, codec = saver.saved, decision.codec
    count, whole = saved.shape.numel(), saved.shape.numel() * saved.dtype.itemsize
    kept = StoredPart(Raw(), whole)
    if decision.form is Need.SHAPE and saver.packable:
        return StoredPart(None, 0, alone=True)
    if not saver.packable:
        return kept
    if decision.slope_bits is not None:
        codebook = find_codebook(saver.activation, decision.slope_bits, saved.dtype)
        if codebook is not None:
            return StoredPart(codebook, codebook.stored_bytes(count), alone=True)
    if decision.indices:
        if saver.places:
            return StoredPart(BitMask(), saver.places, alone=True, passing=True)
        return StoredPart(BitMask(), int(count * saver.narrow), alone=True) if saver.narrow else kept
    if decision.form is Need.INSIDE:
        return StoredPart(BitMask(), -(-count // 8), alone=True, passing=True) if saver.inside else kept
    if isinstance(codec, GroupAffine):
        size = codec.stored_bytes(count, saved.dtype)
        alone = decision.form is not None
        passing = decision.normalised or alone
        return StoredPart(codec, size, alone, passing, decision.normalised) if size < whole else kept
    if isinstance(codec, Raw):
        return kept
    # The two values of such a mask are unknown, and looking at it would wait for the device.
    if codec is None and saved.device.type != "cpu":
        return kept
    return StoredPart(BitMask() if codec is None else codec, -(-count // 8), alone=True)
