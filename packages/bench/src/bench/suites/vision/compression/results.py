"""``Cell``: bytes of one model, trained in one way."""

from __future__ import annotations

from bench.results.entry import Entry, at, metric, part


@part("compression", "bytes of a model, trained in one way")
class Cell(Entry):
    """One model in one way."""

    model: str = at("of bench.models.image_models.MODELS")
    way: str = at("of bench.ways.conversions.WAYS")
    batch: int = at("images of a step")
    size: int = at("their height and width")
    channels_last: bool = at("whether images and kernels are in that order", default=False)
    live_bytes: int | None = metric("bytes", "that a forward leaves allocated, its result and the graph included")
    original_bytes: int | None = metric("bytes", "that autograd alone keeps; Q-layers do not report it")
    stored_bytes: int | None = metric("bytes", "kept in its place, by the report, or by autograd's graph for Q-layers")
    peak_bytes: int | None = metric("bytes", "the most of a step, less what was there before and all gradients")
    standing_peak_bytes: int | None = metric("bytes", "the same of a step that adds to gradients that are there")
    peak_in: str = metric("", "the operator in which the peak is reached, and its largest tensor", default="")

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
