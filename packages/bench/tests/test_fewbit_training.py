"""The training of ``python -m bench fewbit``: sentences, masks, paired runs."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from bench.errors import BenchError
from bench.models import masked_bert as bert
from bench.models.data import mrpc as sentences
from bench.models.masked_bert import Masked
from bench.suites.fewbit import training

HEADINGS = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def test_words_are_numbered_by_frequency(corpus):
    found = sentences.load(8, 64, corpus)
    assert len(found.train) == 40
    assert len(found.held_out) == 10
    # "the" and the comma come three times a pair and have the numbers 5 and 6; of those that come twice, "cats" is the
    # first in the text and has 7. All others have 1.
    first = found.train.tokens[0]
    length = int(found.train.lengths()[0])
    assert first[:8].tolist() == [sentences.START, 5, 1, 7, 6, 1, 1, 6]
    assert first[length - 1] == sentences.END
    assert not first[length:].any()
    assert str(found).startswith("MRPC (40 pairs of sentences for training, 10 held out")


def test_both_sentences_count_their_positions_from_one(corpus):
    pairs = sentences.load(50, 64, corpus).train
    second = pairs.segments[0] == 1
    assert pairs.positions[0][second].tolist() == list(range(1, int(second.sum()) + 1))
    assert pairs.positions[0][0] == 0
    assert pairs.positions[0][1] == 1


def test_pairs_that_do_not_fit_are_left_out(corpus):
    longest = int(sentences.load(50, 64, corpus).train.lengths().max())
    assert len(sentences.load(50, longest, corpus).train) == 40
    assert len(sentences.load(50, longest - 1, corpus).train) == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"no headings\n", HEADINGS.encode() + b"\n", HEADINGS.encode() + b"\n1\t2\t3\ttoo few\n", b"\xff\xfe\x00"],
)
def test_a_damaged_corpus_is_refused(corpus, content):
    (corpus / sentences.FOLDER / sentences.FILES[1]).write_bytes(content)
    with pytest.raises(BenchError, match="download it again"):
        sentences.load(50, 64, corpus)


def test_a_missing_corpus_is_said_in_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    with pytest.raises(sentences.MissingSentences, match="neither --data-root nor ACTCORE_DATA"):
        sentences.load(50, 64)
    with pytest.raises(sentences.MissingSentences, match=f"there is no .* in {tmp_path}"):
        sentences.load(50, 64, tmp_path)


def test_only_known_words_are_holes(corpus):
    pairs = sentences.load(12, 64, corpus).train
    masked = Masked.of(pairs, 1.0, torch.Generator())
    assert torch.equal(masked.holes, pairs.tokens >= sentences.MARKS)
    some = Masked.of(pairs, 0.5, torch.Generator().manual_seed(0))
    # Binomial: 4 standard deviations of a part of 0.5 of n.
    n = int(masked.holes.sum())
    assert abs(int(some.holes.sum()) / n - 0.5) < 4 * 0.5 / n**0.5
    assert not (some.holes & ~masked.holes).any()


def test_the_entropy_is_that_of_the_frequencies():
    tokens = torch.tensor([[5, 5, 6, 7]])
    masked = Masked(sentences.Pairs(tokens, tokens, tokens), torch.ones_like(tokens, dtype=torch.bool))
    assert masked.entropy() == pytest.approx(1.5 * torch.log(torch.tensor(2.0)).item())


# training


@needs_transformers
def test_runs_of_a_seed_share_weights_order_masks_and_dropout(corpus, recipe):
    data = sentences.load(recipe.vocabulary, recipe.length, corpus)
    recipe = replace(recipe, dropout=0.1)
    exact, again, few_bits = (training.train(kind, 3, data, recipe) for kind in ("exact", "exact", "3 bits"))
    other = training.train("exact", 4, data, recipe)
    assert (exact.losses, exact.held_out) == (again.losses, again.held_out)
    assert exact.losses != other.losses
    assert len(exact.losses) == 2
    assert few_bits.losses != exact.losses
    # The forward is exact: the losses of the first step are the same, those of later ones are of other weights.
    one = replace(recipe, steps=1)
    first, same = (training.train(kind, 3, data, one) for kind in ("exact", "3 bits"))
    assert first.losses == same.losses


@needs_transformers
def test_the_words_to_guess_are_not_seen(corpus, recipe):
    data = sentences.load(recipe.vocabulary, recipe.length, corpus)
    model = bert.make(recipe, torch.full((recipe.vocabulary,), 1 / recipe.vocabulary))
    seen = []
    model.get_submodule("bert").register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"]), with_kwargs=True
    )
    masked = Masked.of(data.train, 0.5, torch.Generator().manual_seed(0))
    found = bert.losses(model, masked)
    assert len(found) == int(masked.holes.sum()) > 0
    assert (seen[0][masked.holes] == sentences.MASK).all()
    assert torch.equal(seen[0][~masked.holes], masked.pairs.tokens[~masked.holes])


@needs_transformers
def test_the_first_guess_is_by_frequency(corpus, recipe):
    data = sentences.load(recipe.vocabulary, recipe.length, corpus)
    torch.manual_seed(0)
    model = bert.make(recipe, torch.full((recipe.vocabulary,), 1 / recipe.vocabulary))
    assert torch.equal(model.get_parameter("cls.predictions.bias"), torch.full((20,), 1 / 20).log())
    assert model.training
    assert bert.losses(model, Masked.of(data.train, 0.5, torch.Generator())).isfinite().all()
