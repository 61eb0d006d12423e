"""``fit`` for several ranks: beside the real program on four ranks, and what it refuses."""

import json
import math
import re
from collections import Counter

import pytest
import torch

import integrations
from integrations.cli import main
from integrations.estimate.fit.ranks import Ranks
from integrations.estimate.fit.sharding import RankShare
from integrations.estimate.fit.stage_ranks import make_stage_ranks, why_unplanned
from integrations.estimate.fit.static_memory import count_static_memory
from integrations.estimate.fit.tensor_parallel import _GradientReduced
from integrations.estimate.fit.trainings import make_training
from integrations.estimate.fit.ways import PLANS, Room
from integrations.estimate.forecast.dtypes import read_precision
from integrations.planner.budget import resolve_bytes
from integrations.planner.optimizers import find_optimizer

from .fit_llama import BATCH, DEEP, TOKENS, VOCABULARY, config_of, llama, sample
from .libraries import library_or_skip
from .nets import mlp, normal
from .two_ranks import run_ranks

pytestmark = pytest.mark.usefixtures("captured_once")

LAYERS = 4
OPTIONS = {"memory": "1GiB", "optimizer": "sgd", "batch": BATCH, "tokens": TOKENS, "grow": False, "device": "cpu"}

# ---- beside the real program ----

# Dimension 0 of the largest matrix is 5: four ranks pad it to 8, and two to 6.
UNEVEN = {"hidden_size": 5, "intermediate_size": 1000, "num_attention_heads": 1, "num_key_value_heads": 1}

CASES = {
    "tensors, plain": {"fsdp": 2, "tp": 2, "pp": 1, "way": "plain"},
    "tensors, checkpoint": {"fsdp": 2, "tp": 2, "pp": 1, "way": "checkpoint"},
    "tensors, lean": {"fsdp": 2, "tp": 2, "pp": 1, "way": "lean"},
    "units": {"fsdp": 4, "tp": 1, "pp": 1, "way": "plain"},
    "uneven units": {"fsdp": 4, "tp": 1, "pp": 1, "way": "plain", "config": UNEVEN, "tokens": 2},
    "adapters": {"fsdp": 4, "tp": 1, "pp": 1, "way": "plain", "lora": 5},
    "pipeline, plain": {"fsdp": 2, "tp": 1, "pp": 2, "way": "plain", "micro_batches": 4},
    "pipeline, checkpoint": {"fsdp": 2, "tp": 1, "pp": 2, "way": "checkpoint", "micro_batches": 4},
    "uneven units in a pipeline": {
        "fsdp": 2,
        "tp": 1,
        "pp": 2,
        "way": "plain",
        "micro_batches": 2,
        "config": UNEVEN,
        "tokens": 2,
    },
    "pipeline, two micro-batches": {"fsdp": 2, "tp": 1, "pp": 2, "way": "plain", "micro_batches": 2},
    "pipeline of tensors": {"fsdp": 1, "tp": 2, "pp": 2, "way": "plain", "micro_batches": 3},
    "four stages": {"fsdp": 1, "tp": 1, "pp": 4, "way": "plain", "micro_batches": 6},
}

# Beside small tensors of indices. The last tensors of a recomputation are held a little longer than in a capture.
OFF = {"plain": 0.01, "checkpoint": 0.05, "lean": 0.01}
BUFFERS = 2 * 4 * 8  # bytes of the frequencies of rotary embeddings, which the model has twice


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What each of four ranks found, by case (see ``fit_ranks_child.py``)."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    library_or_skip("transformers")
    meet = tmp_path_factory.mktemp("ranks") / "meet"
    fields = {"batch": BATCH, "tokens": TOKENS}
    cases = {name: {**fields, **case, "config": config_of_case(case).to_dict()} for name, case in CASES.items()}
    meet.with_name("meet.json").write_text(json.dumps(cases))
    return run_ranks(4, "fit_ranks_child.py", meet, timeout=300)


def config_of_case(case):
    config = config_of(LAYERS)
    config.update(case.get("config", {}))
    return config


def said(case):
    sizes = {name: case[name] for name in ("fsdp", "tp", "pp", "micro_batches", "lora", "tokens") if name in case}
    return integrations.fit(config_of_case(case), ways=[case["way"]], **{**OPTIONS, **sizes})


