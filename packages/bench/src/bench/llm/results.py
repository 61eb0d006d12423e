"""What a run of ``python -m bench llm`` records."""

from __future__ import annotations

from statistics import median

from bench.record.entry import Entry, at, metric, part, series
from bench.record.kind import Kind


@part("way", "a subject, trained in one way")
class Trained(Entry):
    """One subject in one way, in turn with its other ways."""

    subject: str = at("its name in SUBJECTS")
    way: str = at("in words")
    peak: int | None = metric("bytes", "of a step beyond what was there before, gradients among them")
    gradients: int = metric("bytes", "of the gradients", default=0)
    error: float = metric("", "of the whole gradient, relative", default=0.0)
    loss_error: float = metric("", "of the loss, absolute", default=0.0)
    seconds: list[float] = series("s", "of each step, in turn with those of the subject's other ways")

    def times(self, plain: Trained) -> float:
        """A step's time over that of another way: the median of the ratios of rounds."""
        return median(one / other for one, other in zip(self.seconds, plain.seconds, strict=True))


KIND = Kind("llm", (Trained,), {"rounds": "number of rounds"}, packages=("transformers",))
