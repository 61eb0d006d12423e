"""``with_adapters``: a model with LoRA's adapters, by peft."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from torch import nn

_ALL = "all-linear"
_RULE = "lora must be a rank such as 16, 'r=16', a mapping such as {'r': 16, 'targets': 'all-linear'}, or None"


def with_adapters(model: nn.Module, lora: Any) -> nn.Module:
    """The model, in which only adapters are trained, as ``peft.get_peft_model`` leaves it inside of what it returns.

    Args:
        model: the model.
        lora: a rank; ``"r=16"``, ``"r=16,targets=q_proj+v_proj"``; a mapping of ``peft.LoraConfig``'s arguments, with
            ``targets``, names of layers, for ``target_modules``; or ``None`` for no adapters.

    Raises:
        ImportError: peft is not there.
        TypeError, ValueError: ``lora`` is nothing of these, or peft refuses it.
    """
    if lora is None:
        return model
    options = _options(lora)
    try:
        import peft
    except ImportError as error:
        raise ImportError("lora needs the library peft: pip install peft") from error
    targets = options.pop("targets", _ALL)
    if isinstance(targets, str) and targets != _ALL:
        targets = targets.split("+")  # by name: peft takes a single string for a pattern of whole paths
    options.setdefault("target_modules", targets)
    try:
        config = peft.LoraConfig(**options)
    except TypeError as error:
        raise ValueError(f"{_RULE}; peft.LoraConfig says: {error}") from None
    adapted: nn.Module = peft.get_peft_model(model, config).get_base_model()
    return adapted


def _options(lora: Any) -> dict[str, Any]:
    if isinstance(lora, Mapping):
        return dict(lora)
    if isinstance(lora, int) and not isinstance(lora, bool):
        lora = f"r={lora}"
    if not isinstance(lora, str):
        raise TypeError(f"{_RULE}, got {lora!r}")
    options: dict[str, Any] = {}
    for part in lora.replace(",", " ").split():
        name, sign, value = part.partition("=")
        if not sign or not name or not value:
            raise ValueError(f"{_RULE}, got {lora!r}")
        options[name] = _value(value)
    if type(options.get("r")) is not int or options["r"] < 1:
        raise ValueError(f"{_RULE}; its rank r must be 1 or more, got {lora!r}")
    return options


def _value(text: str) -> Any:
    """An argument of ``peft.LoraConfig`` from its text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text.split("+") if "+" in text else text