@pytest.mark.parametrize("name", CASES)
def test_peak_of_each_rank(measured, name):
    """The most bytes alive beyond the sharded weights, which are the same."""
    case = CASES[name]
    fit = said(case)
    way = fit.best
    for rank in (found[name] for found in measured):
        stage = rank.get("stage", 0)
        peak = way.stages[stage] if way.stages else way.peak
        weights = (fit.stages[stage].standing if fit.stages else fit.standing).weights
        assert not way.at_step
        # Gloo holds the last output that a stage sends before the first backward.
        sent = 4 * BATCH * case.get("tokens", TOKENS) * config_of_case(case).hidden_size
        held = sent if case["pp"] > 1 and stage < case["pp"] - 1 else 0
        assert abs(peak - weights - rank["peak"]) <= OFF[case["way"]] * rank["peak"] + held


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["pp"] == 1])
def test_shards_of_the_rank_with_the_most(measured, name):
    """Of parameters and of their gradients, beside those of an embedding that tensor parallelism shards."""
    fit = said(CASES[name])
    assert fit.weights - BUFFERS == max(found[name]["weights"] for found in measured)
    assert fit.gradients == max(found[name]["gradients"] for found in measured)


def rank_of(case):
    config, tokens, lora = config_of_case(case), case.get("tokens", TOKENS), case.get("lora")
    training = make_training(config, None, BATCH, tokens, read_precision(None), lora, None, "cpu")
    sgd = find_optimizer("sgd")
    room = Room(1 << 30, count_static_memory(training.model, sgd, False), 0, RankShare(), True)
    (rank,) = make_stage_ranks(training, Ranks(case["fsdp"], case["tp"]), sgd, room, None)
    return rank


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name]["pp"] == 1])
def test_saved_bytes(measured, name):
    """Those alive between forward and backward, beside the root's parameters, which FSDP2 leaves gathered."""
    case = CASES[name]
    rank = rank_of(case)
    saved = rank.profiles.of("kept" if case["way"] == "plain" else case["way"], False).held
    for found in measured:
        assert saved + rank.room.share.units.root == pytest.approx(found[name]["between"], rel=0.01)


