"""``python -m bench text`` before anything is trained: sentences, metrics, ways, and what is known of a task."""

import argparse
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bench.errors import BenchError, MissingLibrary
from bench.models import glue_networks as models
from bench.models.data import encoding, glue
from bench.models.data import mrpc as sentences
from bench.models.data.glue import GENERATED, TASKS, Part, Texts
from bench.suites.text.report import PUBLISHED
from bench.suites.text.training import METRICS, task_facts
from bench.ways import text as ways

HEADINGS = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"


def test_mrpc_comes_from_the_folder(corpus):
    for task in ("mrpc", "auto"):
        found = glue.load(task, corpus)
        assert found.task == "mrpc"
        assert len(found.train.labels) == 40
        assert len(found.held_out.labels) == 10
        assert found.train.sentences[3][0] == 'The 3 cats, said Ann, "sat" on the mat.'
        assert set(found.train.labels) == {1}


def test_what_is_not_at_hand_is_generated_or_said(monkeypatch, tmp_path):
    monkeypatch.delenv("ACTCORE_DATA", raising=False)
    said = []
    assert glue.load("auto", None, said.append).task == GENERATED
    assert "Generated sentences are used: there is no msr_paraphrase" in said[0]
    with pytest.raises(sentences.MissingSentences, match=f"in {tmp_path}"):
        glue.load("auto", tmp_path)  # named by hand: nothing else is taken in its place
    with pytest.raises(BenchError, match=r"task must be one of auto, cola, .*, got 'imdb'"):
        glue.load("imdb")


@pytest.mark.parametrize("row", ["2\t1\t2\ta\tb", "1\t1\t2\ta", "one\t1\t2\ta\tb"])
def test_a_damaged_corpus_is_refused(corpus, row):
    (corpus / sentences.FOLDER / sentences.FILES[0]).write_text(f"{HEADINGS}\n{row}\n")
    with pytest.raises(BenchError, match="download it again"):
        glue.load("mrpc", corpus)


def hub(monkeypatch, load_dataset):
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))


def test_glue_comes_from_the_hub(monkeypatch):
    rows = {"premise": ["a", "b"], "hypothesis": ["c", "d"], "label": [2, 0]}
    asked = []

    def load_dataset(*names):
        asked.append(names)
        return {"train": rows, "validation_mismatched": rows}

    hub(monkeypatch, load_dataset)
    found = glue.load("mnli-mm")
    assert asked == [("nyu-mll/glue", "mnli")]
    assert found.held_out.sentences == [("a", "c"), ("b", "d")]
    assert found.held_out.labels == [2, 0]


def test_a_hub_that_refuses_is_said_with_the_way_out(monkeypatch):
    def refuses(*names, **options):
        raise ConnectionError("no route\nadvice of others")

    hub(monkeypatch, refuses)
    with pytest.raises(
        glue.NotAtHand, match=r"cola cannot be downloaded from the hub \(ConnectionError: no route\).*--task"
    ):
        glue.load("cola")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingLibrary, match="datasets cannot be imported"):
        glue.load("cola")
    auto = SimpleNamespace(from_pretrained=refuses)
    library = SimpleNamespace(AutoModelForSequenceClassification=auto, AutoTokenizer=auto)
    monkeypatch.setattr(models, "needs", lambda name: library)
    for ask in (
        lambda: models.pretrained(models.NETWORKS["base"], 2),
        lambda: models.tokenizer(models.NETWORKS["base"]),
    ):
        with pytest.raises(glue.NotAtHand, match=r"bert-base-uncased cannot be downloaded.*--random-weights"):
            ask()


def test_generated_sentences_follow_the_rule():
    train, held_out = glue.generate_sentences()
    assert (len(train), len(held_out)) == glue.SENTENCES
    assert sum(label for _, label in train) == len(train) // 2
    assert not {sentence for sentence, _ in train} & {sentence for sentence, _ in held_out}
    right = 0
    for sentence, label in held_out:
        value, sign, size, without = 0, 1, 1, 0
        for word in sentence.split():
            if word in ("the", "and", "but"):
                sign, size = 1, 1
            sign = -sign if word == "not" else sign
            size = 2 if word == "very" else size
            plain = (word in glue._GOOD) - (word in glue._BAD)
            value += plain * sign * size
            without += plain
        assert (value > 0) == label
        right += 0.5 if without == 0 else (without > 0) == label
    assert round(100 * right / len(held_out)) == 62  # as the module says; the sentences are the same at each call


