"""Pairs of sentences of the Microsoft Research Paraphrase Corpus (Dolan & Brockett, 2005), as numbers of words."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bench.errors import BenchError

FOLDER = "mrpc"
FILES = ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")  # trained on, held out

PADDING, UNKNOWN, START, END, MASK = range(5)  # below the numbers of words
MARKS = 5

_LARGEST = 1 << 26  # bytes of a file; the corpus has 1.5 million

_HEADINGS = ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"]

Pair = tuple[list[str], list[str]]


@dataclass(frozen=True)
class Row:
    """Two sentences as they are in a file.

    Attributes:
        label: 1 if each says what the other does, otherwise 0.
        first, second: the sentences.
    """

    label: int
    first: str
    second: str


class MissingSentences(BenchError):
    """No folder at hand has the corpus."""


@dataclass(frozen=True)
class Pairs:
    """Pairs of sentences, each as one input: start, the first sentence, end, the second, end, padding.

    Attributes:
        tokens: ``Int64[Tensor, "pairs length"]``, below ``MARKS`` what stands for no word.
        segments: ``Int64[Tensor, "pairs length"]``: 0 in the first sentence, 1 in the second.
        positions: ``Int64[Tensor, "pairs length"]``, counted from 1 in each sentence, so that words that a paraphrase
            leaves in their places have the same position in both.
    """

    tokens: Tensor
    segments: Tensor
    positions: Tensor

    def __len__(self) -> int:
        return len(self.tokens)

    def lengths(self) -> Tensor:
        """``Int64[Tensor, "pairs"]``, without the padding."""
        return (self.tokens != PADDING).sum(1)


@dataclass(frozen=True)
class Sentences:
    """The corpus.

    Attributes:
        vocabulary: how many numbers there are, ``MARKS`` of them for no word.
        train, held_out: the pairs that are trained on, and the others.
    """

    vocabulary: int
    train: Pairs
    held_out: Pairs

    def __str__(self) -> str:
        length = self.train.tokens.shape[1]
        return (
            f"MRPC ({len(self.train):,} pairs of sentences for training, {len(self.held_out):,} held out, those of up "
            f"to {length} words and marks; the {self.vocabulary - MARKS:,} most frequent words)"
        )


def load(vocabulary: int, length: int, data_root: Path | None = None) -> Sentences:
    """The corpus, of the folder ``data_root/mrpc``; default: ``ACTCORE_DATA``.

    Raises:
        MissingSentences: there is no such folder.
        BenchError: a file is damaged.
    """
    train, held_out = (read(file) for file in files(data_root))
    return numbered(train, held_out, vocabulary, length)


def files(data_root: Path | None = None) -> list[Path]:
    """Those to train on and to test on, of the folder ``data_root/mrpc``; default: ``ACTCORE_DATA``.

    Raises:
        MissingSentences: there is no such folder.
    """
    root = data_root or (Path(os.environ["ACTCORE_DATA"]) if os.environ.get("ACTCORE_DATA") else None)
    if root is None or not all((root / FOLDER / file).is_file() for file in FILES):
        where = f"in {root / FOLDER}" if root else "at hand: neither --data-root nor ACTCORE_DATA names a folder"
        raise MissingSentences(f"there is no {' and no '.join(FILES)} {where}; name a folder that has {FOLDER}/ in it")
    return [root / FOLDER / file for file in FILES]


def read(file: Path) -> list[Pair]:
    """The pairs of a file, in words.

    Raises:
        BenchError: it holds something else.
    """
    return [(words(row.first), words(row.second)) for row in rows(file)]


def rows(file: Path) -> list[Row]:
    """The pairs of a file: tab-separated, with a line of headings, UTF-8 with a byte-order mark.

    Raises:
        BenchError: it holds something else.
    """
    try:
        if (size := file.stat().st_size) > _LARGEST:
            raise BenchError(f"{file} must have at most {_LARGEST:,} bytes, got {size:,}; download it again")
        # No other character ends a line, and a quotation mark is one.
        headings, *found = (line.rstrip("\r").split("\t") for line in file.read_text("utf-8-sig").rstrip().split("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{file} cannot be read ({error}); download it again") from error
    if headings != _HEADINGS or not found or any(len(row) != len(_HEADINGS) for row in found):
        raise BenchError(f"{file} must hold tab-separated lines of {', '.join(_HEADINGS)}; download it again")
    if wrong := {row[0] for row in found} - {"0", "1"}:
        raise BenchError(f"{file} must have 0 or 1 in {_HEADINGS[0]}, got {min(wrong)!r}; download it again")
    return [Row(int(row[0]), row[3], row[4]) for row in found]


def words(sentence: str) -> list[str]:
    """Words and signs, in small letters."""
    return re.findall(r"\w+|[^\w\s]", sentence.lower())


def numbered(train: Sequence[Pair], held_out: Sequence[Pair], vocabulary: int, length: int) -> Sentences:
    """Pairs as numbers. Those that do not fit into ``length`` are left out; the vocabulary is of those trained on."""
    counts = Counter(word for pair in train for sentence in pair for word in sentence)
    numbers = {word: MARKS + place for place, (word, _) in enumerate(counts.most_common(vocabulary - MARKS))}
    return Sentences(vocabulary, *(_pairs(pairs, numbers, length) for pairs in (train, held_out)))


def _pairs(pairs: Iterable[Pair], numbers: dict[str, int], length: int) -> Pairs:
    inputs = []
    for first, second in pairs:
        one, two = ([numbers.get(word, UNKNOWN) for word in sentence] for sentence in (first, second))
        tokens = [START, *one, END, *two, END]
        padding = length - len(tokens)
        if padding >= 0:
            segments = [0] * (len(one) + 2) + [1] * (len(two) + 1)
            positions = [*range(len(one) + 2), *range(1, len(two) + 2)]
            inputs.append([some + [PADDING] * padding for some in (tokens, segments, positions)])
    return Pairs(*torch.tensor(inputs, dtype=torch.long).reshape(-1, 3, length).unbind(1))
