"""The runs of ``python -m bench text``: pairs, cells, what is taken up, and what is said of it."""

import json
from argparse import Namespace
from dataclasses import replace
from functools import partial

import pytest
import torch

from bench.cli import main, suites
from bench.errors import DoesNotApply
from bench.models import glue_networks as models
from bench.models.data import encoding, glue
from bench.models.data import mrpc as sentences
from bench.models.data.glue import GENERATED, TASKS
from bench.models.glue_networks import NETWORKS, Network
from bench.results.record import Record, save
from bench.runner.child import here, in_child
from bench.suites.text import cell as cells
from bench.suites.text import command as measure
from bench.suites.text import training
from bench.suites.text.entries import Cell, Facts, Run
from bench.suites.text.training import Recipe
from bench.ways import text as ways
from bench.ways.general import PLAIN
from bench.ways.text import CONTROL, EACH_BLOCK

from .rendering import MACHINE, panels, words

CPU = torch.device("cpu")
SMALL = Network(1, 32, 2, 200, length=32, batches=(8, 8), deviation=0.05)
RECIPE = Recipe(batch=8, rate=1e-2, epochs=1, length=32, steps=12, words=True)
BOTH = "gelu 3 bits + linear 20 % gaussian"


@pytest.fixture(scope="module")
def encoded():
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    found = glue.load(GENERATED)
    few = replace(found, train=glue.Part(found.train.sentences[:96], found.train.labels[:96]))
    few = replace(few, held_out=glue.Part(found.held_out.sentences[:32], found.held_out.labels[:32]))
    return encoding.by_words(few, 2, SMALL.vocabulary, SMALL.length)


@pytest.fixture(scope="module")
def train(encoded):
    build = partial(models.from_scratch, SMALL, 2, encoded.vocabulary)

    def trained(way, seed=0):
        return training.train(Run("tiny", GENERATED, way, seed), build, TASKS[GENERATED], encoded, RECIPE, CPU)

    return trained


@pytest.fixture(scope="module")
def plain(train):
    return train(PLAIN)


def test_runs_of_a_seed_are_pairs_bit_for_bit(train, plain):
    torch.rand(3)  # whatever torch's generator has been through
    again = train(PLAIN)
    assert replace(again, seconds=0) == replace(plain, seconds=0)
    assert train(PLAIN, seed=1).losses != plain.losses
    # It recomputes what plain keeps, with the same dropout: no bit is another.
    recomputed = train(EACH_BLOCK)
    assert recomputed.losses == plain.losses
    assert recomputed.held_out == plain.held_out


def test_what_a_way_draws_changes_no_dropout(train, plain, monkeypatch):
    ready = ways.ready

    def drawing(*asked):
        forward, surroundings = ready(*asked)

        def forward_and_draw(**batch):
            output = forward(**batch)
            torch.rand(1)
            return output

        return forward_and_draw, surroundings

    monkeypatch.setattr(ways, "ready", drawing)
    assert train(PLAIN).losses == plain.losses


def test_the_control_learns_nothing(train, plain):
    control = train(CONTROL)
    # In the first step both have the same weights; with gradients of zero only weight decay changes any.
    assert control.losses[0] == plain.losses[0]
    assert control.losses[1:] != plain.losses[1:]
    assert control.original_bytes is None


@pytest.mark.parametrize("way", ["L1", "L2", BOTH])
def test_a_way_stores_less_and_begins_as_plain_does(train, plain, way):
    found = train(way)
    assert found.losses[0] == plain.losses[0]  # forwards are exact
    assert found.losses != plain.losses
    assert found.stored_bytes < plain.original_bytes
    assert set(found.metrics) == {"accuracy"}


def test_the_rate_rises_and_falls():
    recipe = Recipe(8, 1.0, 1, 32, warm_up=0.2)
    rates = [training._part_of_rate(done, 10, recipe) for done in range(11)]
    assert rates == [0.5, 1, 1, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8, 0]
    assert Recipe(8, 1.0, 3, 32).count(20) == 9
    assert Recipe(8, 1.0, 3, 32, steps=4).count(20) == 4


def test_memory_and_time_of_a_cell(monkeypatch):
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    monkeypatch.setitem(vars(cells), "NETWORKS", {"tiny": SMALL})
    blank = Cell("tiny", "L1", 8, 16)
    found = here(cells.measure, blank, memory=True, rounds=2, device="cpu")
    assert not found.failure
    assert len(found.seconds) == len(found.plain_seconds) == 2
    reference = here(cells.measure, replace(blank, way=PLAIN), memory=True, rounds=0, device="cpu")
    assert 0 < found.stored_bytes < reference.original_bytes
    assert not reference.seconds
    monkeypatch.setattr(cells, "from_scratch", lambda *_: 1 / 0)
    assert "ZeroDivisionError" in here(cells.measure, blank, memory=True, rounds=0, device="cpu").failure


