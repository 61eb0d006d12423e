"""A model's tree of modules: exchanging modules in place, and the paths by which one is reached."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import nn
from torch.nn.utils.parametrize import is_parametrized


def exchange(
    root: nn.Module,
    replacement: Callable[[str, nn.Module], nn.Module],
    opens: Callable[[nn.Module], bool] = lambda module: True,
) -> nn.Module:
    """Exchanges every module for its replacement, which may be itself. Children come before their parent.

    A module in several places is asked for once, with the first of its paths, and stays one module.

    Args:
        root: any module; its path is empty.
        replacement: returns the replacement of a module, from its path, as in ``named_modules``, and the module.
        opens: whether the modules inside a module are exchanged, too.

    Returns:
        The root's replacement. If a replacement raises, the error comes through, and the tree is as it was.
    """
    before: list[tuple[dict[str, nn.Module | None], str, nn.Module]] = []
    try:
        return _exchanged("", root, replacement, opens, {}, before)
    except BaseException:
        for modules, name, child in before:
            modules[name] = child
        raise


# These are functions of the file, and not nested: a nested function that calls itself is a cycle with all that it sees,
# and keeps the modules alive until Python's garbage collector runs.
def _exchanged(
    path: str,
    module: nn.Module,
    replacement: Callable[[str, nn.Module], nn.Module],
    opens: Callable[[nn.Module], bool],
    known: dict[nn.Module, nn.Module],
    before: list[tuple[dict[str, nn.Module | None], str, nn.Module]],
) -> nn.Module:
    if module in known:
        return known[module]
    known[module] = module  # a module may be below itself
    for name, child in _children(module) if opens(module) else ():
        new = _exchanged(f"{path}.{name}" if path else name, child, replacement, opens, known, before)
        if new is not child:
            before.append((module._modules, name, child))
            module._modules[name] = new
    known[module] = replacement(path, module)
    return known[module]


def _children(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The children of a module with their names, except the modules that parametrize a weight."""
    for name, child in tuple(module._modules.items()):
        if child is not None and not (name == "parametrizations" and is_parametrized(module)):
            yield name, child


def find_module_paths(
    root: nn.Module, opens: Callable[[nn.Module], bool] = lambda module: True
) -> Mapping[nn.Module, tuple[str, ...]]:
    """All paths that lead to each module, where ``named_modules`` gives the first. The modules inside a module are left
    out if ``opens`` says so."""
    found: dict[nn.Module, tuple[str, ...]] = {}
    _add_paths(found, "", root, (root,), opens)
    return found


def _add_paths(
    found: dict[nn.Module, tuple[str, ...]],
    path: str,
    module: nn.Module,
    above: tuple[nn.Module, ...],
    opens: Callable[[nn.Module], bool],
) -> None:
    found[module] = (*found.get(module, ()), path)
    for name, child in _children(module) if opens(module) else ():
        if child not in above:
            _add_paths(found, f"{path}.{name}" if path else name, child, (*above, child), opens)
