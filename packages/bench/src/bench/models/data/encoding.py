"""Sentences as numbers: by their words, or by a pretrained network's tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bench.models.data.glue import Part, Texts
from bench.models.data.mrpc import END, MARKS, PADDING, START, UNKNOWN, words

_MASK = "attention_mask"


@dataclass(frozen=True)
class Examples:
    """Sentences as a network takes them.

    Attributes:
        inputs: ``Int64[Tensor, "examples length"]`` each, by the names of the network's arguments.
        labels: ``Int64[Tensor, "examples"]``: classes; or numbers, as float32.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, places: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Some of them, without the padding that all of these have."""
        length = int(self.inputs[_MASK][places].sum(1).max())
        chosen = {name: values[places, :length].to(device) for name, values in self.inputs.items()}
        return {**chosen, "labels": self.labels[places].to(device)}


@dataclass(frozen=True)
class Encoded:
    """A task's sentences as numbers.

    Attributes:
        vocabulary: how many numbers of words there are.
        train, held_out: to train on, and to test on.
    """

    vocabulary: int
    train: Examples
    held_out: Examples


def by_words(texts: Texts, classes: int, vocabulary: int, length: int, segments: bool = True) -> Encoded:
    """The most frequent words of the sentences that are trained on have numbers, the others share one.

    Positions count from 1 in each sentence of a pair, so that what a paraphrase leaves in its place has the same
    position in both.

    Args:
        texts: the sentences.
        classes: of the labels; 1 for numbers.
        vocabulary: how many numbers there are at most.
        length: of one or two sentences with the marks between, at most: the ends of longer ones are cut off.
        segments: whether the network is told which sentence a word is of.
    """
    split = [[tuple(map(words, given)) for given in part.sentences] for part in (texts.train, texts.held_out)]
    counts = Counter(word for given in split[0] for sentence in given for word in sentence)
    numbers = {word: MARKS + place for place, (word, _) in enumerate(counts.most_common(vocabulary - MARKS))}
    train, held_out = (
        Examples(_numbered(given, numbers, length, segments), _labels(part, classes))
        for given, part in zip(split, (texts.train, texts.held_out), strict=True)
    )
    return Encoded(MARKS + len(numbers), train, held_out)


def by_tokenizer(texts: Texts, classes: int, tokenizer: Any, length: int) -> Encoded:
    """As a pretrained network knows them.

    Args:
        texts: the sentences.
        classes: of the labels; 1 for numbers.
        tokenizer: of transformers.
        length: of one or two sentences with the marks between, at most, in tokens: the ends of longer ones are cut off.
    """

    def examples(part: Part) -> Examples:
        columns = [list(column) for column in zip(*part.sentences, strict=True)]
        found = tokenizer(*columns, truncation=True, padding="longest", max_length=length, return_tensors="pt")
        return Examples(dict(found), _labels(part, classes))

    return Encoded(len(tokenizer), examples(texts.train), examples(texts.held_out))


def _numbered(
    given: Sequence[Sequence[list[str]]], numbers: Mapping[str, int], length: int, segments: bool
) -> dict[str, Tensor]:
    columns: dict[str, list[list[int]]] = {"input_ids": [], "token_type_ids": [], "position_ids": [], _MASK: []}
    for sentences in given:
        tokens, of_sentence, positions = [START], [0], [0]
        for segment, sentence in enumerate(_cut(sentences, length)):
            tokens += [*(numbers.get(word, UNKNOWN) for word in sentence), END]
            of_sentence += [segment] * (len(sentence) + 1)
            positions += range(1, len(sentence) + 2)
        padding = [PADDING] * (length - len(tokens))
        for name, values in zip(columns, (tokens, of_sentence, positions, [1] * len(tokens)), strict=True):
            columns[name].append(values + padding)
    if not segments:
        del columns["token_type_ids"]
    return {name: torch.tensor(rows, dtype=torch.long) for name, rows in columns.items()}


def _cut(sentences: Sequence[list[str]], length: int) -> list[list[str]]:
    """Words are taken from the end of the longest sentence until all fit, marks included."""
    lengths = [len(sentence) for sentence in sentences]
    while sum(lengths) + len(lengths) + 1 > length:
        lengths[lengths.index(max(lengths))] -= 1
    return [sentence[:most] for sentence, most in zip(sentences, lengths, strict=True)]


def _labels(part: Part, classes: int) -> Tensor:
    return torch.tensor(part.labels, dtype=torch.float32 if classes == 1 else torch.long)
