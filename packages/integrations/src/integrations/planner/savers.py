"""``Seen``: what a captured forward saves for backward, by which calls, and what of it a repetition could read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from actcore import Raw, SavedTensor
from integrations._utils.torch_internals import DisableTorchFunction
from integrations.capture.recorder import Recorder
from integrations.planner.sensitivity.saves import Saves
from integrations.policies.arguments import index_codec, two_valued
from integrations.policies.codebooks.codebook import Codebook
from integrations.policies.rules import RULES, Need
from integrations.policies.slopes import find_activation, has_slope
from integrations.tracing import attention
from integrations.tracing.call import Call
from integrations.tracing.storage.forms import window_indices
from integrations.tracing.storage.store import packable
from integrations.tracing.tensors import find_local, get_storage
from integrations.tracing.tracker import CallTracker


@dataclass(frozen=True)
class Saver:
    """A tensor of a value's memory that autograd saves.

    Attributes:
        value: the value that the memory held when it was saved.
        saved: its description.
        share: the share of the memory that it covers.
        packable: whether codecs can read it.
        inside: whether the arguments of its call allow one bit an element where backward only asks whether an element
            is within an interval.
        places: bytes of its call's indices, stored as places within windows; 0 if it has none.
        activation: the codec with one bit an element for its derivative, if its call is an activation that has one.
        narrow: bytes for each of its indices, within the range that the call tells; 0 if it tells none.
    """

    value: int
    saved: SavedTensor
    share: float
    packable: bool
    inside: bool = False
    activation: Codebook | None = None
    places: int = 0
    narrow: float = 0.0


class Seen:
    """Watches what a forward saves.

    Args:
        recomputes: whether attention keeps query, key and value alone, and is recomputed from them.
        named: whether savers that are alike are told apart, each by a name that stays from step to step.

    Attributes:
        savers: in the order of the forward.
        saves: the savers under their names.
        outlines: by value: the tensor as which it was made.
        read: values that an operator reads with a gradient, so that its repetition may read them rounded.
        masked: values that an operator reads and that may have masked elements: no repetition reads them rounded.
        casts: values that are casts of parameters.
        replaced: whether attention was replaced by one that is recomputed.
        remade: results of that attention, which its backward makes anyway.
    """

    def __init__(self, recomputes: bool, named: bool = False) -> None:
        self._recomputes, self._named = recomputes, named
        self.saves = Saves()
        self._clear()

    def _clear(self) -> None:
        self.savers: list[Saver] = []
        self.outlines: list[SavedTensor] = []
        self.read: set[int] = set()
        self.masked: set[int] = set()
        self.casts: set[int] = set()
        self.remade: set[int] = set()
        self.replaced = False
        self.saves.clear()

    @contextmanager
    def hooks(self, recorder: Recorder) -> Iterator[Callable[[Tensor], Any]]:
        """A block in which a forward runs as under a session. It gives the pack hook for the forward."""
        tracker = CallTracker()
        self._clear()

        def pack(tensor: Tensor) -> Any:
            with DisableTorchFunction():
                with recorder.pausing():  # operators that read the tensor here are not the forward's
                    part = find_local(tensor)
                    identity = self.saves.note(recorder, tracker, tensor, part)
                    if part is None or tensor._version == 0:  # a session keeps others exactly
                        occurrence = identity.occurrence if self._named else 0
                        self._note(recorder, tracker.call, tensor, part, occurrence)
                return recorder.pack(tensor)

        def over(call: Call, outputs: Sequence[Tensor]) -> None:
            self.replaced = self.replaced or call.recomputes
            with DisableTorchFunction():
                for output in outputs:
                    value = recorder.value_of(output)
                    if value is not None and call.recomputes and attention.is_fused(output):
                        self.remade.add(value)

        if self._recomputes:
            tracker.pack = pack
        tracker.over = over
        with tracker:
            yield pack
        self.outlines, self.read, self.casts = recorder.outlines, recorder.rounded, recorder.casts
        self.masked = recorder.masked

    def _note(self, recorder: Recorder, call: Call | None, whole: Tensor, part: Tensor | None, occurrence: int) -> None:
        tensor = whole if part is None else part
        value, storage = recorder.value_of(tensor), get_storage(tensor)
        if value is None or value < 0 or storage is None:
            return
        operator, role = ("", "") if call is None else (call.operator, call.role(whole, storage))
        saved = SavedTensor.of(tensor, operator=operator, role=role, module=recorder.module, occurrence=occurrence)
        share = tensor.numel() * tensor.itemsize / max(1, storage.nbytes())
        found = Saver(value, saved, share, packable(tensor))
        if call is not None and found.packable:
            rule = RULES.get(operator)
            if rule is not None and role and rule.need(role) is Need.INSIDE:
                found = Saver(value, saved, share, True, inside=two_valued(call.name, call.given, tensor) is not None)
            elif has_slope(saved):
                activation = find_activation(call.name, call.given, call.in_place)
                found = Saver(value, saved, share, True, activation=activation)
            elif not saved.dtype.is_floating_point and saved.dtype is not torch.bool:
                narrow = index_codec(call.name, call.given)
                windows = window_indices(call.name, call.given, tensor, Raw())
                found = Saver(
                    value,
                    saved,
                    share,
                    True,
                    places=0 if windows is None else tensor.numel(),
                    narrow=0.0 if narrow is None else (narrow.high - narrow.low).bit_length() / 8,
                )
        self.savers.append(found)
