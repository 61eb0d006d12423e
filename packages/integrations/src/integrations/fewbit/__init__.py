"""fewbit: activations whose backward needs a few bits an element, and linear layers that keep a sketch of their input."""

from integrations.fewbit.catalogue import FUNCTIONS, FewBitFunction

__all__ = ["FUNCTIONS", "FewBitFunction"]
