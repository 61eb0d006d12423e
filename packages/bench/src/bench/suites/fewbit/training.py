"""Part ``training``: a small BERT with a 3-bit GELU, alone and at level L1, beside the exact one.

Runs of a seed share initial weights, order of the pairs, masks and dropout.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bench.models.data.mrpc import MARKS, Pairs, Sentences
from bench.models.masked_bert import Masked, Recipe, losses, make
from bench.suites.fewbit.entries import COMPRESSED, CONTROL, EXACT, FEW_BITS, BertRun
from bench.ways.roberta import BITS
from integrations import compress_model, fewbit

KINDS = (EXACT, FEW_BITS, COMPRESSED)
SEEDS = 5  # paired runs, by default and to be judged
STRIDE = 100  # steps whose mean loss is one of a run's numbers
CLIPPED = 1.0  # norm of the gradient, at most
BETAS, WEIGHT_DECAY = (0.9, 0.98), 0.01

_HELD_OUT_SEED = 1  # of the masks of what is held out, the same for all runs
_SORTED_BATCHES = 16  # among which pairs are sorted by length, so that little is padding


class Guesses(nn.Module):
    """The network and its loss as one forward, so that compression sees all of it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, masked: Masked) -> Tensor:
        """``Float32[Tensor, "holes"]``: see ``losses``."""
        return losses(self.network, masked)


def runs(seeds: int) -> list[tuple[str, int]]:
    """Kind and seed of every run, in order."""
    return [*((kind, seed) for seed in range(seeds) for kind in KINDS), (CONTROL, 0)]


def held_out(sentences: Sentences, recipe: Recipe) -> Masked:
    """The pairs that are not trained on, with the same holes at each call."""
    return Masked.of(sentences.held_out, recipe.masked, torch.Generator().manual_seed(_HELD_OUT_SEED))


def train(kind: str, seed: int, sentences: Sentences, recipe: Recipe) -> BertRun:
    """Trains a BERT from scratch.

    Args:
        kind: of ``KINDS``, or ``CONTROL``.
        seed: of weights, order, masks and dropout.
        sentences: to train on, and to test on.
        recipe: of the network and the training.
    """
    start = time.perf_counter()
    found: list[float] = []
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = Guesses(make(recipe, _frequencies(sentences.train, recipe)))
        if kind == FEW_BITS:
            fewbit.convert(model, bits=BITS)
        elif kind == COMPRESSED:
            compress_model(model, "L1", activations=BITS, seed=seed, strict=True)
        torch.manual_seed(seed)  # of dropout: converting may have drawn
        optimizer = torch.optim.AdamW(model.parameters(), recipe.rate, BETAS, weight_decay=WEIGHT_DECAY, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1, (step + 1) / recipe.warm_up) * (1 - step / recipe.steps)
        )
        batches = _batches(sentences.train, recipe, torch.Generator().manual_seed(seed))
        recent: list[float] = []
        for step in range(1, recipe.steps + 1):
            optimizer.zero_grad()
            loss = model(next(batches)).mean()
            loss.backward()
            if kind == CONTROL:
                for parameter in model.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            nn.utils.clip_grad_norm_(model.parameters(), CLIPPED)
            optimizer.step()
            schedule.step()
            recent.append(loss.item())
            if step % STRIDE == 0 or step == recipe.steps:
                found.append(sum(recent) / len(recent))
                recent.clear()
        last = _mean_loss(model, held_out(sentences, recipe))
    return BertRun(kind, seed, found, last, time.perf_counter() - start)


def _frequencies(pairs: Pairs, recipe: Recipe) -> Tensor:
    counts = pairs.tokens[pairs.tokens >= MARKS].bincount(minlength=recipe.vocabulary).float()
    return (counts + 0.1) / counts.sum()  # what does not occur is not impossible


def _batches(pairs: Pairs, recipe: Recipe, generator: torch.Generator) -> Iterator[Masked]:
    """Batches without end, each of pairs of much the same length, with new holes each time."""
    lengths = pairs.lengths()
    while True:
        masked = Masked.of(pairs, recipe.masked, generator)
        order = torch.randperm(len(pairs), generator=generator)
        batches = [
            batch
            for some in order.split(_SORTED_BATCHES * recipe.batch)
            for batch in some[lengths[some].argsort(stable=True)].split(recipe.batch)
        ]
        for place in torch.randperm(len(batches), generator=generator).tolist():
            batch = masked[batches[place]]
            if batch.holes.any():  # a small batch of short pairs may have none
                yield batch


@torch.no_grad()
def _mean_loss(model: nn.Module, masked: Masked) -> float:
    model.eval()
    found = [model(masked[places]) for places in torch.arange(len(masked.holes)).split(64)]
    return float(torch.cat(found).mean())
