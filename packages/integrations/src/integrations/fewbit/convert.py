"""``convert``, ``restore_model`` and ``summary``: a whole model's activations in few bits, in place, and back. What
``convert`` is given is checked here, too."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeVar

from torch import nn

from integrations._utils.compiling import compiled_module
from integrations._utils.layer_replacement import give_back, remember, remembered, take_over
from integrations._utils.module_tree import exchange
from integrations._utils.older_names import accepts_older_names
from integrations.fewbit import functional, modules
from integrations.fewbit.conversion import (
    SAVED_ANYWAY,
    Calls,
    FewBitConversion,
    Skip,
    Summary,
    fits,
    is_root,
    not_chosen,
    places,
)
from integrations.fewbit.forward import FewBitForward
from integrations.fewbit.functional.linear import new_double_backward
from integrations.fewbit.layer_kinds import is_linear, is_norm, sharing_kind, why_kept, with_sketch
from integrations.fewbit.modules.approximated import Approximated
from integrations.fewbit.registry import CALLS, Recognised, likeness, recognised
from integrations.policies.codebooks.catalogue import FUNCTIONS
from integrations.policies.codebooks.options import DEFAULT_BITS
from integrations.policies.codebooks.tables import table
from integrations.runtime.first_forward import listen_no_longer, listen_once

Model = TypeVar("Model", bound=nn.Module)


@accepts_older_names(keep="skip")
def convert(
    model: Model,
    bits: int | None = 3,
    *,
    functions: str | Iterable[str] | None = None,
    rounding: str = "nearest",
    weight: str = "uniform",
    linear: float | Mapping[str, Any] | None = None,
    norms: bool = False,
    keep: str | type[nn.Module] | Iterable[str | type[nn.Module]] = (),
    calls: bool = True,
) -> Model:
    """Make a model's activations store their saved tensors in few bits. Works in place.

    ::

        model = fewbit.convert(model, bits=3)
        ...train as before...
        print(fewbit.summary(model))

    Recognized layers of torch, transformers and timm are replaced by few-bit layers. Calls such as ``F.gelu(x)`` or
    ``x.sigmoid()`` in the model's own forward are replaced during training, also when a checkpoint recomputes them and
    under ``torch.compile``. In ``eval()`` each layer, and each call that it makes, is torch's. Forward values are the
    same bit for bit, except for dropout masks if ``linear`` or ``rounding="stochastic"`` draw from the same generator.
    Names, parameters, buffers, ``state_dict`` keys, hooks, dtype, device and mode stay the same. ``restore_model``
    undoes the conversion.

    Args:
        model: any module. Calls are replaced in its forward: convert the module that you call, not one around it.
        bits: 1 to 8 per element, ``None`` for 3, for smooth functions; piecewise linear ones take 1 and stay exact.
        functions: names in ``FUNCTIONS`` of the functions to convert, ``"gelu"`` for both of its forms; ``"all"``; or
            ``None`` for all but ``sigmoid`` and ``tanh``. For these two torch saves the result, which a product or a
            linear layer after them saves anyway, so converting them saves no memory.
        rounding: ``"nearest"``, or ``"stochastic"`` for derivatives that are right on average. The noise is drawn from
            torch's generator in each forward, so later random numbers differ.
        weight: the distribution of inputs for which the steps are optimal; see ``fewbit.table``.
        linear: also replaces linear layers by ``RandomizedLinear`` (PyG's as well, and transformers' ``Conv1D`` by
            ``RandomizedConv1D``). Give the share of the input's rows that the sketch keeps, or the keyword arguments of
            the layer. These layers also draw from torch's generator, unless ``seed`` is among the arguments.
        norms: also replaces ``nn.LayerNorm``, ``nn.RMSNorm`` and norms like those of transformers' Llama by norms that
            save their output, which linear layers after them save anyway; see ``fewbit.LayerNorm``. Operators after
            them must not work in place.
        keep: modules that stay unchanged, with all modules in them and the calls that they make: paths as in
            ``named_modules``, with ``*`` and ``?`` as in file names, or classes. ``skip`` is an older name.
        calls: whether calls are replaced as well as layers.

    Returns:
        The same object; for a model that is itself an activation, its few-bit layer.

    Raises:
        TypeError: ``model`` is not a module, or another argument has the wrong type.
        ValueError: the model is converted already, or has few-bit layers from the conversion of a larger model; a
            function is unknown; a path in ``keep`` matches no module; ``bits``, ``rounding``, ``weight`` or an option
            of ``linear`` is out of range.
    """
    inner = compiled_module(model)
    _require_unconverted(inner)
    for name, value in (("norms", norms), ("calls", calls)):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be True or False, got {value!r}")
    bits = DEFAULT_BITS if bits is None else bits
    chosen, skipped = _chosen_functions(functions), _keep_entries(keep)
    settings: dict[str, Any] = {"bits": bits, "rounding": rounding, "weight": weight}
    modules.GELU(**settings)  # which refuses what is wrong, and so does the table
    table("gelu", bits, weight=weight)
    options = {name: _accepted(getattr(functional, name), settings) for name in {*map(_plain, CALLS.values())}}
    where = places(inner, skipped)
    _require_found(skipped, where)
    plan = _Plan(chosen, settings, _linear_options(linear), norms, calls)
    for module, (path, is_skipped) in where.items():
        plan.consider(path, module, is_skipped)
    if inner is not model and inner in plan.layers:
        raise ValueError(f"a compiled {type(inner).__name__} cannot be converted; convert it first, then compile it")
    # Whatever may be refused has been, and nothing is changed yet.
    root = plan.layers.get(inner, inner)
    found, forward = None, None
    listen_no_longer(inner)  # ``FewBitForward`` does it itself
    if calls and root is inner:
        found = Calls(root, chosen, options, skipped)
        forward = FewBitForward(root, root.forward, "forward" in root.__dict__, found)
    try:
        FewBitConversion(tuple(plan.converted), tuple(plan.kept), bits, found, forward).put(root)
        exchange(inner, lambda path, module: plan.layers.get(module, module), lambda module: module in where)
        if forward is not None:
            forward.put()
        if root is inner and (plan.converted or forward is not None):
            listen_once(inner)
    except BaseException:
        if FewBitConversion.find(root) is not None:
            restore_model(root)
        raise
    return model if root is inner else root  # type: ignore[return-value]  # a few-bit layer


def restore_model(model: Model) -> Model:
    """Undo ``convert`` completely: put the original modules back, with the current parameters, hooks and mode.

    Parts of the model that were converted separately stay converted, and so do few-bit layers that you created
    yourself. A model that is not converted is returned unchanged.

    Returns:
        The same object; for a model that is a few-bit layer itself, the original module.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not converted, but a module in it is.
    """
    inner = compiled_module(model)
    if FewBitConversion.nothing_to_undo(inner):
        return model
    forward = FewBitConversion.of(inner).forward
    listen_no_longer(inner)

    def is_other(module: nn.Module) -> bool:
        return module is not inner and is_root(module)

    def replacement(path: str, module: nn.Module) -> nn.Module:
        if remembered(module) is None or is_other(module):
            return module
        return give_back(module)

    root = exchange(inner, replacement, lambda module: not is_other(module))
    if isinstance(forward, FewBitForward):
        forward.closed = True  # whoever has wrapped it, calls through it from now on
        forward.take_out()
    for module in (inner, root):  # which may have had it from the layer
        module.__dict__.pop(FewBitConversion.key, None)
    return model if root is inner else root  # type: ignore[return-value]  # of the class that it had before


def summary(model: nn.Module) -> Summary:
    """Return the layers and calls that ``convert`` converted in this model, and the others with the reasons.

    Calls are listed as far as a forward in training has made them.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: the model is not converted.
    """
    record = FewBitConversion.of(compiled_module(model))
    layers = dict(record.kept)
    calls, kept = ({}, {}) if record.calls is None else (record.calls.by_path(kept) for kept in (False, True))
    return Summary(
        record.bits,
        MappingProxyType({path: (before, after) for path, before, after in record.converted}),
        MappingProxyType(layers),
        MappingProxyType(dict(calls)),
        MappingProxyType({path: names for path, names in kept.items() if path not in layers}),
    )


class _Plan:
    """Which module becomes which layer. The layers are built; the model is as it was."""

    def __init__(
        self,
        functions: frozenset[str],
        settings: Mapping[str, Any],
        linear: Mapping[str, Any] | None,
        norms: bool,
        calls: bool,
    ) -> None:
        self._functions, self._settings, self._linear = functions, settings, linear
        self._norms, self._calls = norms, calls
        self._double = new_double_backward()
        self.layers: dict[nn.Module, nn.Module] = {}
        self.converted: list[tuple[str, str, str]] = []
        self.kept: list[tuple[str, str]] = []

    def consider(self, path: str, module: nn.Module, skipped: bool) -> None:
        """Plans one module."""
        if self._norms and is_norm(module):
            kind = "skipped" if skipped else sharing_kind(module)
            if isinstance(kind, str):
                self.kept.append((path, kind))
            else:
                self._exchange(path, module, kind.in_place_of(module))
            return
        activation = recognised(module)
        if activation is None and not (self._linear is not None and is_linear(module)):
            if reason := likeness(module, self._calls):
                self.kept.append((path, reason))
            return
        reason = "skipped" if skipped else self._reason(module, activation)
        if reason:
            self.kept.append((path, reason))
            return
        layer = self._sketched(module) if activation is None else self._layer(module, activation)
        self._exchange(path, module, layer)

    def _exchange(self, path: str, module: nn.Module, layer: nn.Module) -> None:
        remember(layer, module)
        self.layers[module] = layer
        self.converted.append((path, type(module).__name__, f"fewbit.{type(layer).__name__}"))

    def _reason(self, module: nn.Module, activation: Recognised | None) -> str:
        """Why a module is not exchanged; empty for one that is."""
        if "forward" in module.__dict__:
            return "its forward was replaced"
        if activation is None:
            return why_kept(module)
        if activation.name not in self._functions:
            return not_chosen(activation.name)
        if not activation.layer and getattr(module, "inplace", False):
            return f"{type(module).__name__} works in place"
        return ""

    def _sketched(self, module: nn.Module) -> nn.Module:
        layer: Any = with_sketch(module, self._linear or {})
        layer.double_backward = self._double  # one warning for all
        return layer  # type: ignore[no-any-return]

    def _layer(self, module: nn.Module, activation: Recognised) -> nn.Module:
        if activation.layer:
            kind = getattr(modules, activation.layer)
            layer: nn.Module = kind(**activation.arguments, **_accepted(kind, self._settings))
        else:
            layer = Approximated(activation.name, **self._settings)
        take_over(layer, module)
        return layer


def _accepted(function: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that a function takes: a piecewise linear one takes none."""
    names = inspect.signature(function).parameters
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in names.values())
    return {name: value for name, value in settings.items() if takes_all or name in names}


