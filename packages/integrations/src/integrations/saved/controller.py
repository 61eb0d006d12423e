"""GACT's own interface: ``Controller``, and the settings with which later ones begin (Liu et al., ICML 2022)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

import actcore

# The package, and not its names: this module is imported while the package is.
import integrations
from integrations._utils.warn import warn
from integrations.api.handle.never_compressed_warning import SUBJECT, why_unused
from integrations.policies.levels import Level, resolve_level

if TYPE_CHECKING:
    from integrations.api.handle.compression import Compression

Result = TypeVar("Result")

# GACT's names for a level's fields, where they differ.
_NAMES = {"bit": "bits", "auto_prec": "adaptive", "swap": "offload"} | {
    field.name: field.name for field in fields(Level)
}


class Config:
    """The settings of Controllers made from now on. Existing ones keep the settings that they were made with.

    A field of ``integrations.Level`` is read and set as an attribute, under its own name or GACT's: ``bit``,
    ``auto_prec``, ``swap``. Settings of GACT's that would have no effect here do not exist.
    """

    def __init__(self) -> None:
        vars(self).update(_lock=threading.Lock(), _begin=("L2", {}))

    def begin(self) -> tuple[str, dict[str, Any]]:
        """The level's name, and the options that replace its fields."""
        name, options = vars(self)["_begin"]
        return name, dict(options)

    def choose(self, level: str) -> None:
        """Chooses the level of that name, and forgets what was set before except the interval."""
        with vars(self)["_lock"]:
            _, options = self.begin()
            kept = {name: value for name, value in options.items() if name == "adapt_interval"}
            resolve_level(level, kept)
            vars(self)["_begin"] = (level, kept)

    def __getattr__(self, name: str) -> Any:
        field = _field(name)
        level, options = self.begin()
        return getattr(resolve_level(level, options), field)

    def __setattr__(self, name: str, value: Any) -> None:
        field = _field(name)
        with vars(self)["_lock"]:
            level, options = self.begin()
            options[field] = value
            resolve_level(level, options)
            vars(self)["_begin"] = (level, options)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *_NAMES])

    def __repr__(self) -> str:
        level, options = self.begin()
        return f"Config({', '.join([repr(level), *(f'{name}={value!r}' for name, value in options.items())])})"


def _field(name: str) -> str:
    if name not in _NAMES:
        raise AttributeError(f"settings of config are {', '.join(_NAMES)}, got {name!r}")
    return _NAMES[name]


config = Config()
"""The default for later Controllers: L2, as in GACT."""


def set_optimization_level(level: str) -> None:
    """Chooses the level of the Controllers made from now on; those that are there keep theirs.

    Args:
        level: one of ``integrations.LEVELS``.

    Raises:
        TypeError: the level is not a string.
        ValueError: there is no such level; the message lists those that there are.
    """
    config.choose(level)


def set_adapt_interval(interval: int) -> None:
    """Steps from one adaptation to the next, for the Controllers made from now on, at every level.

    Raises:
        TypeError: the interval is not an int.
        ValueError: it is less than 1.
    """
    config.adapt_interval = interval


