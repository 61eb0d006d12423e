"""What ``fit`` answers, in Python and as a command, and what it refuses."""

import json
import re
from dataclasses import replace

import pytest
import torch
from torch import nn

import integrations
from integrations.cli import main
from integrations.estimate.fit.ways import plan_in_words

from .fit_llama import VOCABULARY, config_of, llama, sample
from .libraries import library_or_skip
from .nets import mlp, normal

pytestmark = pytest.mark.usefixtures("captured_once")

MIB = 1 << 20
ENDS = {"bos_token_id": 1, "eos_token_id": 2}


# ---- the answer ----


def test_the_cheapest_that_fits_is_the_answer():
    options = {"tokens": 128, "batch": 2, "optimizer": "sgd", "reserve": 0, "grow": False}
    every = ("plain", "chunked", "lean", "checkpoint")
    roomy = integrations.fit(config_of(1), memory="1GiB", ways=every, **options)
    assert roomy.fits
    assert roomy.code == ""
    assert roomy.answer is roomy.way("plain")
    assert "It fits as it is." in str(roomy)
    plain, chunked, lean = (roomy.way(name).peak for name in every[:3])
    assert plain > chunked > lean
    narrow = integrations.fit(config_of(1), memory=plain - 1, ways=every[:2], **options)
    assert not narrow.fits
    assert narrow.answer.name == "chunked"
    assert narrow.code in str(narrow)
    narrower = integrations.fit(config_of(1), memory=chunked - 1, ways=every[1:3], **options)
    assert narrower.answer.name == "lean"
    assert narrower.way("lean").error is None
    least = min(way.peak for way in roomy.ways)
    none = integrations.fit(config_of(1), memory=least - 1, ways=every[2:], **options)
    assert none.answer is None
    assert none.code == ""
    assert "Nothing that was tried fits" in str(none)
    # Code is broken between words alone, so that it can be copied.
    assert all(word in str(roomy) for way in roomy.ways for word in way.code.split())


def test_plans_are_searched_where_nothing_before_them_fits():
    fit = integrations.fit(config_of(), memory="1GiB", tokens=32, grow=False)
    assert [way.name for way in fit.ways] == ["plain", "chunked", "recompute", "lean", "plan", "checkpoint"]
    with pytest.raises(KeyError, match=r"'plan' has no peak: not searched.*; pass ways=\['plan'\]"):
        fit.way("plan")
    # With 256 tokens, an exact plan has the least peak, too.
    options = {"tokens": 512, "ways": ["plan"], "grow": False, "reserve": 0}
    least = integrations.fit(config_of(), memory=fit.way("chunked").peak, **options).way("plan")
    assert not least.fits
    narrow = integrations.fit(config_of(), memory=least.peak, **options)
    assert narrow.way("plan").error == 0.1
    assert narrow.way("plan").fits  # the first step, too
    assert narrow.code
    with pytest.raises(KeyError, match="got 'other'"):
        fit.way("other")


def test_an_exact_plan_is_preferred_and_the_answer_says_what_it_does():
    """To a level, which rounds without a bound. Rounding within an error is estimated beside it."""
    ways = ["recompute", "lean"]
    fit = integrations.fit(config_of(), memory="2MiB", tokens=256, optimizer="sgd", reserve=0, grow=False, ways=ways)
    assert fit.way("lean").fits
    assert fit.answer is fit.way("recompute")
    assert "error=" not in fit.code
    told = " ".join(str(fit).split())
    assert fit.answer.does.startswith("recomputes ")
    assert f"With this line, it {fit.answer.does}; gradients are exact. Predicted: " in told
    assert f" and {fit.answer.time:.2f} of the plain step's time." in told
    assert re.fullmatch(r"error=0\.1 would allow .*, by estimate", fit.answer.note)
    rounding = replace(fit, answer=fit.way("lean"))
    assert "With this line, gradients are rounded, without a bound on their error." in " ".join(str(rounding).split())


