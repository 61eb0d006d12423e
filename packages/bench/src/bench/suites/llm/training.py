"""Part ``training``: a small Llama learns which word comes next. Runs of a seed share weights and batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.models.data import sentence_stream as words
from bench.models.decoders import SHAPES, Sizes, decoder
from bench.models.subject import Subject, own_loss
from bench.suites.llm.entries import Learned
from bench.ways import decoders as known
from bench.ways.general import PLAIN

WAYS = (PLAIN, "L1", "lean", known.CHUNKED, known.beside("lean"))
"""In which it is trained. In float32, in chunks, the loss is the plain one but for the order of sums: how far two
trainings part from that alone is the measure of all other differences."""

_POINTS = 20  # mean losses of a run, over as many parts of it
_TENTH = 10  # the last one of the steps is the end
_TESTED = 64  # rows that are held out
_CLIPPED = 1.0  # norm of the gradient, at most


@dataclass(frozen=True)
class Recipe:
    """AdamW, whose rate grows in the first tenth of the steps and then falls, both linearly.

    Attributes:
        vocabulary: words, at most.
        width, layers, heads, inner: of the Llama.
        rows, length: of a batch, in words.
        steps: of the training.
        rate: the most.
    """

    vocabulary: int = 4096
    width: int = 192
    layers: int = 4
    heads: int = 4
    inner: int = 512
    rows: int = 8
    length: int = 128
    steps: int = 300
    rate: float = 2e-3


RECIPE = Recipe()
QUICK = Recipe(vocabulary=256, width=32, layers=2, heads=2, inner=64, rows=4, length=32, steps=20)


def trained(blank: Learned, *, quick: bool = False, data_root: str | None = None) -> Learned:
    """Trains in one way with one seed, in this process.

    Args:
        blank: without numbers.
        quick: whether by ``QUICK``.
        data_root: folder with ``mrpc/``; default: ``ACTCORE_DATA``.
    """
    recipe = QUICK if quick else RECIPE
    return learned(blank, words.load(recipe.vocabulary, Path(data_root) if data_root else None), recipe)


def learned(blank: Learned, text: words.Text, recipe: Recipe) -> Learned:
    """Trains on a text by a recipe."""
    start = time.perf_counter()
    torch.manual_seed(blank.seed)
    sizes = Sizes(text.vocabulary, recipe.width, recipe.layers, recipe.heads, recipe.inner, torch.float32)
    model = decoder(SHAPES["llama"], sizes)
    batches = _batches(text.train, recipe, blank.seed)
    subject = Subject(model, next(batches), own_loss, str(sizes))
    forward, _ = known.WAYS[blank.way].ready(subject)
    optimizer = torch.optim.AdamW(model.parameters(), recipe.rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.rate, recipe.steps, pct_start=1 / _TENTH, anneal_strategy="linear", cycle_momentum=False
    )
    losses = []
    for _ in range(recipe.steps):
        optimizer.zero_grad()
        loss = own_loss(forward(**next(batches)))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), _CLIPPED)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    every = torch.stack(losses)
    return replace(
        blank,
        losses=[float(part.mean()) for part in every.tensor_split(min(_POINTS, len(every)))],
        end=float(every[-max(1, len(every) // _TENTH) :].mean()),
        held_out=_tested(model, text.held_out, recipe),
        seconds=time.perf_counter() - start,
    )


def _batches(stream: Tensor, recipe: Recipe, seed: int) -> Iterator[dict[str, Tensor]]:
    """Rows from random places of a text, without end."""
    generator = torch.Generator().manual_seed(seed)
    rows = stream.unfold(0, recipe.length, 1)
    while True:
        yield _row(rows[torch.randint(len(rows), (recipe.rows,), generator=generator)])


def _row(ids: Tensor) -> dict[str, Tensor]:
    return {"input_ids": ids, "labels": ids}


@torch.no_grad()
def _tested(model: nn.Module, stream: Tensor, recipe: Recipe) -> float:
    """The mean loss of rows of a text, one behind another."""
    model.eval()
    rows = stream.unfold(0, recipe.length, recipe.length)[:_TESTED]
    losses = [own_loss(model(**_row(some))) for some in rows.split(recipe.rows)]
    return float(torch.stack(losses).mean())