def _plain(name: str) -> str:
    return name.removesuffix("_")


def _require_unconverted(model: nn.Module) -> None:
    FewBitConversion.require_none(model)
    for module, (path, _) in places(model, ()).items():
        if remembered(module) is not None:
            raise ValueError(
                f"{type(model).__name__} is part of a converted model and has a few-bit layer at {path!r}; call "
                "fewbit.restore_model on the converted model first, or convert that model with keep="
            )


def is_converted(model: nn.Module) -> bool:
    """Return whether ``convert`` converted this very model."""
    return FewBitConversion.find(compiled_module(model)) is not None


def _chosen_functions(functions: str | Iterable[str] | None) -> frozenset[str]:
    """The names that ``functions`` chooses: with ``gelu`` its approximation by tanh, which torch has as an option."""
    if functions is None:
        return frozenset(FUNCTIONS).difference(SAVED_ANYWAY)
    names = [functions] if isinstance(functions, str) else list(functions)
    if names == ["all"]:
        return frozenset(FUNCTIONS)
    for name in names:
        if name not in FUNCTIONS:
            raise ValueError(f"functions must be 'all' or names of {', '.join(FUNCTIONS)}; got {name!r}")
    return frozenset([*names, "gelu_tanh"] if "gelu" in names else names)


def _keep_entries(keep: Any) -> Skip:
    """The entries of ``keep``, which may be one alone."""
    entries = tuple(keep) if isinstance(keep, Iterable) and not isinstance(keep, (str, type)) else (keep,)
    for entry in entries:
        if not isinstance(entry, str) and not (isinstance(entry, type) and issubclass(entry, nn.Module)):
            raise TypeError(f"keep must hold paths of modules or classes of modules, got {entry!r}")
    return entries


def _require_found(skip: Skip, where: Mapping[nn.Module, tuple[str, bool]]) -> None:
    """Raises unless each entry fits a module of the model."""
    for entry in skip:
        if not any(fits(path, module, (entry,)) for module, (path, _) in where.items()):
            raise ValueError(f"keep must name modules of the model, got {entry!r}, which matches none")


def _linear_options(linear: Any) -> Mapping[str, Any] | None:
    """The keyword arguments of ``RandomizedLinear``; ``None`` where linear layers stay."""
    if linear is None or isinstance(linear, Mapping):
        return linear
    if isinstance(linear, Real) and not isinstance(linear, bool):
        if not 0 < float(linear) <= 1:
            raise ValueError(
                f"linear must be above 0 and at most 1, the share of rows that a sketch keeps, got {linear}"
            )
        return {"proj_dim_ratio": float(linear)}
    raise TypeError(
        f"linear must be the share of rows that a sketch keeps, such as 0.1, or RandomizedLinear's keyword arguments, "
        f"got {linear!r}"
    )
