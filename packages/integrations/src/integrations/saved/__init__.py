"""Compression of the tensors that autograd saves, for any model, through saved-tensor hooks.

GACT's own interface is here, too: its README example runs with ``from integrations import saved as gact`` and
``from integrations.saved import Controller``.
"""

from integrations.saved.controller import Controller, config, set_adapt_interval, set_optimization_level

__all__ = ["Controller", "config", "set_adapt_interval", "set_optimization_level"]
