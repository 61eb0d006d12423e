"""Which operator saved a tensor decides how it may be stored: the rules of all operators, and yours.

``operators`` has the entry of each operator of torch, with its rule and the reason. ``docs/reference/operators.md`` is
the table for readers, ``docs/explanation/how-tensors-are-stored.md`` explains it.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType

from integrations._utils.torch_internals import get_registered_operators
from integrations._utils.warn import warn
from integrations.policies.needs import Need, Rule
from integrations.policies.operators import OPERATORS

__all__ = ["CHECKPOINT", "RULES", "Need", "Rule", "add_rule", "operator_name"]

CHECKPOINT = "checkpoint"
"""In the place of an operator: what ``torch.utils.checkpoint``, or a plan, recomputes something from."""

_REGISTERED = (Need.SATURATING, Need.INSIDE)
_TORCHS = ("torch", "aten", "prims", "prim", "builtins")
_rules = {name: one.rule for one in OPERATORS if one.rule is not None for name in one.names}
RULES = MappingProxyType(_rules)
"""Rules by operator name (see ``operator_name``)."""


def add_rule(operator: str, rule: Rule) -> None:
    """Add a rule for the tensors that your own operator saves. It applies to models that are compressed afterwards.

    ::

        add_rule("mylib::scaled_linear", Rule(input=Need.LINEAR, other=Need.LINEAR))

    A wrong rule makes gradients wrong: use ``Need.LINEAR`` only for tensors that enter a gradient linearly. Warns about
    an operator that is not registered if its library has one of nearly the same name.

    Args:
        operator: the operator's name in reports: the namespace of a custom operator, and its name.
        rule: the need of backward for each of the saved tensors; ``Need.EXACT`` for all that are not named.

    Raises:
        TypeError: an argument, or a part of the rule, has the wrong type.
        ValueError: the operator has another rule, is an operator of torch, or its name has another form; or the rule
            has ``SATURATING`` or ``INSIDE``, which need a range of the derivative.
    """
    if not isinstance(operator, str):
        raise TypeError(f"operator must be a string, such as 'mylib::scaled_linear', got {operator!r}")
    if not isinstance(rule, Rule):
        raise TypeError(f"rule must be a Rule, such as Rule(input=Need.LINEAR), got {rule!r}")
    for role in ("input", "other", "result", "internal", "recomputed"):
        if not isinstance(rule.need(role), Need):
            raise TypeError(f"rule must have a Need for its {role}, such as Need.LINEAR, got {rule.need(role)!r}")
        if rule.need(role) in _REGISTERED:
            raise ValueError(
                f"rule must not have {rule.need(role)} for its {role}: it needs the range of the operator's "
                "derivative, which the registry has only for operators of torch; use Need.LINEAR or Need.PRODUCT if "
                "unbiased bits suffice, Need.SIGN for a sign, or Need.EXACT"
            )
    library, _, name = operator.partition("::")
    if not library.isidentifier() or not name.isidentifier() or library in _TORCHS:
        raise ValueError(
            f"operator must be of a library of your own, named 'library::operator', got {operator!r}; rules of torch's "
            "operators are in integrations/policies/operators"
        )
    if _rules.get(operator, rule) != rule:
        raise ValueError(
            f"operator must not have a rule yet, but {operator!r} has one: use another name for your operator"
        )
    _warn_of_misspelled(operator, library)
    _rules[operator] = rule


def _warn_of_misspelled(operator: str, library: str) -> None:
    """Warn of a name that is nearly that of a registered operator."""
    names = (name.partition(".")[0].partition("::") for name in get_registered_operators())
    known = {name for place, _, name in names if place == library}
    given = operator.partition("::")[2]
    alike = [] if given in known else get_close_matches(given, known, n=1, cutoff=0.8)
    if alike:
        meant = f"{library}::{alike[0]}"
        warn(f"no operator {operator!r} is registered, so its rule stores nothing yet; did you mean {meant!r}?")


@lru_cache(maxsize=4096)
def operator_name(function: object) -> str:
    """The name under which a call is looked up: ``torch.relu_``, ``Tensor.relu`` and ``F.relu`` are all ``"relu"``.

    In-place and reflected forms drop their marks: ``__rmul__``, ``__imul__`` and ``mul_`` are ``"mul"``. What is not
    torch's keeps the name of its library, so that ``mylib::relu`` is not taken for ``relu``.
    """
    name = str(getattr(function, "__name__", "") or type(function).__name__).split(".")[0]
    library = _library(function)
    if library:
        return f"{library}::{name}"
    if name.startswith("__") and name.endswith("__"):
        name = name[2:-2]
        if name not in RULES and name[:1] in ("r", "i") and name[1:] in RULES:
            name = name[1:]
    return name.strip("_")


def _library(function: object) -> str:
    """The library of a function: a custom operator's namespace or a Python package; empty for torch."""
    module = str(getattr(function, "__module__", None) or "torch").split(".")
    library = module[2] if module[:2] == ["torch", "_ops"] and len(module) > 2 else module[0]
    return "" if library in ("torch", "aten", "builtins") else library
