"""``Unscriptable``: layers that ``torch.jit.script`` cannot compile."""

from __future__ import annotations

from typing import ClassVar

from torch import nn


class Unscriptable(nn.Module):
    """A layer that replaces one of torch, and for which ``torch.jit.script`` raises an error with the ways out.

    Otherwise torch would report the annotation of one of the layer's attributes, which users never see.
    """

    _package: ClassVar[str] = "fewbit"

    def __prepare_scriptable__(self) -> None:
        """Raise ``RuntimeError``. ``torch.jit.script`` calls this first, for each module of a model."""
        package = self._package
        raise RuntimeError(
            f"torch.jit.script does not support {package}.{type(self).__name__}; use torch.compile, torch.jit.trace, "
            f"or torch's own layer ({package}.restore_model brings it back in a converted model, and "
            "integrations.restore_model in a compressed one)"
        )