@pytest.mark.usefixtures("following_takes_no_time")
@pytest.mark.parametrize("memory", ["2.5MiB", "least"])
def test_the_line_of_code_does_what_was_said(memory):
    """With the same rates and the same search as in ``compress_model``."""
    model, inputs = llama(), sample()
    way = integrations.fit(model, inputs, memory=memory, ways=["recompute"], grow=False).way("recompute")
    assert way.fits
    exec(way.code, {"integrations": integrations, "model": model})
    model(**inputs).loss.backward()
    plan = integrations.compression(model).plan
    assert plan_in_words(plan) == way.does
    assert plan.error == 0


@pytest.mark.parametrize(("way", "axis"), [("chunked", "batch"), ("plain", "tokens")])
def test_the_largest_inputs(way, axis):
    options = {"memory": 6 * MIB, "optimizer": "sgd", "ways": [way], "reserve": 0}
    fit = integrations.fit(config_of(1), batch=2, tokens=64, **options)
    most = fit.largest_batch if axis == "batch" else fit.longest
    assert most > 2
    assert fit.grown == way
    # Chunks are whole rows, so a size that fits is not the last one to the row.
    for size, fits in (most, True), (most + max(1, most // 64), False):
        sizes = {"batch": 2, "tokens": 64, axis: size}
        assert (integrations.fit(config_of(1), **sizes, **options, grow=False).answer is not None) is fits


def test_sequences_for_which_a_model_has_no_positions():
    transformers = library_or_skip("transformers")
    config = transformers.GPT2Config(n_layer=1, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=128, **ENDS)
    fit = integrations.fit(config, memory="64MiB", tokens=64, ways=["plain"])
    assert fit.longest == 128
    assert "Longer sequences would fit, but the model has no positions for them." in str(fit)
    assert "positions" not in str(integrations.fit(config_of(1), memory="6MiB", tokens=64, ways=["plain"]))


def test_larger_inputs_of_an_exact_plan_are_judged_by_an_exact_way():
    """Lean takes less, and rounds."""
    fit = integrations.fit(llama(), sample(), memory="2.6MiB", ways=["recompute", "lean"])
    assert (fit.answer.name, fit.answer.error) == ("recompute", 0)
    assert fit.way("lean").fits
    assert fit.grown == "recompute"


def test_a_way_that_was_not_searched_has_no_error():
    missing = integrations.fit(llama(), sample(), memory="64GiB", grow=False)
    assert [line.split("│")[5].strip() for line in str(missing).splitlines() if line.startswith("│ plan")] == [""]


def test_inputs_on_meta():
    model, options = llama(), {"memory": 8 * MIB, "ways": ["chunked", "recompute"]}
    here = integrations.fit(model, sample(), **options)
    there = {name: tensor.to("meta") for name, tensor in sample().items()}
    assert integrations.fit(model, there, **options) == here


def test_a_plan_counts_gradients_that_are_there():
    options = {"memory": "least", "optimizer": "sgd", "ways": ["recompute"], "grow": False, "accumulate": True}
    fit = integrations.fit(llama(), sample(), **options)
    assert fit.best.gradients == fit.gradients
    assert fit.best.peak > fit.weights + fit.gradients + fit.inputs


def test_inputs_that_do_not_fit_at_all():
    fit = integrations.fit(config_of(), memory=2 * MIB, tokens=256, ways=["plain"])
    assert fit.answer is None
    assert fit.largest_batch == 0
    assert fit.longest < 256


def test_a_model_of_something_else():
    fit = integrations.fit(mlp(), (normal(64, 64),), memory="1MiB", criterion=lambda output: output.square().mean())
    names = [way.name for way in fit.ways]
    assert "chunked" not in names
    assert "checkpoint" not in names
    assert fit.largest_batch > 64


class Codebooks(nn.Module):
    """Takes the tokens of several codebooks."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(16, 64), nn.Linear(64, 16)

    def forward(self, input_ids):
        return self.head(self.words(input_ids).sum(1))


def test_inputs_without_one_sequence_of_tokens():
    given = {"input_ids": torch.zeros(2, 4, 32, dtype=torch.int64)}  # (batch, codebooks, length)
    options = {"memory": "1MiB", "criterion": lambda output: output.square().mean(), "ways": ["plain"]}
    fit = integrations.fit(Codebooks(), given, **options)
    assert (fit.batch, fit.tokens, fit.longest) == (2, None, None)
    with pytest.raises(ValueError, match=r"tokens must be left out for these args of Codebooks, got 8: it resizes"):
        integrations.fit(Codebooks(), given, tokens=8, **options)


def test_a_compressed_model_is_judged_as_it_is_without_that():
    model = llama()
    plain = integrations.fit(model, sample(), memory="1GiB", ways=["plain"], grow=False).total
    integrations.compress_model(model, level="L1", loss="chunked")
    assert integrations.fit(model, sample(), memory="1GiB", ways=["plain"], grow=False).total == plain
    assert integrations.compression(model)


# ---- the command ----


def test_command(capsys, tmp_path):
    config_of(1).save_pretrained(tmp_path)
    path = tmp_path / "fit.json"
    arguments = ("--tokens", "64", "--dtype", "bfloat16", "--optimizer", "sgd", "--ways", "plain", "chunked")
    given = ("fit", "--hf", str(tmp_path / "config.json"), "--memory", "1GiB", "--json", str(path), *arguments)
    assert main(given) == 0
    told = capsys.readouterr().out
    assert "optimizer states" in told
    assert "It fits as it is." in told
    assert "W weights" in told
    found = json.loads(path.read_text())
    assert found["fits"]
    assert found["total"] == found["ways"][0]["peak"]
    assert found["tokens"] == 64


def test_command_for_a_vision_model(capsys, tmp_path):
    library_or_skip("timm")
    path = tmp_path / "fit.json"
    arguments = ("--batch", "4", "--image-size", "64", "--optimizer", "sgd", "--ways", "plain", "recompute")
    assert main(("fit", "--timm", "resnet10t", "--memory", "1GiB", "--json", str(path), *arguments)) == 0
    assert "It fits as it is." in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert (found["batch"], found["tokens"]) == (4, None)
    assert [way["name"] for way in found["ways"]] == ["plain", "recompute"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--timm", "resnet10t", "--tokens", "64"), "--tokens must be left out with --timm, got 64"),
        (("--hf", "llama", "--image-size", "64"), "--image-size must be left out with --hf, got 64"),
        (("--timm", "resnet10x"), "--timm must be a model that timm has"),
    ],
    ids=str,
)
def test_command_with_options_of_another_model(arguments, message, capsys):
    library_or_skip("timm")
    assert main(("fit", *arguments, "--memory", "1GiB")) == 1
    assert message in capsys.readouterr().err


def squared(output):
    return output.square().mean()


def test_arguments_by_their_older_names():
    model, x = mlp(), normal(64, 64)
    fit = integrations.fit(model, (x,), memory="1MiB", criterion=squared, ways=["plain"], grow=False)
    older = integrations.fit(model, sample=(x,), memory="1MiB", loss=squared, ways=["plain"], grow=False)
    named = integrations.fit(model, kwargs={"input": x}, memory="1MiB", criterion=squared, ways=["plain"], grow=False)
    assert fit.total == older.total == named.total
    with pytest.raises(TypeError, match="loss is the older name of criterion, got both; pass criterion alone"):
        integrations.fit(model, (x,), memory="1MiB", criterion=squared, loss=squared)
    with pytest.raises(ValueError, match="kwargs must be None where args is a mapping"):
        integrations.fit(model, {"input": x}, {"input": x}, memory="1MiB")


def test_command_says_what_is_wrong(capsys, tmp_path):
    assert main(("fit", "--hf", "llama", "--memory", "1GiB", "--json", str(tmp_path / "no" / "fit.json"))) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(("fit", "--hf", "no-such-model", "--memory", "1GiB")) == 1
    assert "model type of transformers" in capsys.readouterr().err


# ---- errors ----

WRONG = {
    "memory must have a unit": {"memory": "24"},
    "memory must be unambiguous, got 1: write 1.0 for the whole": {"memory": 1},
    "optimizer must be one of sgd.*got 'adamx'.*adamw two": {"optimizer": "adamx"},
    "optimizer must be a name": {"optimizer": torch.optim.AdamW},
    "dtype must be one of float32.*got 'int8'": {"dtype": "int8"},
    "dtype must be one of .*got 16": {"dtype": 16},
    "lora must be a rank.*got 'rank'": {"lora": "rank"},
    "its rank r must be 1 or more": {"lora": "targets=all-linear"},
    "lora must be a rank.*got 1.5": {"lora": 1.5},
    "batch must be 1 or more, got 0": {"batch": 0},
    "fsdp must be an int, got 2.0": {"ranks": 2.0},
    "ways must be of plain.*got magic": {"ways": ["magic"]},
    "ways must be several": {"ways": "plain"},
    "reserve must be a fraction": {"reserve": 1},
    "device must be 'cpu', 'cuda' or None, got 'tpu'": {"device": "tpu"},
    "error must be at least 0": {"error": 2},
}


@pytest.mark.parametrize("told", WRONG)
def test_errors(told):
    with pytest.raises((TypeError, ValueError), match=told):
        integrations.fit(config_of(), **{"memory": "1GiB", **WRONG[told]})


def test_errors_of_the_model_and_its_sample():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, a configuration.*got dict"):
        integrations.fit({"hidden_size": 8}, memory="1GiB")
    with pytest.raises(ValueError, match="args must be the inputs of a training step of the Sequential"):
        integrations.fit(mlp(), memory="1GiB")
    ids = sample()["input_ids"]
    for given in ({"input_ids": ids}, {"input_ids": ids, "labels": None}, (ids,), {"inputs_embeds": normal(2, 64, 64)}):
        with pytest.raises(ValueError, match=r"args must have labels.*add labels=.*or give criterion="):
            integrations.fit(llama(), given, memory="1GiB")
    with pytest.raises(ValueError, match=r"memory must be more than the weights alone take, .*got 64.0 KiB.*bfloat16"):
        integrations.fit(config_of(), memory="64KiB")


def test_advice_leaves_out_what_is_in_use_already():
    library_or_skip("peft")
    options = {"memory": "700KiB", "ways": ["plain"], "tokens": 64, "grow": False}
    plain = str(integrations.fit(config_of(1), optimizer="adamw", **options))
    assert "adapters alone (lora=16), an optimizer with fewer states" in plain
    assert "more ranks (fsdp=8) take less" in plain
    used = str(integrations.fit(config_of(1), optimizer="adamw-8bit", lora=4, fsdp=16, **options))
    assert "lora=" not in used
    assert "optimizer=" not in used
    assert "more ranks (fsdp=32) take less" in used
    for dtype, advised in (("float32", True), ("bfloat16", False)):
        with pytest.raises(ValueError, match=r"shard them over more ranks \(fsdp=8\)") as error:
            integrations.fit(config_of(), memory="64KiB", dtype=dtype)
        assert ("bfloat16" in str(error.value)) is advised


def test_a_head_that_is_no_linear_layer():
    model = llama()
    model.lm_head = nn.Sequential(model.lm_head)
    fit = integrations.fit(model, sample(), memory="1GiB", ways=["plain", "lean"], grow=False)
    assert "chunked" not in fit.way("lean").code
    with pytest.raises(ValueError, match=r"ways must not name 'chunked'.*no in_features"):
        integrations.fit(model, sample(), memory="1GiB", ways=["chunked"])
