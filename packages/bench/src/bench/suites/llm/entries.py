"""What ``python -m bench llm`` records."""

from __future__ import annotations

from statistics import fmean

from bench.results.entry import Entry, Timed, at, metric, part, series
from bench.results.record import Kind, Record
from bench.suites.llm.subjects import SUBJECTS
from bench.ways.decoders import WAYS
from bench.ways.general import PLAIN


@part("way", "a subject, trained in one way")
class Trained(Timed, Entry):
    """One subject in one way."""

    subject: str = at("its name in SUBJECTS")
    way: str = at("in words")
    peak: int | None = metric("bytes", "of a step beyond what was there before, gradients among them")
    gradients: int = metric("bytes", "of the gradients", default=0)
    error: float = metric("", "of the whole gradient, relative", default=0.0)
    loss_error: float = metric("", "of the loss, absolute", default=0.0)
    seconds: list[float] = series("s", "of each step")
    plain_seconds: list[float] = series("s", "of the subject's first way, in turn with those")

    @property
    def beside(self) -> int | None:
        """Bytes of the peak that are not the gradients'."""
        return None if self.peak is None else max(0, self.peak - self.gradients)


@part("training", "a small Llama, trained on sentences in one way")
class Learned(Entry):
    """One way with one seed, of which all ways have the same weights and batches."""

    way: str = at("in words")
    seed: int = at("of weights and batches")
    losses: list[float] = series("", "means over as many parts of the training")
    end: float | None = metric("", "the loss at its end: the mean of the last tenth of the steps")
    held_out: float | None = metric("", "the loss of sentences that it was not trained on")
    seconds: float = metric("s", "of the training", default=0.0)


_SUBJECTS = {name: place for place, name in enumerate(SUBJECTS)}


def _order(one: Trained | Learned) -> tuple[int, ...]:
    """Subjects, each in its ways, and then trainings."""
    if isinstance(one, Learned):
        return 1, one.seed, _place(one.way, tuple(WAYS))
    return 0, _SUBJECTS.get(one.subject, len(_SUBJECTS)), _place(one.way, SUBJECTS[one.subject].ways)


def _place(way: str, ways: tuple[str, ...]) -> int:
    return ways.index(way) if way in ways else len(ways)


KIND = Kind(
    "llm",
    (Trained, Learned),
    {"rounds": "number of rounds"},
    {"data": "sentences", "recipe": "training"},
    order=_order,
    packages=("transformers", "peft", "cut-cross-entropy", "torch-remat"),
)


def fallen(record: Record, way: str) -> float | None:
    """How far a way's loss has fallen at the end, of what it can: from that of a guess without knowledge to the least
    of plain training, by parts. The mean over seeds; ``None`` where one is not known."""
    found = []
    for one in record.of(Learned, way=way):
        plain = record.find(Learned, way=PLAIN, seed=one.seed)
        if one.end is not None and plain is not None and plain.losses:
            start = record.settings["recipe"]["guess"]
            found.append((start - one.end) / (start - min(plain.losses)))
    return fmean(found) if found else None
