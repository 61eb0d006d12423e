"""Sentences as one text, in numbers of words: MRPC's, or generated ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from bench.models.data import glue
from bench.models.data import mrpc as sentences

_UNKNOWN, _END = range(2)  # below the numbers of words


@dataclass(frozen=True)
class Text:
    """Sentences, one behind another, a mark behind each.

    Attributes:
        what: which they are, in words.
        vocabulary: how many numbers there are.
        train, held_out: ``Int64[Tensor, "words"]``.
        unit: what the numbers stand for, in words.
    """

    what: str
    vocabulary: int
    train: Tensor
    held_out: Tensor
    unit: str = field(default="words and marks", kw_only=True)

    @property
    def guess(self) -> float:
        """The loss of who takes all words to be as likely."""
        return math.log(self.vocabulary)

    def __str__(self) -> str:
        return (
            f"{self.what} ({len(self.train):,} {self.unit} for training, {len(self.held_out):,} held out, "
            f"{self.vocabulary:,} different ones)"
        )


def load(vocabulary: int, data_root: Path | None = None) -> Text:
    """MRPC's sentences, of the folder ``data_root/mrpc`` or that of ``ACTCORE_DATA``; generated ones where no folder is
    named or at hand.

    Args:
        vocabulary: at most so many different words, the most frequent ones.
        data_root: the folder.

    Raises:
        MissingSentences: the folder was named, and has no such sentences.
        BenchError: a file is damaged.
    """
    try:
        files = sentences.files(data_root)
    except sentences.MissingSentences:
        if data_root is not None:
            raise
        halves = ([sentence for sentence, _ in half] for half in glue.generate_sentences())
        return _numbered("generated sentences", vocabulary, *halves)
    rows = (sentences.rows(file) for file in files)
    return _numbered("MRPC", vocabulary, *([one for row in some for one in (row.first, row.second)] for some in rows))


def _numbered(what: str, vocabulary: int, train: Sequence[str], held_out: Sequence[str]) -> Text:
    counts = Counter(word for sentence in train for word in sentences.words(sentence))
    known = counts.most_common(vocabulary - 2)
    numbers = {word: 2 + place for place, (word, _) in enumerate(known)}
    return Text(what, len(numbers) + 2, *(_stream(some, numbers) for some in (train, held_out)))


def _stream(some: Iterable[str], numbers: dict[str, int]) -> Tensor:
    found: list[int] = []
    for sentence in some:
        found += [*(numbers.get(word, _UNKNOWN) for word in sentences.words(sentence)), _END]
    return torch.tensor(found)
