"""One layer in another's place: the same parameters, buffers, hooks, mode and attributes.

A ``StandIn`` is a subclass of the layer for which it stands, and shares its dictionaries. Any other layer takes them
over (``take_over``) and remembers the module that it replaces.
"""

from __future__ import annotations

from typing import ClassVar, Self

from torch import nn

from integrations._utils.running_module import public_name
from integrations._utils.unscriptable import Unscriptable

_ORIGINAL = "_fewbit_original"

# Dictionaries whose entries the new module may have more of.
_TENSORS = ("_parameters", "_buffers")


class StandIn(Unscriptable):
    """A subclass of a layer of torch that can replace such a layer, and give it back."""

    counterpart: ClassVar[type[nn.Module]]
    _own: ClassVar[tuple[str, ...]] = ()
    """Attributes that it has beside its counterpart's."""

    @classmethod
    def _require_counterpart(cls, module: nn.Module, argument: str = "module") -> None:
        """Raises ``TypeError`` unless a module is of exactly the counterpart's class."""
        if type(module) is not cls.counterpart:
            raise TypeError(
                f"{argument} must be a {public_name(cls.counterpart)}, not a subclass, got "
                f"{type(module).__name__}; create {cls.__name__} from its own arguments and load the weights"
            )

    @classmethod
    def _in_place_of(cls, module: nn.Module) -> Self:
        """A layer with the very dictionaries of a module, so that both share them: a hook's handle removes the hook
        from its dictionary. The caller adds the layer's further attributes."""
        layer = cls.__new__(cls)
        layer.__dict__.update(module.__dict__)
        return layer

    def _to_counterpart(self) -> nn.Module:
        """The layer of torch: the inverse of ``_in_place_of``."""
        module = self.counterpart.__new__(self.counterpart)
        module.__dict__.update({name: value for name, value in self.__dict__.items() if name not in self._own})
        return module


def take_over(layer: nn.Module, module: nn.Module) -> None:
    """Gives a new layer everything that makes up a module, and the module's attributes that the layer lacks.

    The dictionaries of hooks are shared, since a hook's handle removes the hook from its dictionary; so are those of
    parameters and buffers, unless the layer has further parameters or buffers.
    """
    own = vars(layer)
    for name, value in vars(module).items():
        if name in _TENSORS:
            more = {key: tensor for key, tensor in own[name].items() if key not in ("weight", "bias")}
            own[name] = {**value, **more} if more else value
        elif name in _PLAIN or name not in own:
            own[name] = value


def remember(layer: nn.Module, module: nn.Module) -> None:
    """Keeps the module that a layer replaces. It lies in the layer's dictionary, so that both are copied and pickled
    together, and ``state_dict``, ``modules`` and ``to`` do not see it, since the two share their parameters."""
    vars(layer)[_ORIGINAL] = module


def remembered(layer: nn.Module) -> nn.Module | None:
    """The module that a layer replaces."""
    module = layer.__dict__.get(_ORIGINAL)
    return module if isinstance(module, nn.Module) else None


def give_back(layer: nn.Module) -> nn.Module:
    """The module that a layer replaces, with the parameters, hooks and mode as they are now."""
    module = remembered(layer)
    assert module is not None
    own, given = vars(layer), vars(module)
    for name in _PLAIN | given.keys():
        if name in _TENSORS:
            given[name].update((key, own[name][key]) for key in given[name] if key in own[name])
        elif name in own:
            given[name] = own[name]
    return module


_PLAIN = frozenset(vars(nn.Module()))
