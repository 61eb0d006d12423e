"""Compression for torchtitan: an activation-checkpointing policy, its state in checkpoints, its numbers in metrics.

from integrations.torchtitan import compress_config

def llama3_8b_compressed():
    return compress_config(llama3_8b(), level="L1")
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from integrations._utils.ecosystem import library
from integrations.api.trainers.training import CompressedTraining

library("torchtitan", "torchtitan")

from torch.distributed.checkpoint.stateful import Stateful  # noqa: E402
from torchtitan.components.checkpointer.dcp import CheckpointManager  # noqa: E402
from torchtitan.components.metrics import MetricsProcessor  # noqa: E402
from torchtitan.config import Configurable  # noqa: E402
from torchtitan.config.override import derive  # noqa: E402
from torchtitan.tools.logging import logger  # noqa: E402

__all__ = ["CompressedCheckpointManager", "CompressedMetricsProcessor", "Compression", "compress_config"]

_STATE = "compression"
"""The key of the state in checkpoints, and of the numbers in metrics."""
_RANKS = "ranks"
_NOT_HERE = ("activations", "checkpoint", "layers", "linear", "loss")
"""Arguments of ``compress_model`` that exchange modules, which torchtitan has parallelized, or the loss."""
_GIB = 2**30

_trainings: WeakKeyDictionary[nn.Module, CompressedTraining] = WeakKeyDictionary()
"""By model, or by part of it in a pipeline: what compresses it, with its handle."""


class Compression(Configurable):  # type: ignore[misc]
    """An activation-checkpointing policy of torchtitan that compresses saved tensors.

    ::

        config.activation_checkpoint = Compression.Config(level="L1")
        config.activation_checkpoint = Compression.Config(memory="40GiB")

    torchtitan applies it to the model, or to each part of it in a pipeline, behind tensor parallelism and before
    ``torch.compile`` and FSDP. ``compress_config`` also saves the state in checkpoints and adds numbers to the metrics.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):  # type: ignore[misc]
        """Arguments of ``integrations.compress_model``.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the level or an option is unknown, or a value is out of range.
        """

        level: str | None = None
        """One of ``integrations.LEVELS``. By default ``"L1"``, or none with ``memory`` or the like."""

        memory: int | float | str | None = None
        """The most that forward and backward may take: bytes, ``"40GiB"``, or a fraction of the plain step's. In a
        pipeline it is the budget of each part of the model, for all micro-batches that are in flight at once."""

        time: float | None = None
        """The most time of a step, as a multiple of the plain step's."""

        error: float | None = None
        """The largest relative error of the gradient; 0 is exact."""

        stores: list[str] | None = None
        """The ways in which a plan may store values."""

        plan: str | None = None
        """The path of a saved plan."""

        fallback: str | None = None
        """``"least"``: takes the plan of least memory if none fits."""

        in_flight: int | None = None
        """How many micro-batches of a part are in flight at once, at most. By default, as the pipeline's schedule
        says."""

        strict: bool = False
        """Raises for tensors that cannot be compressed."""

        options: dict[str, Any] = field(default_factory=dict)
        """Options of the level, such as ``bits``, ``seed`` and ``keep``."""

        def __post_init__(self) -> None:
            _training(self)

    def __init__(self, config: Config, dump_folder: str = "") -> None:
        self.config = config
        self._applied: list[nn.Module] = []

    def apply(self, model: nn.Module) -> None:
        """Compress a model. Leave out a part of one that is compressed already, such as its encoder."""
        if any(model is module for whole in self._applied for module in whole.modules()):
            return
        training = _training(self.config)
        handle = training.begin(model, None)
        _trainings[model] = training
        self._applied.append(model)
        logger.info(f"Compressing saved tensors: {handle}")


class CompressedCheckpointManager(CheckpointManager):  # type: ignore[misc]
    """torchtitan's ``CheckpointManager``, which also saves and loads the state of the compression.

    A run that is resumed on as many ranks rounds as one without a break. To load a checkpoint without this state, or
    of another number of ranks, set ``exclude_from_loading=["compression"]``. A checkpoint of another level or plan
    raises ``ValueError``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(CheckpointManager.Config):  # type: ignore[misc]
        """``CheckpointManager.Config``."""

    def __init__(self, config: Config, *, model_parts: list[nn.Module], states: dict[str, Any], **others: Any) -> None:
        if config.enable and not config.create_seed_checkpoint:  # a seed is made of a model that nothing was applied to
            states = {**states, _STATE: _State(model_parts)}
        super().__init__(config, model_parts=model_parts, states=states, **others)


class CompressedMetricsProcessor(MetricsProcessor):  # type: ignore[misc]
    """torchtitan's ``MetricsProcessor``, which also logs what this rank's last forward saved.

    ``compression/original(GiB)``: bytes that autograd alone would keep; ``compression/stored(GiB)``: bytes that are
    kept instead; ``compression/ratio``: the first over the second. In a pipeline these are of one micro-batch, and
    count all parts of this rank. ``compression/step_peak(GiB)``, where a rank has one part: the peak of a step, planned
    or estimated.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(MetricsProcessor.Config):  # type: ignore[misc]
        """``MetricsProcessor.Config``."""

    def log(
        self,
        step: int,
        global_avg_loss: float,
        global_max_loss: float,
        grad_norm: float,
        extra_metrics: dict[str, Any] | None = None,
    ) -> None:
        """Logs a step."""
        metrics = {**(extra_metrics or {}), **_metrics(self.model_parts or ())}
        super().log(step, global_avg_loss, global_max_loss, grad_norm, extra_metrics=metrics)