class Controller:
    """Compression of one model in GACT's words: ``install_hook``, ``iterate``, ``uninstall_hook``.

    ::

        gact.set_optimization_level("L2")
        controller = Controller(model)
        controller.install_hook()
        for x, y in data:
            def backprop():
                loss = criterion(model(x), y)
                optimizer.zero_grad()
                loss.backward()
            controller.iterate(backprop)
            optimizer.step()
        controller.uninstall_hook()

    Differences from GACT: a controller concerns only its own model, and what that model's forward saves; the operator
    that saves a tensor decides how it is stored; ``iterate`` runs the step for real, and only once. The handle of the
    compression, with its report, is ``integrations.compression(model)`` between the two hooks' calls.

    Args:
        model: the model to train. It is left alone until ``install_hook``.

    Raises:
        TypeError: ``model`` is not a module.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
        self.model = model
        self.level_name, self._options = config.begin()
        self.level = resolve_level(self.level_name, self._options)
        self._handle: Compression | None = None
        self._installed_once = False
        self._told = False  # whether it was warned that nothing is installed
        self._pack, self._unpack = actcore.hooks(_AnyOperator(self.level), self.level.seed)

    def install_hook(self) -> None:
        """Compresses the model from now on. A second call does nothing.

        Raises:
            ValueError: the model is compressed by something else.
        """
        self._installed_once = True
        if self._installed() is None:
            integrations.compress_model(self.model, self.level_name, **self._options)
            self._handle = integrations.compression(self.model)

    def uninstall_hook(self) -> None:
        """Undoes ``install_hook``, if it is in effect. Leaves other hooks alone."""
        if self._installed() is not None:
            integrations.restore_model(self.model)
        self._handle = None

    def iterate(self, backprop: Callable[[], Result]) -> Result:
        """One step: runs ``backprop``, once, and leaves its gradients for the optimizer.

        Where the level is adaptive, its sensitivities come from backward passes as they happen, so that nothing is run
        a second time: ``backprop`` may step the optimizer itself, as well as leave that to its caller.

        Args:
            backprop: runs forward, ``zero_grad`` and backward.

        Returns:
            What ``backprop`` returned.

        Raises:
            TypeError: ``backprop`` is not callable.
        """
        if not callable(backprop):
            raise TypeError(
                f"backprop must be a function that runs forward, zero_grad and backward, got {backprop!r}; "
                "pass it without calling it"
            )
        if not (self._installed_once or self._told or self.level.off):
            self._told = True
            warn(
                f"this controller compresses nothing of {type(self.model).__name__} yet: call install_hook() before "
                "iterate(backprop)"
            )
        handle = self._installed()
        before = 0 if handle is None else handle.step
        result = backprop()
        if handle is not None and handle.step == before and not handle.level.off:
            handle.warn_once(
                SUBJECT,
                f"backprop ran no compressed forward of {type(self.model).__name__}: {why_unused(self.model)}",
            )
        return result

    def quantize(self, tensor: Tensor) -> Any:
        """The first of a pair for ``torch.autograd.graph.saved_tensors_hooks``; ``dequantize`` is the second.

        Such a pair is not told which operator saves a tensor. So every floating-point tensor through which gradients
        flow is stored in ``norm_bits`` (8), the fewest that suit all but the most delicate operators, and bool masks in
        one. ``install_hook`` stores the same tensors in fewer bits, and those exactly that need it.
        """
        # A statistic, or an input that belongs to its owner.
        if tensor.is_floating_point() and not tensor.requires_grad:
            return actcore.Kept.of(tensor)
        return self._pack(tensor)

    def dequantize(self, packed: Any) -> Tensor:
        """The tensor for which ``quantize`` returned ``packed``."""
        return self._unpack(packed)

    def _installed(self) -> Compression | None:
        return None if self._handle is None or self._handle.closed else self._handle


@dataclass(frozen=True)
class _AnyOperator:
    """The codec for a tensor that any operator may have saved."""

    level: Level

    def compress(self, tensor: Tensor, *, seed: Any = 0, stream: Any = 0) -> actcore.Compressed:
        small = tensor.numel() * tensor.itemsize < self.level.min_bytes
        codec = actcore.Raw() if small else self._choose(tensor)
        if self.level.offload and tensor.device.type == "cuda" and not small:
            codec = actcore.Offload(codec)
        return codec.compress(tensor, seed=seed, stream=stream)

    def _choose(self, tensor: Tensor) -> actcore.Codec:
        level = self.level
        if level.bits is None or actcore.missing_on(tensor.device):
            return actcore.Raw()
        if tensor.dtype is torch.bool:
            return actcore.BitMask()
        if tensor.dtype in actcore.FLOATS:
            return actcore.GroupAffine(max(level.bits, level.norm_bits), level.group_size)
        return actcore.Raw()

    def decompress(self, compressed: actcore.Compressed) -> Tensor:
        return compressed.decompress()  # decoded by the codec that was chosen
