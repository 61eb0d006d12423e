"""``Cell``: bytes of one model, trained in one way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cell:
    """One model in one way.

    Attributes:
        model, way: names in ``bench.vision.models.MODELS`` and ``bench.vision.compression.ways.WAYS``.
        batch, size: images of a step, and their height and width.
        channels_last: whether images and kernels are in that order.
        live_bytes: what a forward leaves allocated, its result and the graph included.
        original_bytes: of what autograd alone keeps: of the untouched model as hooks count, in other ways as the report
            says; ``None`` for Q-layers, which do not report it.
        stored_bytes: what is kept in its place, by the report, or by autograd's graph for Q-layers; ``None`` for the
            untouched model.
        peak_bytes: the activation peak: the most during forward and backward, less what was there before, with
            ``.grad`` unset, and less all gradients.
        standing_peak_bytes: the same where the gradients are there before and are added to, so that none is subtracted
            that has not come into being at the peak.
        peak_in: the operator in which the peak is reached, and its largest tensor.
        does_not_apply: why the way is none for this model; empty otherwise.
        failure: what went wrong; empty otherwise.
        commit: that this was measured with.
    """

    model: str
    way: str
    batch: int
    size: int
    channels_last: bool = False
    live_bytes: int | None = None
    original_bytes: int | None = None
    stored_bytes: int | None = None
    peak_bytes: int | None = None
    standing_peak_bytes: int | None = None
    peak_in: str = ""
    does_not_apply: str = ""
    failure: str = ""
    commit: str = ""

    @property
    def inputs(self) -> tuple[str, int, int, bool]:
        """The model and its inputs: what cells have in common that are compared."""
        return self.model, self.batch, self.size, self.channels_last

    def allocated_bytes(self, plain: Cell) -> int | None:
        """What is kept, as the allocator counts it: live bytes, less what lives beside the untouched model's saved
        tensors (the result, the graph); ``None`` where it was not measured.

        Args:
            plain: the untouched model with the same inputs.
        """
        if self.live_bytes is None or plain.live_bytes is None or plain.original_bytes is None:
            return None
        return self.live_bytes - (plain.live_bytes - plain.original_bytes)

    def ratio(self, plain: Cell) -> float | None:
        """How many times fewer bytes are kept than the untouched model keeps, by the larger of what report and
        allocator count; ``None`` where unknown, and for the untouched model."""
        if not self.stored_bytes or plain.original_bytes is None:
            return None
        return plain.original_bytes / max(self.stored_bytes, self.allocated_bytes(plain) or 0)

    def peak_ratios(self, plain: Cell) -> tuple[float, float] | None:
        """How many times smaller the activation peak is, and that with gradients there before; ``None`` where not
        measured."""
        found = self.peak_bytes, plain.peak_bytes, self.standing_peak_bytes, plain.standing_peak_bytes
        own, other, standing, other_standing = found
        if not own or not other or not standing or not other_standing:
            return None
        return other / own, other_standing / standing
