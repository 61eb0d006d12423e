"""``CompressionCallback`` for transformers' Trainer."""

from __future__ import annotations

import json
from os import PathLike, fspath
from typing import Any

from torch import nn

from integrations._utils.ecosystem import library
from integrations.api.handle.compression import Compression
from integrations.api.trainers.training import CompressedTraining, Reported

transformers: Any = library("transformers", "hf")


class CompressionCallback(transformers.TrainerCallback, transformers.trainer_callback.ExportableState):
    """Trains a model of transformers' ``Trainer`` under compression.

    ::

        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[CompressionCallback(memory="8GiB")])
        trainer.train()

    The model is compressed when training begins, as ``compress_model`` does it; one that is compressed already keeps
    its handle. Checkpoints hold what a resumed run needs to round as the one that was interrupted would have: it is
    in ``trainer_state.json``, and taken over by ``trainer.train(resume_from_checkpoint=...)``. When training ends,
    ``trainer.state.log_history`` gets an entry before its last one: ``compression_ratio``,
    ``compression_original_bytes`` and ``compression_stored_bytes``, of the last forward on this rank.

    Args:
        level: one of ``integrations.LEVELS``; by default ``"L1"``, or none where ``memory`` or the like is given.
        report: where the report of the last forward goes when training ends: a path that ends in ``.json`` or
            ``.html``; ``True`` prints it; ``None`` does neither.
        restore: whether the model is restored then. One that was compressed before training stays so.
        resume: whether a checkpoint's state is taken over; ``False`` begins the rounding anew.
        **arguments: the other arguments of ``compress_model``, such as ``memory="8GiB"``.

    Attributes:
        handle: the handle of the model that is trained, or was trained last; ``None`` before.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the level or an option is unknown, or a value is out of range. When training begins: the model is
            compressed with other arguments, or the checkpoint is of another level; or the Trainer has a second
            callback of this class.
    """

    def __init__(
        self,
        level: str | None = None,
        *,
        report: Reported = None,
        restore: bool = True,
        resume: bool = True,
        **arguments: Any,
    ) -> None:
        self._training = CompressedTraining(level, report, restore, resume, arguments)
        made_with = {"level": level, "report": report, "restore": restore, "resume": resume, **arguments}
        self._made_with = {
            name: fspath(value) if isinstance(value, PathLike) else value for name, value in made_with.items()
        }
        # Set on a callback that the Trainer has made from a checkpoint (restore_callback_states_from_checkpoint).
        self.compression: dict[str, Any] | None = None
        self.left_out: list[str] = []

    @property
    def handle(self) -> Compression | None:
        """The handle of the model that is trained, or was trained last; ``None`` before."""
        return self._training.handle

    def state(self) -> dict[str, Any]:
        """What the Trainer writes into a checkpoint, as plain values."""
        plain = {name: value for name, value in self._made_with.items() if _is_plain(value)}
        left_out = [name for name in self._made_with if name not in plain]
        return {"args": plain, "attributes": {"compression": self._training.state(), "left_out": left_out}}

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **kwargs: Any) -> None:
        """Compresses the model, and takes over the state of a checkpoint."""
        if self.left_out:
            raise ValueError(
                f"a checkpoint cannot hold the callback's {', '.join(self.left_out)}: resume with "
                "restore_callback_states_from_checkpoint=False, and give the Trainer a callback that has them"
            )
        name = type(self).__name__
        stored = state.stateful_callbacks.get(name)
        if isinstance(stored, list):
            raise ValueError(f"the Trainer must have one {name}, got {len(stored)}: remove the others from callbacks")
        # Without a resumed run, the Trainer's state has this callback's own.
        resumed = stored["attributes"]["compression"] if stored and state.global_step else None
        self._training.begin(model, resumed)
        # A checkpoint of a run without this callback has no entry for it, and the Trainer makes none.
        state.stateful_callbacks.setdefault(name, {})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports, and restores the model."""
        try:
            numbers = self._training.conclude(state.is_world_process_zero)
            # The last entry is the Trainer's own, about the whole training, and others expect it there.
            entry = {**numbers, "epoch": state.epoch, "step": state.global_step}
            state.log_history.insert(len(state.log_history) - 1, entry)
        finally:
            self._training.end()


def _is_plain(value: Any) -> bool:
    """Whether JSON holds the value as it is."""
    try:
        return bool(json.loads(json.dumps(value)) == (list(value) if isinstance(value, tuple) else value))
    except (TypeError, ValueError):
        return False
