"""``StageRank``: one rank of each stage of a pipeline, where the ways of a training are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from integrations.estimate.fit.answer import Way
from integrations.estimate.fit.growth import largest
from integrations.estimate.fit.layers import find_blocks
from integrations.estimate.fit.pipeline import make_stages
from integrations.estimate.fit.profile import Profile
from integrations.estimate.fit.profiles import Profiles
from integrations.estimate.fit.ranks import Ranks
from integrations.estimate.fit.sharding import RankShare, find_units
from integrations.estimate.fit.static_memory import count_static_memory
from integrations.estimate.fit.tensor_parallel import count_other_gradients, split_tensors
from integrations.estimate.fit.trainings import Training
from integrations.estimate.fit.ways import PLANNED, Room, Tried, Tries
from integrations.losses.head import path_of_head, why_unchunked
from integrations.planner.optimizers import Optimizer


@dataclass(frozen=True)
class StageRank:
    """A rank of a stage.

    Attributes:
        profiles: of the stage's steps; stages that are alike share them.
        room: what the rank may take.
    """

    profiles: Profiles
    room: Room


class InStages(NamedTuple):
    """A way in all stages.

    Attributes:
        way: of the stage that takes the most.
        tried: the way in each stage.
    """

    way: Way
    tried: tuple[Tried, ...]

    @property
    def known(self) -> bool:
        """Whether the way was tried."""
        return self.tried[0].profile is not None


def make_stage_ranks(
    training: Training, ranks: Ranks, optimizer: Optimizer, room: Room, device: str | None
) -> list[StageRank]:
    """Return a rank of each stage, the first stage first.

    Args:
        training: of the whole model, whose modules get the weights of one tensor-parallel rank.
        ranks: that share it.
        optimizer: what trains it.
        room: what each rank may take, for the whole training.
        device: as for ``Profiles``.

    Raises:
        ValueError: the model cannot be shared by so many ranks.
    """
    unchunked = _why_unchunked(training, ranks)
    training = training.of(split_tensors(training.model, ranks.tp))
    stages = make_stages(training, ranks)
    known: dict[int, Profiles] = {}
    stage_ranks = []
    for stage in stages:
        model = stage.training.model
        if id(stage.training) not in known:
            known[id(stage.training)] = Profiles(stage.training, find_blocks(model), device, unchunked)
        others = count_other_gradients(model)
        units = find_units(model, ranks.fsdp)
        share = RankShare(ranks.fsdp, units, ranks.pp > 1, ranks.micro_batches, stage.waiting, others)
        left = others if ranks.fsdp == 1 else 0  # a reduce-scatter takes a rank's own
        standing = count_static_memory(model, optimizer, training.together, ranks.fsdp, left)
        stage_ranks.append(
            StageRank(known[id(stage.training)], replace(room, standing=standing, inputs=stage.inputs, share=share))
        )
    return stage_ranks


def _why_unchunked(training: Training, ranks: Ranks) -> str:
    """Return why the loss cannot be computed in chunks; empty if it can."""
    if ranks.pp > 1:
        return "the schedule of a pipeline computes the loss outside of the model"
    why, plan = why_unchunked(training.model), getattr(training.model, "tp_plan", None) or {}
    if ranks.tp > 1 and not why and path_of_head(training.model) in plan:
        return "tensor parallelism shards the weight of its last layer, and a loss in chunks needs it whole"
    return why if training.loss is None else "the loss is computed outside of the model"


def why_unplanned(ranks: Ranks) -> str:
    """Return why no plan is searched; empty if plans are."""
    if ranks.tp == ranks.pp == 1:
        return ""
    return "plans are not forecast with tensor parallelism or a pipeline"


def try_ways(
    stage_ranks: Sequence[StageRank], ranks: Ranks, error: float, names: Sequence[str] | None
) -> list[InStages]:
    """Return the ways by name, each as the stage takes it that takes the most.

    Args:
        stage_ranks: by stage.
        ranks: that share the training.
        error: as for ``Tries``.
        names: as for ``Tries.all``.
    """
    unplanned = why_unplanned(ranks)
    every = [list(Tries(one.profiles, one.room, error, unplanned).all(names)) for one in stage_ranks]
    return [_join(tried) for tried in zip(*every, strict=True)]


def _join(tried: tuple[Tried, ...]) -> InStages:
    peaks = tuple(one.way.peak for one in tried)
    if len(peaks) == 1:
        return InStages(tried[0].way, tried)
    stage = peaks.index(max(peaks))
    return InStages(replace(tried[stage].way, stage=stage, stages=peaks if max(peaks) else ()), tried)


def find_largest(stage_ranks: Sequence[StageRank], way: InStages, axis: str) -> int | None:
    """Return the largest size that fits in all stages; ``None`` if it cannot be told.

    Args:
        stage_ranks: by stage.
        way: in which the training is done.
        axis: ``"batch"`` or ``"tokens"``.
    """
    found = [_largest(one, tried, axis) for one, tried in zip(stage_ranks, way.tried, strict=True)]
    known = [size for size in found if size is not None]
    return min(known) if len(known) == len(found) else None


def _largest(rank: StageRank, tried: Tried, axis: str) -> int | None:
    training = rank.profiles.training
    size: int | None = getattr(training, axis)
    if size is None or tried.profile is None:
        return None

    def at(count: int) -> Profile:
        return rank.profiles.of(tried.kind, tried.chunked, training.sized(**{axis: count}))

    scaled = tried.kind == PLANNED
    return largest(size, rank.room, tried.profile, None if scaled else at, axis == "batch")
