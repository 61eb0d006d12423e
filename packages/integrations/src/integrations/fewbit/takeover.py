"""One module in another's place: the same parameters, buffers, hooks, mode and attributes."""

from __future__ import annotations

from torch import nn

_ORIGINAL = "_fewbit_original"

# Dictionaries whose entries the new module may have more of.
_TENSORS = ("_parameters", "_buffers")


def take_over(layer: nn.Module, module: nn.Module) -> None:
    """Gives a new layer all that makes up a module, and the attributes of it that the layer has not itself.

    The very dictionaries of hooks, since a hook's handle removes it from its dictionary; those of parameters and
    buffers, too, unless the layer has parameters or buffers besides.
    """
    own = vars(layer)
    for name, value in vars(module).items():
        if name in _TENSORS:
            more = {key: tensor for key, tensor in own[name].items() if key not in ("weight", "bias")}
            own[name] = {**value, **more} if more else value
        elif name in _PLAIN or name not in own:
            own[name] = value


def remember(layer: nn.Module, module: nn.Module) -> None:
    """Keeps what a layer stands for. In the layer's dictionary, so that both are copied and pickled together, and
    unseen by ``state_dict``, ``modules`` and ``to``: what the two share is one."""
    vars(layer)[_ORIGINAL] = module


def remembered(layer: nn.Module) -> nn.Module | None:
    """The module for which a layer stands."""
    module = layer.__dict__.get(_ORIGINAL)
    return module if isinstance(module, nn.Module) else None


def give_back(layer: nn.Module) -> nn.Module:
    """The module for which a layer stands, with the parameters, hooks and mode as they are now."""
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
