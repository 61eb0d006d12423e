"""``ErrorModel``: predicts the gradient's error under a plan, layer by layer, and learns from measured errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from integrations._utils.checked_json import of_type
from integrations.api.error_control.gradient_errors import OF_TENSOR, GradientErrors, large_parameters
from integrations.capture.graphs.graph import Graph
from integrations.planner.bounds import USUAL_ERROR
from integrations.planner.candidates import usual
from integrations.planner.plan import Plan
from integrations.planner.sensitivity.weights import LayerNoise, layer_noise
from integrations.planner.storage_candidates import StorageCandidates

TARGET = 0.75
"""The part of a bound at which plans aim. Eight steps of a BERT had 0.92 to 1.06 of their mean error, by their noise
and data alone; the rest is for what a model learns until the next measurement. It costs 0.4 bits of an element."""

DRIFT = 2.0
"""Layers count by at least this much of their usual shares of the gradient. In a net of three gated layers, the share
of two with large errors rose from a tenth to two thirds within 50 steps."""

_ABOVE = 1.1  # corrected predictions are so much above the measured squared error
_ANY = 1e6  # a limit on noise that no store reaches
_ENOUGH = OF_TENSOR**-2  # a layer that counts by this share keeps to its bound if the whole gradient does
_ALONE = 0.5  # the most that a single value may add to the squared error of a large tensor, as a part of its bound


class ErrorModel:
    """Predicts the error of each layer's gradient from the stores of the values, and corrects that by what was
    measured.

    A plan keeps the whole gradient's error within the bound, and that of each large parameter tensor within
    ``OF_TENSOR`` times the bound. Layers count in the whole gradient by their measured shares of its energy or by
    ``DRIFT`` times their usual ones, whichever is larger: the shares change while a model learns.

    Args:
        model: the model.
        bound: the bound on the relative error of the whole gradient.

    Attributes:
        bound: as given.
        version: how often predictions have changed.
        last: the last measurement, in words.
    """

    def __init__(self, model: nn.Module, bound: float) -> None:
        self.bound = bound
        self._parameters = {name for name, one in model.named_parameters() if one.requires_grad}
        self._large = large_parameters(model)
        self._factors: dict[str, float] = {}  # by layer: measured squared errors over predicted ones
        self._shares: dict[str, float] = {}  # by layer: its part of the gradient's energy
        self._rest = 1.0  # the factor of layers that were not measured, and of what belongs to no layer
        self.version, self.last = 0, ""

    @classmethod
    def weighing(cls, model: nn.Module, errors: ErrorModel | None) -> dict[str, Any]:
        """Return the arguments by which ``planned`` weighs noise: by predicted errors, or by the operators alone where
        there are none; and by a new model's predictions where an error message estimates what rounding would allow."""
        return {"weigh": usual if errors is None else errors.weigh, "estimates": cls(model, USUAL_ERROR).weigh}

    def weigh(
        self, graph: Graph, candidates: StorageCandidates, least: Mapping[str, float] | None = None
    ) -> StorageCandidates:
        """Return candidates with the weights of a graph's values, and the most noise that each may have.

        Args:
            graph: the graph.
            candidates: its candidates, with the saved tensors.
            least: the least share by which a layer counts in the whole gradient, from ``least_shares``.
        """
        if not candidates.saves:  # of a plan that was saved before these were
            return candidates.weighted(tuple(self._rest * weight for weight in candidates.weights))
        noise = self._noise(graph, candidates)
        shares = [
            max(min(1.0, DRIFT * share), self._shares.get(layer, 0.0), (least or {}).get(layer, 0.0))
            for layer, share in zip(noise.layers, noise.shares, strict=True)
        ]
        weights = tuple(weight / TARGET**2 for weight in noise.weights(shares))
        columns = [column for column, layer in enumerate(noise.layers) if layer in self._large_layers(noise)]
        if not columns:
            return candidates.weighted(weights)
        most = noise.parts[:, columns].amax(1).tolist()
        allowed = _ALONE * (OF_TENSOR * TARGET * self.bound) ** 2
        return candidates.weighted(weights, tuple(allowed / part if part else _ANY for part in most))

    def least_shares(self, plan: Plan, before: Mapping[str, float], last: bool = False) -> dict[str, float] | None:
        """Return the least shares by which layers have to count in another search, if a plan is predicted to break the
        bound of a large tensor; ``None`` if it is not.

        Args:
            plan: the plan.
            before: the shares of its own search.
            last: whether all large layers count so much, after which no search is necessary.
        """
        noise = self._noise_of(plan)
        if noise is None:
            return None
        predicted, large = self._predicted(plan), self._large_layers(noise)
        allowed = (OF_TENSOR * TARGET * self.bound) ** 2 * (1 + 1e-9)
        over = {layer: square / allowed for layer, square in predicted.items() if layer in large and square > allowed}
        if not over:
            return None
        if last:
            return self.strictest_shares(plan)
        usual = dict(zip(noise.layers, noise.shares, strict=True))
        now = {
            layer: max(min(1.0, DRIFT * usual[layer]), self._shares.get(layer, 0.0), before.get(layer, 0.0))
            for layer in over
        }
        return {**before, **{layer: min(_ENOUGH, _ABOVE * over[layer] * share) for layer, share in now.items()}}

    def strictest_shares(self, plan: Plan) -> dict[str, float]:
        """Return the shares of large layers with which each plan keeps to the bounds of all tensors."""
        noise = self._noise_of(plan)
        return {} if noise is None else dict.fromkeys(self._large_layers(noise), _ENOUGH)

    def correct(self, plan: Plan, found: GradientErrors) -> None:
        """Correct the predictions so that none is below what was measured. A measurement below a prediction corrects
        nothing: errors grow while a model learns, and it does not tell by which values a prediction was too high.

        Args:
            plan: the plan under which it was measured.
            found: the measured errors.
        """
        predicted, layers = self._predicted(plan), self._layers(self._noise_of(plan))
        energy = sum(one.energy for one in found.tensors.values())
        errors, energies, most = dict[str, float](), dict[str, float](), dict[str, float]()
        for name, one in found.tensors.items():
            layer = layers.get(name)
            if layer is None:
                continue
            errors[layer] = errors.get(layer, 0.0) + one.error
            energies[layer] = energies.get(layer, 0.0) + one.energy
            if name in found.large and one.energy > 0:
                most[layer] = max(most.get(layer, 0.0), one.relative**2)
        for layer, square in predicted.items():
            if square <= 0 or energies.get(layer, 0.0) <= 0:
                continue
            measured = max(errors[layer] / energies[layer], most.get(layer, 0.0))
            before = self._factors.get(layer, self._rest)
            self._factors[layer] = before * max(1.0, _ABOVE * measured / square)
        if energy > 0:
            self._shares = {layer: one / energy for layer, one in energies.items()}
        whole, expected = found.relative**2, self._whole(plan)
        if math.isfinite(whole) and expected > 0 and _ABOVE * whole > expected:
            more = _ABOVE * whole / expected
            self._rest *= more
            self._factors = {layer: more * factor for layer, factor in self._factors.items()}
        self.version += 1

    def _whole(self, plan: Plan) -> float:
        """Return the predicted squared error of the whole gradient, without the part that plans leave to chance."""
        candidates = self.weigh(plan.followed, plan.candidates_for(plan.choice))
        return TARGET**2 * sum(candidates.weights[value] * noise for value, noise in _noises(plan).items())

    def _predicted(self, plan: Plan) -> dict[str, float]:
        """Return the predicted squared relative error of each layer's gradient."""
        noise, noises = self._noise_of(plan), _noises(plan)
        if noise is None or not noises:
            return {}
        return dict(zip(noise.layers, noise.errors(noises), strict=True))

    def _noise_of(self, plan: Plan) -> LayerNoise | None:
        candidates = plan.candidates_for(plan.choice)
        return self._noise(plan.followed, candidates) if candidates.saves else None

    def _noise(self, graph: Graph, candidates: StorageCandidates) -> LayerNoise:
        """Return the corrected coefficients of a graph."""
        return layer_noise(graph, candidates.saves).corrected(self._factors, self._rest)

    def _layers(self, noise: LayerNoise | None) -> dict[str, str]:
        """Return the layer of each parameter that has one: that of its module, or of the nearest module around it."""
        known, found = set() if noise is None else set(noise.layers), {}
        for name in self._parameters:
            path = name.rpartition(".")[0]
            while path and path not in known:
                path = path.rpartition(".")[0]
            if path in known:
                found[name] = path
        return found

    def _large_layers(self, noise: LayerNoise | None) -> set[str]:
        """Return the layers that have a large parameter tensor."""
        return {layer for name, layer in self._layers(noise).items() if name in self._large}

    # ---- state ----

    def state(self) -> dict[str, Any]:
        """Return what was learnt, as plain values."""
        return {
            "factors": dict(self._factors),
            "shares": dict(self._shares),
            "rest": self._rest,
            "version": self.version,
        }

    def load(self, state: Any) -> None:
        """Take over what ``state`` returned.

        Raises:
            ValueError: it has another form.
        """
        if not isinstance(state, Mapping) or set(state) != {"factors", "shares", "rest", "version"}:
            raise ValueError(f"the state's errors must be what state_dict returned, got {state!r:.80}")
        factors, shares = (
            {of_type(str, layer, name): of_type(float, one, name) for layer, one in dict(state[name]).items()}
            for name in ("factors", "shares")
        )
        rest, version = of_type(float, state["rest"], "rest"), of_type(int, state["version"], "version")
        if not all(0 <= one < math.inf for one in (*factors.values(), *shares.values(), rest)):
            raise ValueError("the state's factors and shares must be finite and not negative")
        self._factors, self._shares, self._rest, self.version = factors, shares, rest, version


def _noises(plan: Plan) -> dict[int, float]:
    """Return the noise of each value that a plan rounds."""
    candidates = plan.candidates_for(plan.choice)
    return {value: candidates.option(value, store).noise for value, store in plan.choice.stores if not store.exact}
