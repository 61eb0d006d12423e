"""``CompressionCallback`` for Lightning's Trainer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from integrations._utils.ecosystem import library
from integrations.api.handle.compression import Compression
from integrations.api.trainers.training import CompressedTraining, Reported
from integrations.fewbit.forward import FewBitForward

lightning: Any = library("lightning.pytorch", "lightning")


class CompressionCallback(lightning.Callback):
    """Trains a LightningModule under compression.

    ::

        trainer = Trainer(max_epochs=3, callbacks=[CompressionCallback(level="L1")])
        trainer.fit(module, loader)

    Without ``module``, the whole of ``training_step`` is compressed, the loss included, whatever it calls; with it, the
    calls of that submodule. It begins when fitting begins; a module that is compressed already keeps its handle.
    Checkpoints hold what a resumed run needs to round as the one that was interrupted would have, which
    ``trainer.fit(module, ckpt_path=...)`` takes over. When training ends, the loggers get ``compression_ratio``,
    ``compression_original_bytes`` and ``compression_stored_bytes``, of the last forward, with ``/module`` behind them
    where one was named.

    Args:
        level: one of ``integrations.LEVELS``; by default ``"L1"``, or none where ``memory`` or the like is given.
        module: the path of a submodule, such as ``"net"`` or ``"net.encoder"``.
        report: where the report of the last forward goes when training ends: a path that ends in ``.json`` or
            ``.html``; ``True`` prints it; ``None`` does neither.
        restore: whether the module is restored then, and after an exception. One that was compressed before stays so.
        resume: whether a checkpoint's state is taken over; ``False`` begins the rounding anew.
        **arguments: the other arguments of ``compress_model``, such as ``memory="8GiB"``.

    Attributes:
        handle: the handle of what is trained, or was trained last; ``None`` before.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: the level or an option is unknown, or a value is out of range; or what asks for a plan (``memory``,
            ``time``, ``error``, ``stores``, ``plan``, ``checkpoint``) comes without ``module``. When fitting begins:
            there is no such submodule, it is compressed with other arguments, or the checkpoint is of another level.
    """

    def __init__(
        self,
        level: str | None = None,
        *,
        module: str | None = None,
        report: Reported = None,
        restore: bool = True,
        resume: bool = True,
        **arguments: Any,
    ) -> None:
        if module is not None and not isinstance(module, str):
            raise TypeError(f"module must be the path of a submodule, such as 'net', or None, got {module!r}")
        if module == "":
            raise ValueError(
                "module must be the path of a submodule, such as 'net', got ''; None means the whole module"
            )
        for name in ("checkpoint", "memory", "time", "error", "stores", "plan"):
            if module is None and arguments.get(name) is not None:
                raise ValueError(
                    f"{name} needs module=, got None: a plan is made for the call of a module, not for "
                    "training_step. Name the submodule that training_step calls, such as module='net'"
                )
        self.module = module
        self._training = CompressedTraining(level, report, restore, resume, arguments)
        self._resumed: dict[str, Any] | None = None  # the state in the checkpoint from which the run resumes
        self._fits = False  # whether the module is being trained

    @property
    def handle(self) -> Compression | None:
        """The handle of what is trained, or was trained last; ``None`` before."""
        return self._training.handle

    @property
    def state_key(self) -> str:
        """The key of the state in checkpoints: one for each submodule."""
        return str(self._generate_state_key(module=self.module))

    def state_dict(self) -> dict[str, Any]:
        """The handle's state; empty before training."""
        return self._training.state() or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keeps a state that ``state_dict`` returned for the run that begins."""
        self._resumed = state_dict
        if self._fits:  # strategies that shard the model restore checkpoints later than others
            assert self.handle is not None
            self._training.begin(self.handle.model, state_dict)

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        """Forgets an earlier run's checkpoint, such as one that was validated."""
        self._resumed = None

    def on_fit_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Compresses the module, and takes over the state of a checkpoint."""
        handle = self._training.begin(self._submodule(pl_module), self._resumed)
        if self.module is None:
            CompressedStep.put(handle, pl_module)
        self._fits = True

    def on_train_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Reports."""
        suffix = "" if self.module is None else f"/{self.module}"
        numbers = {name + suffix: number for name, number in self._training.conclude(trainer.is_global_zero).items()}
        for logger in trainer.loggers:
            logger.log_metrics(numbers, step=trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: nn.Module) -> None:
        """Restores the module."""
        self._end(pl_module)

    def on_exception(self, trainer: Any, pl_module: nn.Module, exception: BaseException) -> None:
        """Restores the module."""
        self._end(pl_module)

    def _end(self, pl_module: nn.Module) -> None:
        if self._fits:
            self._fits = False
            self._training.end()
            CompressedStep.take_out(pl_module)

    def _submodule(self, pl_module: nn.Module) -> nn.Module:
        """The submodule to compress."""
        found: nn.Module = pl_module
        try:
            return found if self.module is None else found.get_submodule(self.module)
        except AttributeError as error:
            name, children = type(found).__name__, [name for name, _ in found.named_children()]
            raise ValueError(
                f"module must be the path of a submodule of {name}, got {self.module!r}; it has {', '.join(children)}"
            ) from error


class CompressedStep:
    """Replaces a LightningModule's ``training_step``, which Lightning calls in place of ``forward``: the original,
    under compression.

    Attributes:
        handle: the module's.
        step: the original.
        replaced: whether the instance had a ``training_step`` of its own before.
    """

    def __init__(self, handle: Compression, step: Callable[..., Any], replaced: bool) -> None:
        functools.update_wrapper(self, step, updated=())
        self.handle, self.step, self.replaced = handle, step, replaced

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        step = self.step
        converted = FewBitForward.of(self.handle.model)
        # Few-bit calls are exchanged in the model's own forward, which Lightning does not call.
        if converted is not None:
            step = functools.partial(converted.run, step)
        return self.handle.run(step, args, kwargs)

    @classmethod
    def put(cls, handle: Compression, module: nn.Module) -> None:
        """Replaces the module's ``training_step``."""
        own: dict[str, Any] = module.__dict__
        step: Any = module.training_step
        if not isinstance(own.get("training_step"), cls):
            own["training_step"] = cls(handle, step, "training_step" in own)
        own["training_step"].handle = handle
        handle.take_backward_inside()

    @classmethod
    def take_out(cls, module: nn.Module) -> None:
        """Puts the original back."""
        own: dict[str, Any] = module.__dict__
        stand_in = own.get("training_step")
        if isinstance(stand_in, cls):
            del own["training_step"]
            if stand_in.replaced:
                own["training_step"] = stand_in.step
