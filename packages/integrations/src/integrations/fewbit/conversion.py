"""What a conversion is: which calls of a model it exchanges, and what it did."""

from __future__ import annotations

import fnmatch
import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

from torch import nn

from integrations._utils.conversion import Conversion, conversion_lines
from integrations._utils.forward_wrapper import ForwardWrapper
from integrations._utils.in_model import ModelRef
from integrations._utils.module_tree import find_module_paths
from integrations.fewbit.registry import is_activation

SAVED_ANYWAY = ("sigmoid", "tanh")
"""Functions that ``convert`` leaves by default: torch saves their result, which what comes next saves mostly anyway. A
code beside it is more memory, not less: with one, a GRU cell of 256 units saves 1.04 times as much, a sigmoid gate 1.05
times. (ReLU is the same and yet converted: its gradients stay exact, one bit is the most that it can cost, and with
dropout behind it 31 are saved.)"""

Skip = tuple[str | type[nn.Module], ...]


@dataclass(frozen=True)
class FewBitConversion(Conversion):
    """What ``convert`` did to a model.

    Attributes:
        bits: with which smooth functions are stored.
        calls: those of the model that are exchanged as they are made; ``None`` where only layers are.
        forward: what stands in the model's forward for that.
    """

    bits: int
    calls: Calls | None
    forward: ForwardWrapper | None

    key = "_fewbit_conversion"
    call = "fewbit.convert(model)"
    undo = "fewbit.restore_model(model)"


def is_root(module: nn.Module) -> bool:
    """Whether a module has a conversion of its own."""
    return FewBitConversion.key in module.__dict__


@dataclass(frozen=True)
class Summary:
    """The result of a conversion: the activations and linear layers of a model.

    Attributes:
        bits: bits per element of smooth functions.
        converted: path -> (layer, few-bit layer), by class name.
        kept: path -> the reason why the layer was not converted.
        calls: path of a module -> the functions whose calls in its forward are replaced, as far as a forward in
            training has called them.
        kept_calls: path of a module -> the functions whose calls are not replaced, with the reason.
    """

    bits: int
    converted: Mapping[str, tuple[str, str]]
    kept: Mapping[str, str]
    calls: Mapping[str, tuple[str, ...]]
    kept_calls: Mapping[str, tuple[str, ...]]

    @property
    def sketched(self) -> int:
        """The number of layers that are linear ones, which keep a sketch of their input."""
        return sum(after.startswith("fewbit.Randomized") for _, after in self.converted.values())

    @property
    def activations(self) -> int:
        """The number of layers and calls that are activations in few bits."""
        norms = sum(after.endswith("Norm") for _, after in self.converted.values())
        return len(self.converted) - self.sketched - norms + sum(map(len, self.calls.values()))

    def __str__(self) -> str:
        seen = sum(map(len, self.calls.values()))
        lines = [
            f"{len(self.converted)} layers converted, {len(self.kept)} kept; {seen} calls seen and converted; "
            f"{self.bits} bits"
        ]
        lines += conversion_lines(self.converted, self.kept)
        for verb, places in (("calls", self.calls), ("keeps its call of", self.kept_calls)):
            lines += [f"  {path or '(root)'} {verb} {', '.join(names)}" for path, names in places.items()]
        return "\n".join(lines)


