"""``Profiles``: the profiles of a training's step in each of its ways."""

from __future__ import annotations

import copy

import torch
from torch import nn

from actcore import TrainingStep
from integrations.api.error_control.error_model import ErrorModel
from integrations.capture.capture import capture
from integrations.capture.costs.calibrating import calibrated
from integrations.capture.costs.operator_costs import by
from integrations.capture.costs.rates import Rates, constant
from integrations.estimate.fit.layers import Blocks, find_blocks, shortened
from integrations.estimate.fit.profile import Profile, make_profile
from integrations.estimate.fit.stored import stored_profile
from integrations.estimate.fit.trainings import Training
from integrations.estimate.forecast.checkpoints import checkpoint, checkpoints
from integrations.losses.head import chunk_logits, find_head
from integrations.planner.bounds import USUAL_ERROR, WAYS, Bounds
from integrations.planner.candidates import usual
from integrations.planner.choice import Choice
from integrations.planner.plan import Plan
from integrations.planner.plan_with_stores import planned
from integrations.planner.problem import chosen_entries, training_step
from integrations.policies.levels import LEVELS

_FEW = 2  # layers of the model from which the whole one's step is continued, and one more
_CLOSE = 1e-3


class Profiles:
    """Captures the steps of a training.

    Args:
        training: what is trained.
        blocks: the layers that are alike; ``None`` has each capture run the whole model.
        device: the type of device that the model is on here, whose rates plans are made by, as ``compress_model`` makes
            them; ``None`` if it is on none.
        unchunked: why the loss cannot be computed in chunks; empty if it can.

    Attributes:
        blocks: as given; ``None`` once the layers have turned out not to take alike.
        unchunked: as given.
    """

    def __init__(
        self, training: Training, blocks: Blocks | None, device: str | None = None, unchunked: str = ""
    ) -> None:
        self.training, self.blocks, self._device, self.unchunked = training, blocks, device, unchunked
        self._short: dict[int, nn.Module] = {}
        self._known: dict[tuple[str, bool, int | None, int | None], Profile] = {}
        if blocks is not None and not self._take_alike(blocks):
            self.blocks = None

    @property
    def checkpoints(self) -> bool:
        """Whether the model has checkpoints of its own to switch on."""
        return checkpoints(self.training.model)

    def of(self, way: str, chunked: bool, training: Training | None = None) -> Profile:
        """The profile of a step.

        Args:
            way: ``"kept"``, ``"lean"`` or ``"checkpoint"``.
            chunked: whether the loss is computed in chunks.
            training: the same training with other inputs.
        """
        training = training or self.training
        key = way, chunked, training.batch, training.tokens
        if key not in self._known:
            self._known[key] = self._of(way, chunked, training)
        return self._known[key]

    def _of(self, way: str, chunked: bool, training: Training) -> Profile:
        if self.blocks is None:
            return self._captured(training, copy.deepcopy(training.model), way, chunked)
        few, more = (self._with_layers(count, way, chunked, training) for count in (_FEW, _FEW + 1))
        found = few.continued(more, self.blocks.size - _FEW)
        if found is None:
            return self._captured(training, copy.deepcopy(training.model), way, chunked)
        return found

    def plan(self, error: float, chunked: bool, sharded: bool) -> Plan:
        """The plan of the least memory for the whole model, with all plans that none other beats.

        Args:
            error: the bound on the gradient's error.
            chunked: whether the loss is computed in chunks.
            sharded: whether FSDP2 shards the model. Then nothing is recomputed across its units.
        """
        blocks = find_blocks(self.training.model, fewest=2) if sharded else None
        model = self._changed(copy.deepcopy(self.training.model), "kept", chunked)
        with self.training.surroundings():
            return planned(
                model,
                LEVELS["L0"],
                self.training.args,
                dict(self.training.kwargs),
                Bounds(None, None, error, WAYS),
                loss=self.training.loss,
                weigh=ErrorModel(model, error).weigh if error else usual,
                rating=self._rates,
                estimates=ErrorModel(model, USUAL_ERROR).weigh,
                units=() if blocks is None else [f"{blocks.path}.{number}" for number in range(blocks.size)],
            )

    def _rates(self, device: str, dtype: torch.dtype) -> Rates:
        """Return the rates of the device that the model is on; its tensors here are on ``meta``."""
        return constant(device, dtype) if self._device is None else calibrated(self._device, dtype)

    def _with_layers(self, count: int, way: str, chunked: bool, training: Training) -> Profile:
        assert self.blocks is not None
        if count not in self._short:
            self._short[count] = shortened(training.model, self.blocks, count)
        return self._captured(training, copy.deepcopy(self._short[count]), way, chunked)

    def _take_alike(self, blocks: Blocks) -> bool:
        """Whether the layers take alike: whether the step of twice as many is that of few, continued."""
        count = min(2 * _FEW, blocks.size)
        few, more, twice = (
            self._with_layers(layers, "kept", False, self.training) for layers in (_FEW, _FEW + 1, count)
        )
        found = few.continued(more, count - _FEW)
        return found is not None and abs(found.peak().nbytes / max(1, twice.peak().nbytes) - 1) < _CLOSE

    def _captured(self, training: Training, model: nn.Module, way: str, chunked: bool) -> Profile:
        model = self._changed(model, way, chunked)
        with training.surroundings():
            if way == "lean":
                return stored_profile(model, training.args, training.kwargs, way, training.loss)
            graph = capture(model, training.args, training.kwargs, loss=training.loss, costs=by(constant))
        return make_profile(graph)

    @staticmethod
    def _changed(model: nn.Module, way: str, chunked: bool) -> nn.Module:
        if chunked:
            chunk_logits(find_head(model))
        if way == "checkpoint":
            checkpoint(model)
        return model


class PlanProfiles:
    """The profiles of steps that follow choices of a plan's front, or of that of its ``accumulating`` plan.

    Args:
        plan: the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._steps: dict[bool, TrainingStep] = {}  # by whether the choice is one of the rounded graph

    def of(self, choice: Choice) -> Profile:
        """Return the profile of a step that follows the choice."""
        graph, candidates = self._plan.graph_of(choice), self._plan.candidates_for(choice)
        if choice.rounded not in self._steps:
            self._steps[choice.rounded] = training_step(graph, candidates)
        entries = chosen_entries(choice, candidates)
        return make_profile(graph, candidates, *entries, step=self._steps[choice.rounded])
