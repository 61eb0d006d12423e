"""Sentences made by a rule, good or bad: does more good than bad in them remain after ``not`` and ``very``?

    the plot was not dull and the music seemed very good but the end felt slow        good: +1 +2 -1
    the plot was not good and the music seemed fine but the end felt very slow        bad: -1 +1 -2

It asks what SST-2 asks, of sentences without ambiguity. Half of them are good, which is what who has learned nothing
reaches; who counts good and bad words and nothing else answers 62 %, and who knows the rule all.
"""

from __future__ import annotations

import random

SENTENCES = (4096, 1024)  # to train on, and held out

_NOUNS = ("plot", "music", "end", "cast", "scene", "story", "sound", "acting", "dialogue", "picture")
_VERBS = ("was", "seemed", "felt", "looked")
_GOOD = ("good", "fine", "fresh", "clever", "funny", "warm", "bright", "moving")
_BAD = ("bad", "dull", "slow", "silly", "cold", "empty", "weak", "stale")
_BETWEEN = ("and", "but", "while", "though")


def sentences() -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    """Sentences and labels, 1 for good ones, to train on and held out: the same at each call, none of them twice."""
    draw = random.Random(0)
    found: dict[str, int] = {}
    while len(found) < sum(SENTENCES):
        sentence, sum_of_clauses = _sentence(draw)
        # Labels in turn, so that each half has as many of both; where good and bad are even there is no answer.
        if sum_of_clauses and (sum_of_clauses > 0) == (len(found) % 2 == 0):
            found.setdefault(sentence, int(sum_of_clauses > 0))
    all_of_them = list(found.items())
    return all_of_them[: SENTENCES[0]], all_of_them[SENTENCES[0] :]


def _sentence(draw: random.Random) -> tuple[str, int]:
    clauses = [_clause(draw) for _ in range(draw.randint(2, 4))]
    text = clauses[0][0]
    for clause, _ in clauses[1:]:
        text += f" {draw.choice(_BETWEEN)} {clause}"
    return text, sum(value for _, value in clauses)


def _clause(draw: random.Random) -> tuple[str, int]:
    """Words, and what they add."""
    good, negated, much = (draw.random() < part for part in (0.5, 0.3, 0.3))
    value = (1 if good != negated else -1) * (2 if much else 1)
    words = ["the", draw.choice(_NOUNS), draw.choice(_VERBS), *["not"] * negated, *["very"] * much]
    return " ".join([*words, draw.choice(_GOOD if good else _BAD)]), value
