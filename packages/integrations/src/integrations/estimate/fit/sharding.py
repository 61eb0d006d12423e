"""``RankShare``: what FSDP2 and a pipeline add to a step's bytes on one rank."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from integrations.estimate.fit.layers import find_blocks
from integrations.estimate.fit.profile import Moment, Profile
from integrations.estimate.fit.static_memory import largest_shard
from integrations.planner.optimizers import nbytes


@dataclass(frozen=True)
class Units:
    """The units of FSDP2, in bytes: each of the layers that are alike, and the rest of the model, the root.

    FSDP2 pads each parameter so that all ranks' shards of it have the size of the largest. Its gathered parameters and
    the inputs of its reduce-scatters are padded; gradients of backward are not.

    Attributes:
        count: how many layers there are.
        block: padded parameters of a layer.
        block_gradients: gradients of a layer's trained parameters.
        block_shards: a rank's shards of these gradients.
        root, root_gradients, root_shards: the same of the rest.
        head_gradients: how many bytes of the root's gradients backward makes before those of the layers.
    """

    count: int = 0
    block: int = 0
    block_gradients: int = 0
    block_shards: int = 0
    root: int = 0
    root_gradients: int = 0
    root_shards: int = 0
    head_gradients: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all parameters, padded."""
        return self.root + self.count * self.block

    def count_shards(self, gradients: int) -> int:
        """Return the bytes of a rank's shards of all gradients, which have ``gradients`` bytes.

        Trained parameters that a step leaves out have no gradients. They are taken to be padded like the others.
        """
        shards = self.root_shards + self.count * self.block_shards
        return math.ceil(gradients * shards / max(1, self.root_gradients + self.count * self.block_gradients))


def find_units(model: nn.Module, fsdp: int) -> Units:
    """Return the units of a model on ``fsdp`` ranks.

    Parameters registered after the layers are taken to be used after them.
    """
    blocks = find_blocks(model, fewest=2)
    count = 0 if blocks is None else blocks.size
    inside = [] if blocks is None else list(model.get_submodule(blocks.path).parameters())
    own = set(map(id, inside))
    parameters = list(model.parameters())
    rest = [one for one in parameters if id(one) not in own]
    last = max((place for place, one in enumerate(parameters) if id(one) in own), default=-1)
    behind = set(map(id, parameters[last + 1 :])) if own else set[int]()

    def trained(given: list[nn.Parameter]) -> list[nn.Parameter]:
        return [one for one in given if one.requires_grad]

    def whole(given: list[nn.Parameter]) -> int:
        return sum(map(nbytes, given))

    def shards(given: list[nn.Parameter]) -> int:
        return sum(nbytes(largest_shard(one, fsdp)) for one in given)

    return Units(
        count=count,
        block=fsdp * shards(inside) // max(1, count),
        block_gradients=whole(trained(inside)) // max(1, count),
        block_shards=shards(trained(inside)) // max(1, count),
        root=fsdp * shards(rest),
        root_gradients=whole(trained(rest)),
        root_shards=shards(trained(rest)),
        head_gradients=whole(trained([one for one in rest if id(one) in behind])),
    )