class Calls:
    """Which calls a model's forward makes in few bits, and which were seen.

    Args:
        model: whose calls.
        functions: names of those that are exchanged.
        options: name in ``fewbit.functional`` -> keyword arguments besides torch's.
        skip: modules whose calls stay.
    """

    def __init__(
        self, model: nn.Module, functions: frozenset[str], options: Mapping[str, Mapping[str, Any]], skip: Skip
    ) -> None:
        self._model = ModelRef(model)
        self.functions, self.options, self.skip = functions, options, skip
        self.texts = {name: {key: str(value) for key, value in given.items()} for name, given in options.items()}
        self.seen: dict[tuple[str, str], str] = {}  # path and function -> why the call stays, if it does
        self.exact = False  # whether the calls are torch's for now, see ``exact_runs``
        self._begin()

    @property
    def model(self) -> nn.Module:
        """Whose calls."""
        return self._model()

    def take(self, function: str, callers: Iterable[nn.Module], in_eval: frozenset[nn.Module] | None = None) -> bool:
        """Whether a call of a function is exchanged; notes it. One that is made in a module in ``eval()`` never is.

        Args:
            function: its name in ``FUNCTIONS``.
            callers: the modules that it is made inside of, innermost first. The innermost one makes the call, or, if
                that is an activation which is nobody's part, as in ``nn.GELU()(x)``, the one that calls that.
            in_eval: those of the model that count as in ``eval()``, whatever they are in now.
        """
        place = self._place(callers, in_eval)
        if place is None:
            return False
        path, skipped = place
        reason = "skipped" if skipped else "" if function in self.functions else not_chosen(function)
        self.seen[path, function] = reason
        return not reason

    def in_eval(self) -> frozenset[nn.Module]:
        """The model's modules that are in ``eval()``."""
        return frozenset(module for module in self._modules() if not module.training)

    def for_copy(self, model: nn.Module) -> Calls:
        """The same for a shallow copy of the model."""
        return Calls(model, self.functions, self.options, self.skip)

    def by_path(self, kept: bool) -> Mapping[str, tuple[str, ...]]:
        """The functions of calls that were seen, by the path of the module; with the reasons, for those that stay."""
        found: dict[str, list[str]] = defaultdict(list)
        for (path, function), reason in list(self.seen.items()):
            if bool(reason) is kept:
                found[path].append(f"{function}: {reason}" if reason else function)
        return {path: tuple(names) for path, names in found.items()}

    def _begin(self) -> None:
        self.key = str(next(_keys))
        _calls[self.key] = self
        self._places: WeakKeyDictionary[nn.Module, tuple[str, bool]] = WeakKeyDictionary()
        self._foreign: WeakSet[nn.Module] = WeakSet()

    def _modules(self) -> Mapping[nn.Module, tuple[str, bool]]:
        if not self._places:
            self._places.update(places(self.model, self.skip))
        return self._places

    def _place(self, callers: Iterable[nn.Module], in_eval: frozenset[nn.Module] | None) -> tuple[str, bool] | None:
        """The path of the module that makes a call, and whether it is skipped; ``None`` for one that is not in training
        or none of the model's, or of a part of it that has a conversion of its own."""
        known = self._modules()
        for module in callers:
            if module not in known and module not in self._foreign:
                if is_activation(module):
                    continue
                self._places.update(places(self.model, self.skip))  # it may have come into the model since
                if module not in known:
                    self._foreign.add(module)
            training = module.training if in_eval is None else module not in in_eval
            return known.get(module) if training else None
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("key", "_places", "_foreign")}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


# What compiled code can hold of a conversion is a constant, its key.
_keys = itertools.count()
_calls: WeakValueDictionary[str, Calls] = WeakValueDictionary()


def find_calls(key: str) -> Calls | None:
    """The ``Calls`` with that key, if they are alive."""
    return _calls.get(key)


def not_chosen(function: str) -> str:
    """Why a function that could be converted is not."""
    if function in SAVED_ANYWAY:
        return f"torch saves the result of {function}, mostly with what comes next; functions= converts it"
    return f"{function} is not among functions"


def places(model: nn.Module, skip: Skip) -> dict[nn.Module, tuple[str, bool]]:
    """Each module's first path, and whether it is skipped: it or one that it is in fits, by any of its paths.

    Modules below one that has a conversion of its own are left out.
    """
    found = find_module_paths(model, opens=lambda module: module is model or not is_root(module))
    by_path = {path: module for module, paths in found.items() for path in paths}
    skipped = {path for path, module in by_path.items() if fits(path, module, skip)}

    def within(path: str) -> Iterable[str]:
        parts = path.split(".") if path else []
        return (".".join(parts[:length]) for length in range(len(parts) + 1))

    return {
        module: (paths[0], any(not skipped.isdisjoint(within(path)) for path in paths))
        for module, paths in found.items()
        if module is model or not is_root(module)
    }


def fits(path: str, module: nn.Module, skip: Skip) -> bool:
    """Whether an entry of ``skip`` names this module."""
    return any(
        fnmatch.fnmatchcase(path, entry) if isinstance(entry, str) else isinstance(module, entry) for entry in skip
    )
