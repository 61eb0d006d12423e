"""fewbit: activations whose backward needs a few bits an element; linear layers that keep a sketch of their input."""

from integrations.fewbit.catalogue import FUNCTIONS, FewBitFunction

__all__ = ["FUNCTIONS", "FewBitFunction"]