def test_the_process_of_a_cell_counts_bytes():
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    found = in_child(cells.measure, Cell("tiny", "L1", 8, 16), memory=True, rounds=0, device="cpu", threads=1)
    assert not found.failure
    assert found.stored_bytes > 0
    if not found.not_measured:
        # What the report says is stored lives, and besides it the result and the graph: less than as much again.
        assert found.stored_bytes <= found.live_bytes < 2 * found.stored_bytes
        assert found.peak_bytes > 0
        assert found.whole_bytes > 0


def test_networks_are_the_published_ones():
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    # Parameters of BERT-base and -large with two classes, and of RoBERTa-base but for its 514 - 129 other positions.
    expected = {"base": 109_483_778, "large": 335_143_938, "roberta": 124_647_170 - (514 - 129) * 768}
    for name, count in expected.items():
        with torch.device("meta"):
            model = models.from_scratch(NETWORKS[name], 2)
        assert sum(parameter.numel() for parameter in model.parameters()) == count
        assert len(models.blocks(model)) == NETWORKS[name].layers


def stand_ins(monkeypatch, asked, failing=()):
    def trained(blank, *_):
        asked.append((blank.task, blank.way, blank.seed))
        if blank.way in failing:
            raise MemoryError("no room")
        if blank.way == EACH_BLOCK:
            raise DoesNotApply("no blocks")
        return replace(blank, losses=[0.5], held_out=0.5, metrics=dict.fromkeys(TASKS[blank.task].metrics, 60.0))

    def measured(function, blank, *, memory, rounds, device, threads):
        assert function is cells.measure
        asked.append((blank.way, memory, rounds))
        found = replace(blank, live_bytes=100, peak_bytes=100) if memory else blank
        return replace(found, seconds=[1.0] * rounds, plain_seconds=[1.0] * rounds) if rounds else found

    monkeypatch.setattr(training, "train", trained)
    monkeypatch.setattr(measure, "in_child", measured)


def test_a_run_is_taken_up_and_what_failed_is_tried_again(monkeypatch, tmp_path, capsys, corpus):
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    file, asked = tmp_path / "out.json", []
    stand_ins(monkeypatch, asked, failing=("L2",))
    command = ["text", "--task", "mrpc", "--data-root", str(corpus), "--way", "L2", "--way", EACH_BLOCK, "--seeds", "1"]
    command += ["--threads", "1", "--json", str(file), "--rounds", "2"]
    assert main.main(command) == 0
    assert asked == [
        *(("mrpc", way, 0) for way in (PLAIN, "L2", EACH_BLOCK)),
        *((way, True, 2) for way in (PLAIN, "L2", EACH_BLOCK)),
    ]
    assert "failed: MemoryError: no room" in " ".join(capsys.readouterr().out.split())
    asked.clear()
    assert main.main(command) == 0
    assert asked == [("mrpc", "L2", 0)]
    asked.clear()
    assert main.main([*command, "--rounds", "3", "--part", "time"]) == 0
    assert asked == [(way, False, 3) for way in (PLAIN, "L2", EACH_BLOCK)]
    asked.clear()
    assert main.main([*command, "--epochs", "3"]) == 1
    assert "with other settings" in capsys.readouterr().err
    # MRPC under the same name, but with other pairs.
    for part in sentences.FILES:
        kept = (corpus / sentences.FOLDER / part).read_text("utf-8-sig").splitlines()[:-1]
        (corpus / sentences.FOLDER / part).write_text("\n".join(kept) + "\n", "utf-8")
    assert main.main([*command, "--seeds", "2"]) == 1
    assert "runs on other sentences of mrpc (MRPC as first published (40 for" in capsys.readouterr().err
    assert main.main([*command[:-4], "--threads", "2", "--json", str(file)]) == 1
    assert "another number of threads" in capsys.readouterr().err
    assert not asked


