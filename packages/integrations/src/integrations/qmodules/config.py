"""``config`` and ``set_optimization_level``: the level of later Q-layers, in ActNN's words."""

from __future__ import annotations

import threading
from dataclasses import fields
from typing import Any

from integrations.qmodules.levels import LEVELS, ONE_GROUP, QLevel, resolve_level

# ActNN's names of a level's fields, where they differ.
_NAMES = {
    "compress_activation": "compress",
    "activation_compression_bits": "bits",
    "adaptive_conv_scheme": "per_sample",
    "adaptive_bn_scheme": "norm_adaptive",
    "enable_quantized_bn": "norms",
    "perlayer": "per_layer",
    "swap": "offload",
} | {field.name: field.name for field in fields(QLevel)}

_ALLOCATOR = "use the settings of torch's allocator: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"

# ActNN's settings that have no counterpart, and why.
_GONE = {
    "training": "each layer follows its own train() and eval()",
    "stochastic": "rounding is always stochastic, which keeps gradients unbiased",
    "simulate": "every operator runs on the CPU as well as on CUDA",
    "empty_cache_threshold": _ALLOCATOR + " and garbage_collection_threshold:0.8",
    "pipeline_threshold": _ALLOCATOR,
    "cudnn_benchmark_conv2d": "convolutions follow torch.backends.cudnn.benchmark",
    "debug_memory_model": "use torch.cuda.memory_stats()",
    "debug_speed": "use torch.profiler",
    "debug_memory_op_forward": "use torch.profiler",
    "debug_memory_op_backward": "use torch.profiler",
    "debug_remove_bn": "build the model without batch norm layers",
    "debug_remove_relu": "build the model without ReLU layers",
}


class Config:
    """The default settings of Q-layers that are created or converted later.

    Existing layers keep their settings, and ``QModule(model, level)`` with a level ignores ``config``.

    Read and set a field of ``QLevel`` as an attribute, under its own name or ActNN's: ``compress_activation``,
    ``activation_compression_bits``, ``adaptive_conv_scheme``, ``adaptive_bn_scheme``, ``enable_quantized_bn``,
    ``perlayer``, ``swap``; ``pergroup = False`` makes a group of each tensor. Any other name raises and says why.
    """

    def __init__(self) -> None:
        vars(self).update(_lock=threading.Lock(), _level=LEVELS["L3"], _set=frozenset())

    def level(self) -> QLevel:
        """The level as it is set now."""
        level: QLevel = vars(self)["_level"]
        return level

    def choose(self, level: str) -> None:
        """The level of that name from now on, and nothing of what was set before."""
        if not isinstance(level, str):
            raise TypeError(f"level must be a name, one of {', '.join(LEVELS)}, got {level!r}")
        with vars(self)["_lock"]:
            vars(self).update(_level=resolve_level(level), _set=frozenset())

    def unlike(self, level: QLevel) -> list[str]:
        """Fields that were set since the level was chosen, and that ``level`` has other values of."""
        return sorted(name for name in vars(self)["_set"] if getattr(self.level(), name) != getattr(level, name))

    def __getattr__(self, name: str) -> Any:
        if name == "pergroup":
            return self.level().group_size != ONE_GROUP
        return getattr(self.level(), _field(name))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "pergroup":
            if not isinstance(value, bool):
                raise TypeError(f"pergroup must be True or False, got {value!r}")
            if value and self.pergroup:
                return  # the group size that was set stays
            name, value = "group_size", LEVELS["L3"].group_size if value else ONE_GROUP
        field = _field(name)
        with vars(self)["_lock"]:
            vars(self)["_level"] = resolve_level(self.level(), {field: value})
            vars(self)["_set"] |= {field}

    def __repr__(self) -> str:
        return f"Config({self.level()!r})"


def _field(name: str) -> str:
    if name in _GONE:
        raise AttributeError(f"config has no {name!r}: {_GONE[name]}")
    if name not in _NAMES:
        raise AttributeError(f"settings of config are {', '.join(_NAMES)}, pergroup, got {name!r}")
    return _NAMES[name]


config = Config()
"""The default of later layers and conversions: L3, as in ActNN."""


def set_optimization_level(level: str) -> None:
    """Set the level of Q-layers that are created or converted later; existing layers keep theirs.

    Settings made on ``config`` before are reset.

    Args:
        level: one of ``LEVELS``.

    Raises:
        TypeError: the level is not a string.
        ValueError: there is no such level; the message lists the valid ones.
    """
    config.choose(level)