def compress_config(config: Any, level: str | None = None, **arguments: Any) -> Any:
    """Have torchtitan train under compression.

    ::

        def llama3_8b_compressed():
            return compress_config(llama3_8b(), memory="40GiB")

    Sets ``config.activation_checkpoint`` to a ``Compression.Config``, and replaces ``config.checkpoint`` and
    ``config.metrics`` by ones with the same values that also save the state and log the numbers of the compression.

    Args:
        config: a ``torchtitan.trainer.Trainer.Config``, which is changed.
        level: as for ``Compression.Config``, like the other arguments; what is no field of it is one of its
            ``options``.

    Returns:
        ``config``.

    Raises:
        TypeError: an argument is unknown or has the wrong type; or ``config.checkpoint`` or ``config.metrics`` is of
            another class than torchtitan's own. Then set ``config.activation_checkpoint`` alone.
        ValueError: a value is out of range.
    """
    names = {one.name for one in fields(Compression.Config)}
    options = {name: arguments.pop(name) for name in [*arguments] if name not in names}
    options |= arguments.pop("options", {})
    policy = Compression.Config(level=level, options=options, **arguments)
    parts = {
        "checkpoint": _extended(config, "checkpoint", CheckpointManager, CompressedCheckpointManager),
        "metrics": _extended(config, "metrics", MetricsProcessor, CompressedMetricsProcessor),
    }
    config.activation_checkpoint = policy
    for name, part in parts.items():
        setattr(config, name, part)
    return config


def _extended(config: Any, name: str, known: Any, extended: Any) -> Any:
    """The part of a configuration, with the class that extends torchtitan's."""
    part = getattr(config, name)
    if type(part) not in (known.Config, extended.Config):
        raise TypeError(
            f"config.{name} must be a {known.__name__}.Config of torchtitan, got {type(part).__qualname__}, which "
            "compress_config cannot extend: set config.activation_checkpoint = Compression.Config(...) alone"
        )
    return derive(part, extended.Config)


def _training(config: Compression.Config) -> CompressedTraining:
    """What compresses a model as the configuration says."""
    values = {one.name: getattr(config, one.name) for one in fields(config)}
    options = values.pop("options")
    if named := sorted(options.keys() & {*values, *_NOT_HERE}):
        raise TypeError(
            f"options must be options of the level, such as bits and seed, got {', '.join(named)}: fields of the "
            f"configuration are set there; torchtitan has its own loss in chunks, and {', '.join(_NOT_HERE)} cannot "
            "be used with it"
        )
    level = values.pop("level")
    given = {name: value for name, value in values.items() if value is not None}
    return CompressedTraining(
        level, None, restore=True, resume=True, arguments={**given, **options}, asker="configuration"
    )


class _State(Stateful):
    """The state of each part of this rank, under the names of rank and part."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        started = torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if started else 0
        self._ranks = torch.distributed.get_world_size() if started else 1
        self._trainings = {f"rank {rank}, part {index}": _found(part) for index, part in enumerate(parts)}

    def state_dict(self) -> dict[str, Any]:
        """The states as bytes, because a checkpoint would flatten mappings, and their keys differ between steps."""
        states: dict[str, Any] = {name: _to_bytes(training.state()) for name, training in self._trainings.items()}
        return {_RANKS: self._ranks, **states}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from the states of a checkpoint.

        Raises:
            ValueError: the checkpoint is of another number of ranks, level or plan.
        """
        if state_dict[_RANKS] != self._ranks:
            raise ValueError(
                f"the checkpoint's compression is of {state_dict[_RANKS]} ranks, and there are {self._ranks}: pass "
                f"--checkpoint.exclude_from_loading {_STATE}, which begins the rounding anew"
            )
        for name, training in self._trainings.items():
            assert training.handle is not None
            training.go_on(training.handle, torch.load(io.BytesIO(state_dict[name]), weights_only=True))


def _found(part: nn.Module) -> CompressedTraining:
    """What compresses a part of a model."""
    training = _trainings.get(part)
    if training is None:
        raise ValueError(
            f"CompressedCheckpointManager needs a model that integrations.torchtitan.Compression has compressed, got "
            f"{type(part).__name__}, which it has not: set config.activation_checkpoint = Compression.Config(...)"
        )
    return training


def _to_bytes(state: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _metrics(parts: Iterable[nn.Module]) -> dict[str, float]:
    """See ``CompressedMetricsProcessor``."""
    handles = [training.handle for training in map(_trainings.get, parts) if training is not None]
    reports = [handle.report() for handle in handles if handle is not None]
    original, stored = (sum(getattr(report, name) for report in reports) for name in ("original_bytes", "stored_bytes"))
    if not original:
        return {}
    found = {"original(GiB)": original / _GIB, "stored(GiB)": stored / _GIB, "ratio": original / max(stored, 1)}
    if len(reports) == 1 and reports[0].peak_source:
        found["step_peak(GiB)"] = reports[0].peak_bytes / _GIB
    return {f"{_STATE}/{name}": value for name, value in found.items()}
