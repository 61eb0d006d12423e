"""``python -m bench llm --part training``: sentences as one text, and a Llama that learns it."""

import math
from dataclasses import replace

import pytest
import torch

from bench.cli import main, suites
from bench.errors import BenchError
from bench.models.data import sentence_stream as words
from bench.suites.llm import training
from bench.suites.llm.entries import Learned
from bench.suites.llm.training import QUICK, WAYS, learned
from bench.ways.decoders import CHUNKED
from bench.ways.general import PLAIN


@pytest.fixture(scope="module")
def text():
    """A word of four is followed by the next of them, so that all but the first can be known."""
    return words.Text("counting", 4, torch.arange(4).repeat(100), torch.arange(4).repeat(40))


def test_a_text_of_sentences(corpus):
    text = words.load(1000, corpus)
    # 40 pairs of two sentences: "the 0 cats , said ann , "sat" on the mat ." and "on the mat sat 0 cats , ann said ."
    one, other = 14, 10
    assert len(text.train) == 40 * (one + 1 + other + 1)
    assert text.vocabulary == int(text.train.max()) + 1  # all words are known
    assert text.guess == math.log(text.vocabulary)
    assert (text.train == text.train[one]).sum() == 80  # one mark behind each sentence
    few = words.load(10, corpus)
    assert few.vocabulary == 10
    assert few.train.max() == 9
    assert len(few.train) == len(text.train)


def test_without_a_corpus_there_are_generated_sentences(monkeypatch, tmp_path):
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    text = words.load(64)
    assert "generated sentences" in str(text)
    assert text.vocabulary < 64  # there are no more words
    with pytest.raises(BenchError, match="there is no msr_paraphrase_train"):
        words.load(64, tmp_path)


def test_a_loss_falls_and_ways_are_paired(text):
    recipe = replace(QUICK, steps=30, rate=1e-2)
    plain, again, other = (learned(Learned(PLAIN, seed), text, recipe) for seed in (0, 0, 1))
    assert plain.losses[0] == pytest.approx(text.guess, abs=0.3)  # weights that are drawn know nothing
    assert plain.end < text.guess / 2
    assert plain.held_out < text.guess / 2
    assert len(plain.losses) == 20
    assert (again.losses, again.end, again.held_out) == (plain.losses, plain.end, plain.held_out)
    assert other.losses != plain.losses
    chunked = learned(Learned(CHUNKED, 0), text, recipe)
    # The first part is of two steps: the same loss and, but for the order of sums in float32, the same gradient.
    assert chunked.losses[0] == pytest.approx(plain.losses[0], abs=1e-5)


def test_the_command_trains_and_is_taken_up(monkeypatch, corpus, tmp_path):
    monkeypatch.setattr(
        "bench.suites.llm.command.in_child", lambda function, one, **options: function(one, **told(options))
    )
    monkeypatch.setattr(training, "QUICK", replace(QUICK, steps=3, vocabulary=32))
    file = tmp_path / "llm.json"
    command = ["llm", "--part", "training", "--quick", "--seeds", "2", "--threads", "1", "--data-root", str(corpus)]
    assert main.main([*command, "--json", str(file)]) == 0
    results = suites.load(file)
    assert [(one.seed, one.way) for one in results.of(Learned)] == [(seed, way) for seed in (0, 1) for way in WAYS]
    assert all(one.end and one.held_out and not one.failure for one in results.of(Learned))
    assert results.settings["recipe"]["guess"] == math.log(32)
    monkeypatch.setattr(training, "trained", lambda *_, **__: pytest.fail("it is trained again"))
    assert main.main([*command, "--json", str(file)]) == 0


def told(options):
    """Without what is for a process of its own."""
    return {name: value for name, value in options.items() if name != "threads"}