def test_what_is_not_at_hand_is_left_out_and_said(monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    asked = []
    stand_ins(monkeypatch, asked)

    def refused(task):
        raise glue.NotAtHand(f"the sentences of {task} cannot be downloaded from the hub")

    monkeypatch.setattr(glue, "_glue", refused)
    command = ["text", "--part", "accuracy", "--way", "L1", "--seeds", "1", "--task", "cola"]
    assert main.main(command) == 1  # nothing at all
    assert "cola: the sentences of cola cannot be downloaded" in capsys.readouterr().err
    assert main.main([*command, "--task", GENERATED]) == 0
    assert "Left out: cola: the sentences of cola" in " ".join(capsys.readouterr().out.split())
    assert asked == [(GENERATED, PLAIN, 0), (GENERATED, "L1", 0)]


def run(way, seed, held_out, **fields):
    return Run("tiny", GENERATED, way, seed, {}, [held_out], held_out, {"accuracy": 100 * (1 - held_out)}, **fields)


RUNS = [
    run(PLAIN, 0, 0.10, original_bytes=1000),
    run(PLAIN, 1, 0.20, original_bytes=1000),
    run(CONTROL, 0, 0.70),
    run(CONTROL, 1, 0.81),
    run("L1", 0, 0.12, stored_bytes=200),
    run("L1", 1, 0.20, stored_bytes=200),
    Run("tiny", GENERATED, "L2", 0, failure="it ended"),
]
CELLS = [
    Cell("large", PLAIN, 16, 128, 2**30, None, 2**30, 2**30, 2**31, [1.0], [1.0]),
    Cell("large", "L2", 16, 128, None, 2**28, 2**28, 2**29, 2**30, [1.25], [1.0]),
    Cell("base", "linear 20 % dct", 8, 128, seconds=[3.0], plain_seconds=[2.0]),
    Cell("base", EACH_BLOCK, 8, 128, does_not_apply="no blocks"),
]


def recorded(runs=RUNS, cells=CELLS):
    facts = Facts(GENERATED, "generated sentences", {"accuracy": 50.0}, 0.693, 100.0)
    return Record("text", MACHINE, {"device": "cpu"}, [facts, *runs, *cells], ["cola: no network"])


RESULTS = recorded()


def test_the_report_has_differences_and_published_figures(tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    save(RESULTS, file)
    assert suites.load(file) == RESULTS
    assert json.loads(file.read_text())["kind"] == "text"
    assert main.main(["show", str(file), "--chart", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = text_of(RESULTS)
    # Differences 0.02 and 0: the mean 0.01, Student's 12.706 times 0.01.
    assert "L1 2 84.0 ± 5.7 -1.00 [-13.71, +11.71] 0.160 ± 0.057 +0.0100 [-0.1171, +0.1371] 5.0" in text
    assert "failed: it ended" in text
    assert "(one answer for all) 50.0 0.693" in text
    assert "losses tell runs whose gradients are zero from plain ones" in text
    assert "L2 256.0 4.0 256.0 512.0 50 1,024.0 50" in text
    assert "large, 4 bits, automatic 16 15.41 0.87 L2 16 12.80 0.80" in text
    assert "linear 20 % dct 58.81 1.90 1.50" in text
    assert "Left out: cola: no network" in text


def test_a_plain_step_takes_its_own_time():
    """Beside another plain one it took 0.91 of it, which is noise."""
    assert Cell("base", PLAIN, 4, 128, seconds=[1.0], plain_seconds=[1.1]).ratio == 1.0
    assert Cell("base", PLAIN, 4, 128).ratio is None
    assert Cell("base", "L1", 4, 128, seconds=[1.0], plain_seconds=[2.0]).ratio == 0.5


def test_only_what_was_trained_as_published_stands_beside_it():
    """Quick runs, and networks trained from scratch, stood beside fine-tuned ones, and 32 tokens beside 128."""
    sketch = "linear 20 % dct"
    runs = [
        Run("roberta", "cola", sketch, seed, {"words": words, "steps": steps}, [1.0], 1.0, {"matthews": score})
        for seed, words, steps, score in ((0, False, 0, 51.0), (1, True, 0, 1.0), (2, False, 30, 3.0))
    ]
    assert f"{sketch} 58.81 51.00 1.90" in text_of(recorded(runs, []))
    assert "FewBit: CoLA" not in text_of(recorded(runs[1:], []))
    short = [replace(cell, length=32) for cell in CELLS]
    assert "GACT: training" not in text_of(recorded(cells=short))
    text = text_of(recorded(cells=[*short, *CELLS[1:]]))
    assert "large, 4 bits, automatic 16 15.41 0.87 L2 16 12.80 0.80" in text
    assert "large, full precision 16 17.66 plain" not in text


def text_of(results):
    return words(results, 200)


def test_a_way_that_stores_more_than_plain_is_in_the_chart():
    """It was cut off at 115 %."""
    plain = next(run for run in RUNS if run.original_bytes)
    more = [replace(run, stored_bytes=2 * plain.original_bytes) if run.stored_bytes else run for run in RUNS]
    assert any(x >= 200 for series in panels(recorded(more))[0].series for x in series.x)


def test_a_chart_of_nothing_is_refused(tmp_path, capsys):
    file = tmp_path / "out.json"
    save(recorded(RUNS[:2]), file)
    assert main.main(["show", str(file), "--chart", str(tmp_path / "out.png")]) == 1
    assert "nothing to draw" in capsys.readouterr().err


def test_recipes_are_those_of_the_references():
    options = Namespace(random_weights=False, batch=None, rate=None, epochs=None, quick=False)
    found = measure.recipe(options, "base", "rte")
    assert (found.batch, found.rate, found.epochs, found.weight_decay, found.words) == (16, 2e-5, 10, 0.1, False)
    assert measure.recipe(options, "base", "sst2").batch == 32
    options.random_weights = True
    assert measure.recipe(options, "base", "rte").words
