"""Compression for DeepSpeed, with its options in DeepSpeed's own configuration.

from integrations.deepspeed import initialize

engine, optimizer, _, _ = initialize(model=model, model_parameters=model.parameters(), config="ds.json")
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from integrations._utils.ecosystem import library
from integrations.api.trainers.training import CompressedTraining

__all__ = ["initialize"]

_SECTION = "actcore"
"""The section of the configuration, and the key of the client state, in checkpoints of the engine."""


def initialize(*, model: nn.Module, config: Mapping[str, Any] | str | Path, **options: Any) -> tuple[Any, ...]:
    """``deepspeed.initialize`` for a model that is compressed first.

    The section ``"actcore"`` of the configuration has the arguments of ``compress_model``::

        {"train_batch_size": 32, "zero_optimization": {"stage": 2}, "actcore": {"level": "L1"}}

    ``engine.save_checkpoint`` saves the state of the compression with the engine's, and ``engine.load_checkpoint`` goes
    on with it: a run that is resumed rounds as one without a break. A checkpoint of another level or plan raises
    ``ValueError``.

    Args:
        model: the model. One that is compressed already, with the same arguments, keeps its handle. If DeepSpeed
            raises, a model that this has compressed is restored.
        config: DeepSpeed's configuration, or the path of its JSON file. It is not changed.
        options: other arguments of ``deepspeed.initialize``.

    Returns:
        what ``deepspeed.initialize`` returns: engine, optimizer, data loader, scheduler.

    Raises:
        ImportError: DeepSpeed is not installed.
        TypeError: ``config`` is neither a mapping nor a path, or its section is no mapping.
        ValueError: ``config`` has no such section.
        Exception: what ``compress_model`` or DeepSpeed raise.
    """
    deepspeed = library("deepspeed", "deepspeed")
    settings, section = _split(config)
    level = section.pop("level", None)
    training = CompressedTraining(level, None, restore=True, resume=True, arguments=section, asker="configuration")
    training.begin(model, None)
    try:
        made: tuple[Any, ...] = deepspeed.initialize(model=model, config=settings, **options)
    except BaseException:
        training.end()
        raise
    engine = made[0]
    engine.save_checkpoint = _saving(engine.save_checkpoint, training)
    engine.load_checkpoint = _loading(engine.load_checkpoint, training)
    return made


def _split(config: Mapping[str, Any] | str | Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """DeepSpeed's part of the configuration, and ours."""
    if isinstance(config, (str, Path)):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        raise TypeError(f"config must be a mapping or the path of a JSON file, got {type(config).__name__}")
    settings = dict(config)
    section = settings.pop(_SECTION, None)
    if section is None:
        raise ValueError(
            f'config must have a section "{_SECTION}" with arguments of compress_model, such as {{"level": "L1"}}, got '
            f"the sections {', '.join(settings) or 'none'}; without one, call deepspeed.initialize"
        )
    if not isinstance(section, Mapping):
        raise TypeError(f'the section "{_SECTION}" of config must be a mapping, got {section!r}')
    return settings, dict(section)


def _saving(save: Callable[..., Any], training: CompressedTraining) -> Callable[..., Any]:
    @functools.wraps(save)
    def save_checkpoint(
        save_dir: Any, tag: Any = None, client_state: Mapping[str, Any] | None = None, *args: Any, **options: Any
    ) -> Any:
        return save(save_dir, tag, {**(client_state or {}), _SECTION: training.state()}, *args, **options)

    return save_checkpoint


def _loading(load: Callable[..., Any], training: CompressedTraining) -> Callable[..., Any]:
    @functools.wraps(load)
    def load_checkpoint(*args: Any, **options: Any) -> Any:
        path, state = load(*args, **options)
        if isinstance(state, dict) and _SECTION in state and training.handle is not None:
            training.go_on(training.handle, state.pop(_SECTION))
        return path, state

    return load_checkpoint