def test_collectives_make_new_tensors():
    """An all-reduce behind the embedding, attention and the MLP, and an all-gather of the logits, put in order."""
    made = Counter(rank_of({"fsdp": 1, "tp": 2}).profiles.of("kept", False).forward)
    assert made["aten.clone.default", ((BATCH, TOKENS, 64),)] == 2 * LAYERS + 1
    assert made["aten.cat.default", ((2 * BATCH, TOKENS, VOCABULARY // 2),)] == 1
    assert made["aten.cat.default", ((BATCH, TOKENS, VOCABULARY),)] == 1
    x, gradient = normal(4, 8).requires_grad_(), normal(4, 8)
    (reduced,) = torch.autograd.grad(_GradientReduced.apply(x), x, gradient)
    assert reduced.data_ptr() != gradient.data_ptr()


def test_the_gradient_of_an_embedding_is_whole_on_each_rank():
    """As DTensors make it, until FSDP2 reduces it."""
    fits = {fsdp: integrations.fit(config_of(LAYERS), ways=["plain"], tp=2, fsdp=fsdp, **OPTIONS) for fsdp in (1, 2)}
    assert fits[1].gradients == fits[1].weights - BUFFERS + 4 * 64 * VOCABULARY // 2
    assert fits[2].gradients == fits[2].weights - BUFFERS


# ---- the answer ----


def test_a_rank_of_each_kind_takes_less():
    one = integrations.fit(config_of(LAYERS), ways=["plain"], **OPTIONS)
    for sizes in ({"fsdp": 2}, {"tp": 2}, {"pp": 2}, {"fsdp": 2, "tp": 2, "pp": 2}):
        many = integrations.fit(config_of(LAYERS), ways=["plain"], **sizes, **OPTIONS)
        assert many.ranks == math.prod(sizes.values())
        assert many.weights < one.weights
        assert many.standing.parameters == one.standing.parameters
        assert f"on each of {many.ranks} ranks" in str(many)


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages():
    fit = integrations.fit(config_of(LAYERS), ways=["plain"], pp=4, **OPTIONS)
    first, second, third, last = fit.way("plain").stages
    assert fit.best.peak == max(first, last)
    # Stages between the ends are alike, but for one micro-batch less that waits.
    hidden = 4 * BATCH * TOKENS * 64
    assert second - third > 5 * hidden
    assert "By stage of the pipeline, plain takes" in str(fit)
    assert "return_outputs=False" in str(fit)
    more = integrations.fit(config_of(LAYERS), ways=["plain"], pp=4, micro_batches=8, **OPTIONS).way("plain").stages
    assert more[1] - second >= 4 * 2 * hidden  # buffers for what comes from both sides


def test_layers_of_a_stage_are_continued():
    """From stages with two and with three layers, as those of the whole model are."""
    deep = integrations.fit(config_of(2 * DEEP), ways=["plain"], pp=2, fsdp=2, tp=2, **OPTIONS)
    assert deep.way("plain").stages[0] > 0
    wide = integrations.fit(config_of(2 * DEEP), ways=["plain"], pp=2, fsdp=2, tp=1, **OPTIONS)
    assert deep.way("plain").stages < wide.way("plain").stages


def test_larger_inputs_of_several_ranks():
    options = {**OPTIONS, "grow": True, "memory": "24MiB", "reserve": 0}
    fit = integrations.fit(config_of(LAYERS), ways=["plain"], fsdp=2, tp=2, pp=2, **options)
    assert fit.largest_batch > BATCH
    options |= {"grow": False, "batch": fit.largest_batch}
    assert integrations.fit(config_of(LAYERS), ways=["plain"], fsdp=2, tp=2, pp=2, **options).fits
    options["batch"] += 1
    assert not integrations.fit(config_of(LAYERS), ways=["plain"], fsdp=2, tp=2, pp=2, **options).fits


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_plan_leaves_room_for_what_its_rank_gathers(accumulate):
    options = {**OPTIONS, "ways": ["recompute"], "fsdp": 2, "accumulate": accumulate, "reserve": 0}
    least = integrations.fit(config_of(LAYERS), **{**options, "memory": "least"}).best
    assert least.gathered
    for factor in (1, 1.1, 1.3, 2):
        memory = int(factor * least.peak)
        way = integrations.fit(config_of(LAYERS), **{**options, "memory": memory}).way("recompute")
        assert way.code
        assert way.peak <= memory
        assert way.fits
    none = integrations.fit(config_of(LAYERS), **{**options, "memory": least.peak * 9 // 10}).way("recompute")
    assert not none.fits
    assert none.peak == least.peak


@pytest.fixture
def two_ranks():
    """Makes this process rank 1 of two of which the other is not there."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("two_ranks")
def test_a_budget_for_ranks_is_enough_for_the_sharded_model():
    """Its plan counts shards of gradients, and that of ``fit`` whole ones."""
    from torch.distributed.fsdp import fully_shard

    model = llama(LAYERS)
    for layer in model.model.layers:
        fully_shard(layer)
    made = integrations.plan(fully_shard(model), (), sample(tokens=4), error=0, loss="full", measure=False)
    options = {**OPTIONS, "ways": ["recompute"], "fsdp": 2, "reserve": 0, "tokens": 4, "accumulate": True}
    least = integrations.fit(config_of(LAYERS), **{**options, "memory": "least"}).best.peak
    way = integrations.fit(config_of(LAYERS), **{**options, "memory": int(1.01 * least)}).way("recompute")
    memory = re.search('memory="(.*?)"', way.code).group(1)
    assert made.accumulating.within(memory).peak <= resolve_bytes(memory, 0)


def test_a_plan_for_ranks_recomputes_within_units():
    """As that of the sharded model does, so that both take the same budget."""
    profiles = rank_of({"fsdp": 2, "tp": 1}).profiles
    units = frozenset(f"model.layers.{number}" for number in range(LAYERS))
    for sharded in (True, False):
        schedule = profiles.plan(0.0, True, sharded).schedule
        assert (schedule.within(units).recomputed == schedule.recomputed) is sharded


def test_plans_and_chunks_are_not_forecast_for_parts_of_a_model():
    fits = {}
    for sizes in ({"tp": 2}, {"pp": 2}):
        for memory in ("800KiB", "3MiB", "1GiB"):  # so that no way fits, some do, or the first does
            fit = integrations.fit(config_of(LAYERS), **sizes, **{**OPTIONS, "memory": memory})
            assert {way.note for way in fit.ways if way.name in PLANS} == {why_unplanned(Ranks(**sizes))}
            fits[*sizes, memory] = fit
    wide, narrow = fits["tp", "1GiB"], fits["tp", "800KiB"]
    assert [way.name for way in wide.ways] == ["plain", "recompute", "lean", "plan", "checkpoint"]
    with pytest.raises(KeyError, match="'plan' has no peak: plans are not forecast with tensor parallelism"):
        narrow.way("plan")
    for sizes, way in (({"tp": 2}, "plan"), ({"pp": 2}, "recompute"), ({"tp": 2}, "chunked"), ({"pp": 2}, "chunked")):
        with pytest.raises(ValueError, match=f"ways must not name '?{way}'? for this.*leave it out"):
            integrations.fit(config_of(LAYERS), ways=[way], **sizes, **OPTIONS)


def test_command(capsys, tmp_path):
    config_of(LAYERS).save_pretrained(tmp_path)
    path = tmp_path / "fit.json"
    mesh = ("--fsdp", "2", "--tp", "2", "--pp", "2", "--micro-batches", "4")
    arguments = ("--tokens", "64", "--ways", "plain", "lean", "--json", str(path))
    assert main(("fit", "--hf", str(tmp_path / "config.json"), "--memory", "1GiB", *mesh, *arguments)) == 0
    assert "on each of 8 ranks (fsdp 2, tp 2, pp 2)" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert (found["ranks"], found["micro_batches"], len(found["stages"])) == (8, 4, 2)
    assert main(("fit", "--hf", str(tmp_path / "config.json"), "--memory", "1GiB", "--ranks", "2", *arguments)) == 0
    assert json.loads(path.read_text())["fsdp"] == 2


# ---- errors ----

WRONG = {
    r"tp must divide num_attention_heads, 4, got 3; use one of 1, 2, 4": {"tp": 3},
    r"tp must divide num_key_value_heads, 2, got 4; use one of 1, 2": {"tp": 4},
    r"pp must divide the number of layers, 4, got 3; use one of 1, 2, 4": {"pp": 3},
    r"micro_batches must be at least pp=4 for a 1F1B schedule, got 2": {"pp": 4, "micro_batches": 2},
    r"micro_batches must be left out without a pipeline \(pp=1\), got 2": {"micro_batches": 2},
    r"fsdp must be an int, got 2.0": {"fsdp": 2.0},
    r"tp must be 1 or more, got 0": {"tp": 0},
    r"criterion must be None with pp=2": {"pp": 2, "criterion": lambda output: output.logits.sum()},
    r"args must be input_ids and labels alone with pp=2": {
        "pp": 2,
        "args": {**sample(), "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.int64)},
    },
    r"ranks is the older name of fsdp, got both": {"ranks": 2, "fsdp": 2},
}


@pytest.mark.parametrize("told", WRONG)
def test_errors(told):
    with pytest.raises((TypeError, ValueError), match=told):
        integrations.fit(config_of(LAYERS), **{**OPTIONS, **WRONG[told]})


def test_models_that_cannot_be_shared():
    options = {"memory": "1GiB", "criterion": lambda output: output.square().mean()}
    with pytest.raises(ValueError, match=r"tp must be 1 for this Sequential, got 2: it has no tp_plan"):
        integrations.fit(mlp(), (normal(4, 64),), tp=2, **options)
    with pytest.raises(ValueError, match=r"pp must be 1 for this .*, got 2: it is no causal language model"):
        integrations.fit(mlp(), (normal(4, 64),), pp=2, **options)
    words = config_of(LAYERS)
    words.vocab_size = VOCABULARY + 1
    with pytest.raises(ValueError, match=r"tp must divide the weight of .* in dimension 0, 257, got 2; use one of 1"):
        integrations.fit(words, tp=2, **OPTIONS)
    transformers = library_or_skip("transformers")
    experts = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    mixture = transformers.MixtralConfig(**{**config_of(LAYERS).to_dict(), **experts})
    with pytest.raises(ValueError, match=r"tp must be 1 for this model, got 2: its tp_plan shards .*experts"):
        integrations.fit(mixture, tp=2, **OPTIONS)
    library_or_skip("peft")
    with pytest.raises(ValueError, match=r"tp must be 1 with adapters, got 2.*leave lora out"):
        integrations.fit(llama(), sample(), lora=4, tp=2, memory="1GiB")
