"""``differentiated``: detect that a backward with ``create_graph=True`` reads rounded tensors."""

from __future__ import annotations

from actcore import GroupAffine, Raw
from actcore.double_backward import builds_graph
from actcore.replay import Handle
from integrations.runtime.formulas.formula import EXACT, Recomputed, get_bits
from integrations.tracing.data_dependence import HeldInput
from integrations.tracing.double_backward import DoubleBackward, has_numbers, is_read
from integrations.tracing.storage.forms import Held, Part, SlopeForm
from integrations.tracing.storage.regions import Exact, View, inner


def differentiated(packed: object) -> None:
    """Notify the model that saved a tensor if a backward with ``create_graph=True`` computes with its rounded elements.

    The unpack hook in C calls this if gradients are enabled.

    Args:
        packed: the packed object that autograd holds.
    """
    if isinstance(packed, HeldInput):  # the node that unpacks it is one of the segment, not the checkpoint's own
        packed = packed.packed
    held = packed.held if isinstance(packed, Part) else packed
    double = _find_double_backward(held)
    if double is None or double.met or not builds_graph():
        return
    rounded = _is_rounded(held)
    if (rounded or (double.tries and _may_be_rounded(held))) and is_read(packed, not rounded):
        double.meet(rounded)


def _find_double_backward(packed: object) -> DoubleBackward | None:
    """Return the ``DoubleBackward`` to notify about a stored tensor; ``None`` for one that is never rounded."""
    if isinstance(packed, View):
        return packed.region.last.double
    if isinstance(packed, Exact):
        return None if packed.region is None else packed.region.last.double
    if isinstance(packed, Held):
        return packed.double
    if isinstance(packed, Handle):
        double: DoubleBackward | None = packed.segment.double
        return double
    return packed.double if isinstance(packed, Recomputed) else None


def _is_rounded(packed: object) -> bool:
    """Return whether the restored elements differ from those of the forward."""
    if isinstance(packed, View):
        return not packed.sign and get_bits(packed.region) < EXACT
    if isinstance(packed, Held):
        return isinstance(packed, SlopeForm) or isinstance(inner(packed.compressed.codec), GroupAffine)
    if isinstance(packed, Handle):
        return bool(packed.segment.rounded)
    return isinstance(packed, Recomputed) and packed.bits < EXACT


def _may_be_rounded(packed: object) -> bool:
    """Return whether a plan may round this exactly stored tensor: numbers, but not signs, masks or indices."""
    if isinstance(packed, Handle):
        return has_numbers(packed.geometry.dtype)
    if not isinstance(packed, (View, Exact)) or packed.region is None or not has_numbers(packed.region.dtype):
        return False
    region = packed.region
    if isinstance(packed, Exact) or region.kept is not None:
        return True
    return not packed.sign and region.value is not None and isinstance(inner(region.value.codec), Raw)