@dataclass(frozen=True)
class RankShare:
    """What a rank holds of a training whose step is captured for this rank alone.

    Attributes:
        fsdp: how many ranks shard parameters, gradients and states.
        units: FSDP2's units.
        pipelined: whether the rank runs a stage of a pipeline.
        micro_batches: how many batches a step sends through the stage.
        waiting: how many of them wait for their backward at most, in a 1F1B schedule.
        others: bytes of gradients of other ranks' parameters that backward leaves, until FSDP2 reduces them.
    """

    fsdp: int = 1
    units: Units = field(default_factory=Units)
    pipelined: bool = False
    micro_batches: int = 1
    waiting: int = 1
    others: int = 0

    def peak(self, profile: Profile, fresh: bool) -> Moment:
        """Return the moment of the most bytes on this rank.

        In a 1F1B schedule, the first backward begins when ``waiting`` micro-batches wait, and makes the gradients. The
        later ones add to them, with as many waiting if there are micro-batches left to send.

        Args:
            profile: a step's with one micro-batch, before anything is sharded.
            fresh: whether the first backward of a step makes the gradients, instead of adding to them.
        """
        first = self._peak(profile, self.waiting - 1, fresh)
        if self.micro_batches == 1:
            return first
        others = self.waiting - 1 if self.micro_batches > self.waiting else max(0, self.waiting - 2)
        return max(first, self._peak(profile, others, False), key=lambda moment: moment.nbytes)

    def count_planned(self, profile: Profile, fresh: bool) -> int:
        """Return the activation peak that the plan of the sharded model counts: without what FSDP2 gathers, and
        without the buffers of its collectives.

        Args:
            profile, fresh: as for ``peak``.
        """
        if self.fsdp > 1 and not self.pipelined:
            profile = self._reduced(profile)
        return profile.peak(fresh).nbytes - profile.gradients

    def _peak(self, profile: Profile, others: int, fresh: bool) -> Moment:
        moment = self._placed(profile, others).peak(fresh)
        if fresh or (self.fsdp > 1 and not self.pipelined):
            return moment
        return replace(moment, gradients=moment.gradients + self.others)

    def _placed(self, profile: Profile, others: int) -> Profile:
        """Return the profile with the bytes of other micro-batches that wait, and of FSDP2."""
        parts = profile.parts.clone()
        parts[0] += others * profile.held
        profile = replace(profile, parts=parts)
        if self.fsdp == 1:
            return profile
        return self._gathered(profile) if self.pipelined else self._sharded(profile)

    def _sharded(self, profile: Profile) -> Profile:
        """Return the profile of a step under ``fully_shard``, as torch runs it without explicit prefetching.

        The root is gathered from forward to backward, and its gradients are reduced at the end. A layer's parameters
        are copied out of the buffer of an all-gather. In the forward, this buffer is held until the next layer's
        parameters are there; that of the last layer until the model's forward is over. In backward, the buffer
        of the next layer is there while a layer runs, and so is the input of the reduce-scatter of the one before.
        """
        units, forward = self.units, len(profile.forward)
        over, profile = self._count_over(profile), self._reduced(profile)
        parts, events = profile.parts.clone(), torch.arange(profile.parts.shape[1])
        loss_op, loss_steps = profile.loss
        backward = events >= forward + loss_steps
        layers = ((events < loss_op) | backward) & (over < max(1, units.count))
        prefetched = ~backward | (over < units.count - 1)
        reduced = backward & (over > 0)
        parts[3] += prefetched * units.block + reduced * self.fsdp * units.block_shards
        parts[4] = units.root + layers * units.block
        return replace(profile, parts=parts)

    def _count_over(self, profile: Profile) -> Tensor:
        """Return, by event, how many layers' gradients are all made."""
        units = self.units
        of_layers = (profile.parts[2] - units.head_gradients).clamp(0, units.count * units.block_gradients)
        return torch.div(of_layers, max(1, units.block_gradients), rounding_mode="floor")

    def _reduced(self, profile: Profile) -> Profile:
        """Return the profile with shards of the gradients of layers whose backward is over."""
        units, parts, over = self.units, profile.parts.clone(), self._count_over(profile)
        parts[2] = over * units.block_shards
        parts[3] += profile.parts[2] - over * units.block_gradients  # whole until their unit is over
        return replace(profile, parts=parts, gradients=units.count_shards(profile.gradients))

    def _gathered(self, profile: Profile) -> Profile:
        """Return the profile of a stage under ``fully_shard(..., reshard_after_forward=False)``.

        ``PipelineStage`` has FSDP2 keep parameters and gradients whole until the last micro-batch's backward is over.
        Then the units' gradients are reduced one by one, the root's first.
        """
        units = self.units
        parts = profile.parts.clone()
        parts[4] = units.nbytes
        released = units.root + units.root_gradients - units.root_shards
        end = max(self.fsdp * units.root_shards, self.fsdp * units.block_shards - released)
        last = torch.tensor([0, 0, profile.gradients, end, units.nbytes], dtype=parts.dtype)
        return replace(profile, parts=torch.cat((parts, last[:, None]), 1))
