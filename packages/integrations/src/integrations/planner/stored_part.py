"""``make_part``: what the rules' decision stores of a tensor that autograd saves."""

from __future__ import annotations

from typing import NamedTuple

from actcore import BitMask, Codec, GroupAffine, Offload, Raw
from integrations.capture.dispatch.memory import allocated
from integrations.planner.savers import Saver
from integrations.planner.sensitivity.weights import estimate_noise
from integrations.policies.codebooks.codebook import Codebook
from integrations.policies.policy import SaveDecision
from integrations.policies.rules import Need
from integrations.policies.slopes import find_codebook


class StoredPart(NamedTuple):
    """What is stored for one saver of a value.

    Attributes:
        codec: the codec; ``Raw`` if the tensor is kept as it is, ``None`` if only its shape is stored.
        nbytes: bytes of all of the value's memory in that form.
        alone: whether it serves this saver alone, and is not shared.
        passing: whether storing it takes another tensor of that size.
        normalised: whether it is stored normalised, with its statistics.
    """

    codec: Codec | None
    nbytes: int
    alone: bool = False
    passing: bool = False
    normalised: bool = False

    @property
    def keeps(self) -> bool:
        """Whether the memory stays as it is."""
        return isinstance(self.codec, Raw)

    @property
    def noise(self) -> float:
        """The noise of rounded elements, or the noise that would do the same harm as a rounded derivative; 0 if nothing
        is rounded."""
        codec = self.codec.inner if isinstance(self.codec, Offload) else self.codec
        if isinstance(codec, Codebook):
            return codec.noise
        return estimate_noise(codec.bits) if isinstance(codec, GroupAffine) else 0.0


def make_part(decision: SaveDecision, saver: Saver, nbytes: int) -> StoredPart:
    """What a decision stores of a tensor, never more than the bytes of its value.

    Args:
        decision: that of the tensor's policy.
        saver: the tensor.
        nbytes: bytes of the value.
    """
    found = _part(decision, saver)
    size = int(found.nbytes / (min(saver.share, 1.0) or 1.0))
    return found._replace(nbytes=min(allocated(size, saver.saved.device), nbytes))


def _part(decision: SaveDecision, saver: Saver) -> StoredPart:
    saved, codec = saver.saved, decision.codec
    count, whole = saved.shape.numel(), saved.shape.numel() * saved.dtype.itemsize
    kept = StoredPart(Raw(), whole)
    if decision.form is Need.SHAPE and saver.packable:
        return StoredPart(None, 0, alone=True)
    if not saver.packable:
        return kept
    if decision.slope_bits is not None:
        codebook = find_codebook(saver.activation, decision.slope_bits, saved.dtype)
        if codebook is not None:
            return StoredPart(codebook, codebook.stored_bytes(count), alone=True)
    if decision.indices:
        if saver.places:
            return StoredPart(BitMask(), saver.places, alone=True, passing=True)
        return StoredPart(BitMask(), int(count * saver.narrow), alone=True) if saver.narrow else kept
    if decision.form is Need.INSIDE:
        return StoredPart(BitMask(), -(-count // 8), alone=True, passing=True) if saver.inside else kept
    if isinstance(codec, GroupAffine):
        size = codec.stored_bytes(count, saved.dtype)
        alone = decision.form is not None
        passing = decision.normalised or alone
        return StoredPart(codec, size, alone, passing, decision.normalised) if size < whole else kept
    if isinstance(codec, Raw):
        return kept
    # The two values of such a mask are unknown, and looking at it would wait for the device.
    if codec is None and saved.device.type != "cpu":
        return kept
    return StoredPart(BitMask() if codec is None else codec, -(-count // 8), alone=True)