def test_metrics_have_the_values_of_hand():
    labels, guesses = np.array([1, 1, 1, 0, 0, 0, 0, 0]), np.array([1, 1, 0, 1, 0, 0, 0, 0])
    # Two true positives, one false, one missed, four true negatives.
    assert METRICS["accuracy"](labels, guesses) == 75
    assert math.isclose(METRICS["f1"](labels, guesses), 100 * 4 / 6)
    assert math.isclose(METRICS["matthews"](labels, guesses), 100 * (2 * 4 - 1) / (3 * 3 * 5 * 5) ** 0.5)
    numbers = np.array([0.0, 1.0, 2.0, 4.0])
    assert math.isclose(METRICS["pearson"](numbers, np.array([0.0, 2.0, 1.0, 4.0])), 100 * 7.75 / 8.75)
    assert math.isclose(METRICS["spearman"](numbers, np.array([0.0, 2.0, 1.0, 40.0])), 80)  # 1 - 6 * 2 / (4 * 15)


def test_guesses_that_are_all_alike_have_no_correlation():
    for name in ("matthews", "pearson", "spearman"):
        assert METRICS[name](np.array([0, 1, 1]), np.array([1, 1, 1])) == 0


def test_who_has_learned_nothing():
    part = Part([("a",)] * 4, [1, 1, 1, 0])
    found = task_facts(Texts("mrpc", "", part, part))
    assert found.majority["accuracy"] == 75
    assert math.isclose(found.majority["f1"], 100 * 6 / 7)
    assert math.isclose(found.frequency_loss, -(3 * math.log(4 / 6) + math.log(2 / 6)) / 4)
    numbers = Part([("a", "b")] * 2, [1.0, 3.0])
    found = task_facts(Texts("stsb", "", numbers, numbers))
    assert found.majority == {"pearson": 0.0, "spearman": 0.0}
    assert found.frequency_loss == 1


def test_words_are_numbered_and_long_sentences_are_cut():
    part = Part([("a b a", "c c c c c a")], [1])
    found = encoding.by_words(Texts("mrpc", "", part, part), 2, 7, 9).train
    # The vocabulary has two words, c and a, with the numbers 5 and 6; the second sentence loses its end.
    expected = [sentences.START, 6, 1, 6, sentences.END, 5, 5, 5, sentences.END]
    assert found.inputs["input_ids"].tolist() == [expected]
    assert found.inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1, 1]]
    assert found.inputs["position_ids"].tolist() == [[0, 1, 2, 3, 4, 1, 2, 3, 4]]
    assert "token_type_ids" not in encoding.by_words(Texts("mrpc", "", part, part), 2, 7, 9, False).train.inputs


def test_a_batch_has_no_padding_that_all_have():
    part = Part([("a",), ("a a a",), ("a a",)], [0.0, 1.0, 2.5])
    found = encoding.by_words(Texts("stsb", "", part, part), 1, 7, 9).train
    batch = found.batch(torch.tensor([0, 2]), torch.device("cpu"))
    assert batch["input_ids"].shape == (2, 4)
    assert batch["labels"].tolist() == [0, 2.5]


def test_ways_have_names():
    for name in (
        *ways.DEFAULT,
        *ways.QUICK,
        *ways.FEWBIT,
        *(sketch["way"] for sketch in PUBLISHED["sketches"]),
        "L1 + gelu 1 bit",
    ):
        assert ways.way(name) == name
    for name in ("L9", "gelu 0 bits", "linear 0 % dct", "linear 20 % svd", "L1 + L2", "plain + L1", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="a level such as L1"):
            ways.way(name)
    assert all(not one["way"] or ways.way(one["way"]) for one in PUBLISHED["throughputs"])


def test_every_task_has_its_metrics():
    assert set(TASKS) == {"cola", "mnli", "mnli-mm", "mrpc", "qnli", "qqp", "rte", "sst2", "stsb", "wnli", GENERATED}
    assert all(name in METRICS for task in TASKS.values() for name in task.metrics)
