"""What a compressed forward says of itself when it did nothing: compression is never a silent no-op."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import nn

from integrations._utils.running_module import NOTHING_TRAINS, trains
from integrations.api.handle.handle_state import HandleState
from integrations.api.handle.module_conversion import Conversions
from integrations.report.words import NOTHING_LEFT, format_bytes
from integrations.runtime.compiled.stored import ROLE
from integrations.tracing.hook_stack import offloader_around
from integrations.tracing.storage.records import Record
from integrations.tracing.tensors import tensors_in

if TYPE_CHECKING:
    from integrations.runtime.session import Session

_REASONS = 5  # at most so many, so that the message can be read
_MOVES_NOTHING = (
    "around the forward has no effect: only the innermost saved-tensor hooks run, and those are the hooks of "
    "integrations. Remove it; on a GPU, offload=True moves the compressed tensors to host memory"
)


class ForwardSize(NamedTuple):
    """How large a forward is.

    Attributes:
        nbytes: what autograd would save uncompressed.
        elements: of the tensors that the forward was given; -1 for a block, which is given nothing.
    """

    nbytes: int
    elements: int

    def is_small_beside(self, other: ForwardSize) -> bool:
        """Return whether the forward is less than half as large as another.

        A forward that saves little for other reasons than a smaller batch is not small: under a checkpoint, it saves
        little of inputs as large as before.
        """
        fewer_elements = self.elements < 0 or 2 * self.elements < other.elements
        return fewer_elements and 2 * self.nbytes < other.nbytes


_largest: WeakKeyDictionary[nn.Module, ForwardSize] = WeakKeyDictionary()
"""By model: its forward that saves the most bytes, of those whose tensors were stored in fewer bytes."""


def warn_if_ineffective(handle: HandleState, session: Session, given: object = ()) -> None:
    """Warns if a forward that has ended was compressed to no effect, or had such an effect on somebody's offloading.

    A block without a call of torch is passed over. So is a batch that is small beside one whose tensors were stored in
    fewer bytes, as the last one of an epoch may be: its tensors may be too small to be worth storing, or a loss in
    chunks may keep a gradient of the head's weight that is larger than its logits.

    Args:
        handle: the model's handle.
        session: the forward's session.
        given: the arguments of the forward; nothing for a block.

    Raises:
        RuntimeError: the forward had no effect and the handle is strict; or activations were to be exchanged, and there
            were none.
    """
    records, level = session.records, handle.level
    if not (level.offload or handle.off) and (theirs := offloader_around()):
        handle.warn_once("around", f"{handle.name}: {theirs} {_MOVES_NOTHING}")
    exchanges = Conversions.of(handle.model)
    if exchanges is not None and (none := exchanges.why_no_activations(handle.model)):
        if handle.strict:
            raise RuntimeError(f"{handle.name}: {none}; without strict=True this is a warning")
        handle.warn_once("activations", f"{handle.name}: {none}")
    if handle.level.off and handle._plan_manager is not None:
        return  # a plan with room may keep everything
    # In compiled code, the records do not tell what exchanged layers keep less.
    compiled = exchanges is not None and any(record.saved.role == ROLE for record in records)
    # Logits that were never made are in no record.
    without_logits = handle.level.off and exchanges is not None and exchanges.has_heads
    why = "" if compiled or without_logits else why_not_smaller(records)
    if why and not records and not trains(handle.model):
        why = NOTHING_TRAINS
    if not why:
        _note_effective(handle.model, records, given)
    elif _may_pass(handle, session, given):
        return
    stuck = why_not_offloaded(records) if level.offload else ""
    offload = f"{handle.name}: nothing is offloaded: {stuck}" if stuck else ""
    if why:
        alone = offload and level.bits is None  # the level was to do nothing else
        message = offload if alone else f"{handle.name}: nothing is stored in fewer bytes: {why}"
        if level.off:  # the exchanged layers were to do it all
            message += (
                "; a converted layer saves no memory if another operator saves the same tensor or another part of "
                "its storage, such as the other half of a gated product. Pass a level that also compresses these "
                "tensors, such as 'L1', or leave the option out"
            )
        if handle.strict:
            off = "" if level.off else ", and level='L0' turns compression off"
            raise RuntimeError(f"{message}; without strict=True this is a warning{off}")
        handle.warn_once("offload" if alone else "smaller", message)
    if offload:
        handle.warn_once("offload", offload)


def forget(model: nn.Module) -> None:
    """Forgets that a restored model was told, so that the next to compress it is told again."""
    _largest.pop(model, None)


def _note_effective(model: nn.Module, records: Sequence[Record], given: object) -> None:
    """Note a forward whose tensors were stored in fewer bytes, if it is the largest so far."""
    before, nbytes = _largest.get(model), sum(record.original_bytes for record in records)
    if before is None or nbytes > before.nbytes:
        _largest[model] = ForwardSize(nbytes, _count_elements(given))


def _count_elements(given: object) -> int:
    """The elements of the tensors among a forward's arguments; -1 for no arguments."""
    if given == ():
        return -1
    dense = (tensor for tensor in tensors_in(given) if tensor.layout is torch.strided and not tensor.is_nested)
    return sum(tensor.numel() for tensor in dense)


def _may_pass(handle: HandleState, session: Session, given: object) -> bool:
    """Whether a forward that takes as many bytes as before may pass without a warning."""
    if handle.in_blocks and not session.records and session.tracker.idle:
        return True
    alone = [record for record in session.records if not record.owner]
    largest = _largest.get(handle.model)
    if largest is None or not alone:
        return False
    if all(record.original_bytes < handle.level.min_bytes for record in alone):
        return True
    nbytes = sum(record.original_bytes for record in alone)
    return ForwardSize(nbytes, _count_elements(given)).is_small_beside(largest)


def why_not_smaller(records: Sequence[Record]) -> str:
    """Why what a forward saved takes as many bytes as before; empty if it takes fewer, or went to the host."""
    if any(record.host and record.stored_bytes for record in records):
        return ""
    before = sum(record.original_bytes for record in records)
    after = sum(record.stored_bytes for record in records)
    if after < before:
        return ""
    if not records:
        return "autograd saved no tensor through saved-tensor hooks"
    if not before:
        owners = Counter(record.owner for record in records if record.owner)
        listed = ", ".join(f"{count} x {owner}" for owner, count in owners.most_common())
        return (
            "all tensors that autograd saved are alive anyway, for other reasons "
            f"({listed or 'tensors without elements'})"
        )
    reasons: Counter[str] = Counter()
    for record in records:
        reasons[record.why] += record.stored_bytes
    listed = "; ".join(f"{format_bytes(count)}: {why}" for why, count in reasons.most_common(_REASONS) if count)
    return f"{format_bytes(before)} before and {format_bytes(after)} after ({listed})"


def why_not_offloaded(records: Sequence[Record]) -> str:
    """Why nothing went to the host, and what stays where; empty if something went."""
    if any(record.host and record.stored_bytes for record in records):
        return ""
    alone = [record for record in records if not record.owner]
    where: Counter[str] = Counter()
    for record in alone:
        where[str(record.saved.device)] += record.stored_bytes
    listed = ", ".join(f"{format_bytes(count)} on {device}" for device, count in where.most_common())
    return f"{NOTHING_LEFT}; stored without offload: {listed or '0 B'}"
