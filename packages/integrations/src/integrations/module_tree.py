"""A model's tree of modules: exchanging modules in place, and the paths by which one is reached."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn


def exchange(
    root: nn.Module,
    replacement: Callable[[str, nn.Module], nn.Module],
    opens: Callable[[nn.Module], bool] = lambda module: True,
) -> nn.Module:
    """Every module exchanged for its replacement, which may be itself. Children come before their parent.

    A module that is in several places is asked for once, with the first of its paths, and stays one module.

    Args:
        root: any module; its path is empty.
        replacement: of a path, as ``named_modules`` has it, and the module.
        opens: whether what is inside a module is exchanged, too.

    Returns:
        The root's replacement.
    """
    known: dict[nn.Module, nn.Module] = {}

    def visit(path: str, module: nn.Module) -> nn.Module:
        if module in known:
            return known[module]
        known[module] = module  # a module may be below itself
        for name, child in (module._modules if opens(module) else {}).items():
            if child is not None:
                new = visit(f"{path}.{name}" if path else name, child)
                if new is not child:
                    module._modules[name] = new
        known[module] = replacement(path, module)
        return known[module]

    return visit("", root)


def paths_of(
    root: nn.Module, opens: Callable[[nn.Module], bool] = lambda module: True
) -> Mapping[nn.Module, tuple[str, ...]]:
    """All paths that lead to each module, where ``named_modules`` gives the first. What is inside of a module is left
    out where ``opens`` says so."""
    found: dict[nn.Module, tuple[str, ...]] = {}

    def visit(path: str, module: nn.Module, above: tuple[nn.Module, ...]) -> None:
        found[module] = (*found.get(module, ()), path)
        for name, child in (module._modules if opens(module) else {}).items():
            if child is not None and child not in above:
                visit(f"{path}.{name}" if path else name, child, (*above, child))

    visit("", root, (root,))
    return found
