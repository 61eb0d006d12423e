"""``QModule``, ``restore_model`` and ``summary``: a model's layers are replaced by Q-layers, in place, and restored.
Q-layers of other libraries are imported once a model has a layer of that library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, TypeVar

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from integrations._utils.conversion import Conversion, conversion_lines
from integrations._utils.module_tree import exchange
from integrations._utils.running_module import public_name
from integrations._utils.warn import warn
from integrations.qmodules import layers
from integrations.qmodules.config import config
from integrations.qmodules.layers.base import QLayer
from integrations.qmodules.levels import QLevel, resolve_level
from integrations.qmodules.scheme import ModelPrecision
from integrations.runtime.first_forward import listen_no_longer, listen_once

Model = TypeVar("Model", bound=nn.Module)

_SAVE_NOTHING = (nn.Identity, nn.Flatten, nn.Unflatten)


@dataclass(frozen=True)
class _QConversion(Conversion):
    """What ``QModule`` did to a model.

    Attributes:
        level: of all layers.
        precision: what these share.
    """

    level: QLevel
    precision: ModelPrecision

    key = "_qmodules_conversion"
    call = "qmodules.QModule(model)"
    undo = "qmodules.restore_model(model)"


@dataclass(frozen=True)
class Summary:
    """The result of a conversion, as the model is now.

    Attributes:
        level: the level of the conversion.
        converted: path -> (torch's layer, Q-layer), by class name.
        kept: path -> the reason why ``QModule`` did not convert the layer.
    """

    level: QLevel
    converted: Mapping[str, tuple[str, str]]
    kept: Mapping[str, str]

    def __str__(self) -> str:
        done = "layers converted, which at this level are torch's own" if self.level.off else "layers converted"
        lines = [f"{len(self.converted)} {done}, {len(self.kept)} kept; {self.level}"]
        return "\n".join(lines + conversion_lines(self.converted, self.kept))


def QModule(model: Model, level: str | QLevel | None = None, **options: Any) -> Model:
    """Replace the layers of a model by Q-layers, which store their saved tensors in few bits. Works in place.

    ::

        model = qmodules.QModule(model, level="L2")
        ...train as before...
        print(qmodules.summary(model))

    A Q-layer has the same parameter and buffer objects, hooks and mode as the layer that it replaces. So names,
    ``state_dict`` and optimizers stay valid, on any device. Only layers of exactly a class of torch are replaced: a
    subclass may behave differently. A layer that is used in several places stays one layer. Q-layers that you created
    yourself keep their level, and from now on share its average bits with the others. The level belongs to the model:
    converting another model, or calling ``set_optimization_level`` later, does not change it.

    Args:
        model: any module. Only modules are replaced, not calls such as ``F.relu``.
        level: a name of ``LEVELS`` or a ``QLevel``; ``None`` takes the current setting of ``set_optimization_level``
            and ``config``. With a name, the other settings of ``config`` are ignored, and a warning lists those that
            differ.
        options: fields of the level to replace; see ``QLevel``.

    Returns:
        The same object, or, for a model that is itself such a layer, its Q-layer.

    Raises:
        TypeError: ``model`` is not a module; the level or an option has the wrong type.
        ValueError: the model is converted already; the level or an option is unknown or out of range.
    """
    _QConversion.require_none(model)
    chosen = resolve_level(config.level() if level is None else level, options)
    if isinstance(level, str) and (ignored := [name for name in config.unlike(chosen) if name not in options]):
        warn(
            f"QModule with level={level!r} ignores these settings of config: {', '.join(ignored)}; pass them to "
            f"QModule as options, or leave the level out after set_optimization_level({level!r})"
        )
    converted: list[tuple[str, str, str]] = []
    kept: list[tuple[str, str]] = []
    by_hand: list[tuple[str, QLayer]] = []
    precision = ModelPrecision(chosen)

    def replacement(path: str, module: nn.Module) -> nn.Module:
        if isinstance(module, QLayer) and module.precision.model is None:
            by_hand.append((path, module))
        if reason := _reason(module, chosen):
            if _is_layer(module):
                kept.append((path, reason))
            return module
        kind = _find_q_layer(type(module))
        assert kind is not None  # otherwise there is a reason
        layer = kind.from_module(module, chosen)
        layer.join(path or type(module).__name__, precision)
        layer.__dict__[_QConversion.key] = True  # for restore_model: a Q-layer that was built by hand stays one
        converted.append((path, _name_of(type(module)), type(layer).__name__))
        return layer

    try:
        root = exchange(model, replacement, _opens)
        for path, layer in by_hand:
            layer.join(path or type(layer).__name__, precision)
        _QConversion(tuple(converted), tuple(kept), chosen, precision).put(root)
        if root is model and converted:
            listen_once(root)
    except BaseException:
        _QConversion((), (), chosen, precision).put(model)  # with which what has been done so far is undone
        restore_model(model)
        raise
    return root  # type: ignore[return-value]  # a Q-layer is a subclass of its counterpart


def restore_model(model: Model) -> Model:
    """Undo ``QModule``: put torch's own layers back, with the current parameters, buffers and hooks.

    Q-layers that you created yourself stay, and choose their bits alone again. A model that is not converted is
    returned unchanged.

    Returns:
        The same object, or, for a model that is itself a Q-layer, the layer of torch.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not converted, but a module in it is; or a layer was parametrized after the conversion.
            The model is then unchanged.
    """
    if _QConversion.nothing_to_undo(model):
        return model
    record = _QConversion.of(model)
    _refuse_parametrized(model)
    listen_no_longer(model)
    by_hand: list[QLayer] = []

    def replacement(path: str, module: nn.Module) -> nn.Module:
        if not isinstance(module, QLayer):
            return module
        if _was_converted(module):
            return module.to_module()
        if module.precision.model is record.precision:
            by_hand.append(module)
        return module

    root = exchange(model, replacement, _opens)
    for layer in by_hand:
        layer.leave()
    for module in reversed(list(root.modules())):  # the root last, which says that the model is converted
        module.__dict__.pop(_QConversion.key, None)
    return root  # type: ignore[return-value]  # of the class that it had before


revert = restore_model
"""The older name of ``restore_model``."""


def summary(model: nn.Module) -> Summary:
    """Return the layers that ``QModule`` converted in this model, and the others with the reasons, as the model is now.

    A layer that was added later, for example by ``torch.nn.SyncBatchNorm.convert_sync_batchnorm``, is listed as kept.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not converted.
    """
    record = _QConversion.of(model)
    made = {path: after for path, _, after in record.converted}
    reasons = dict(record.kept)
    converted: dict[str, tuple[str, str]] = {}
    kept: dict[str, str] = {}

    def look(path: str, module: nn.Module) -> nn.Module:
        if isinstance(module, QLayer) and _was_converted(module):
            converted[path] = _name_of(type(module).counterpart), type(module).__name__
        elif path in made:
            kept[path] = f"{type(module).__name__} took the place of {made[path]} after QModule"
        elif _is_layer(module):
            came = f"{type(module).__name__} came after QModule"
            kept[path] = _reason(module, record.level) or reasons.get(path, came)
        return module

    exchange(model, look, _opens)
    return Summary(record.level, MappingProxyType(converted), MappingProxyType(kept))


def is_converted(model: nn.Module) -> bool:
    """Return whether ``QModule`` converted this very model."""
    return _QConversion.find(model) is not None


def _opens(module: nn.Module) -> bool:
    """Not so for attention, whose parts are its own to exchange."""
    return not isinstance(module, QLayer) and _find_q_layer(type(module)) is None


def _reason(module: nn.Module, level: QLevel) -> str:
    """Why a module is not exchanged; empty for one that is."""
    kind = type(module)
    if isinstance(module, QLayer):
        return "a Q-layer already, with a level of its own"
    if isinstance(module, LazyModuleMixin) or any(is_lazy(one) for one in module.parameters(recurse=False)):
        return "its parameters have no shapes yet; call the model once before QModule"
    found = _find_q_layer(kind)
    if found is None:
        return _why_none(kind)
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if not level.norms and not level.off and found.norm:
        return "norms are exact at this level"
    return ""


def _refuse_parametrized(model: nn.Module) -> None:
    for path, module in model.named_modules():
        if isinstance(module, QLayer) and _was_converted(module) and is_parametrized(module):
            raise ValueError(
                f"model must have no layer that was parametrized after QModule, got {path or 'the root'} with "
                f"{', '.join(module.parametrizations)}; call "  # type: ignore[arg-type]
                "torch.nn.utils.parametrize.remove_parametrizations for each first, or leave the model converted"
            )


def _was_converted(layer: QLayer) -> bool:
    """Whether a Q-layer was made by ``QModule``, and not by hand."""
    record = _QConversion.find(layer)
    if record is not None:  # the root of a model
        return any(not path for path, _, _ in record.converted)
    return _QConversion.key in layer.__dict__


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is more than a container of others, and may save something. A container may own parameters."""
    if type(module) in _SAVE_NOTHING:
        return False
    return not module._modules or any(_find_q_layer(base) is not None for base in type(module).__mro__)


_OF_TORCH: Mapping[type[nn.Module], type[QLayer]] = MappingProxyType(
    {
        layer.counterpart: layer
        for name in layers.__all__
        if issubclass(layer := getattr(layers, name), QLayer) and layer is not QLayer
    }
)

_OF_LIBRARIES = MappingProxyType({"torch_geometric": "integrations.qmodules.layers.pyg"})
"""By top-level package of a library: the module with its Q-layers."""


def _find_q_layer(kind: type[nn.Module]) -> type[QLayer] | None:
    """Return the Q-layer of exactly this class; ``None`` if there is none."""
    if kind in _OF_TORCH:
        return _OF_TORCH[kind]
    module = _OF_LIBRARIES.get(kind.__module__.partition(".")[0])
    if module is None:
        return None
    found: type[QLayer] | None = import_module(module).Q_LAYERS.get(kind)
    return found


def _why_none(kind: type[nn.Module]) -> str:
    """Return why a class has no Q-layer; empty for one that has."""
    if _find_q_layer(kind) is not None:
        return ""
    base = next((base for base in kind.__mro__[1:] if _find_q_layer(base) is not None), None)
    if base is not None:
        name = kind.__name__ if kind.__name__ != base.__name__ else f"{kind.__module__}.{kind.__qualname__}"
        return f"{name} is a subclass of {public_name(base)}"
    full = public_name(kind)
    return f"there is no Q-layer of {kind.__name__ if full.startswith('torch.') else full}"


def _name_of(kind: type[nn.Module]) -> str:
    """Return a layer's name for a summary: without ``torch.nn``, and with the package of any other library."""
    return kind.__name__ if kind in _OF_TORCH else public_name(kind)
