"""``CompressionCallback`` of transformers: real short runs of ``Trainer``, and what a resumed one goes on with."""

import json
import shutil
import warnings

import pytest
import torch

import integrations
from integrations import checkpoint

from .trainer_nets import bert, equal, sentences, weights

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from integrations.api.trainers.hf import CompressionCallback  # noqa: E402

DATA = sentences()


def trainer_of(folder, callback, model=None, **arguments):
    """A Trainer of four steps that saves after two."""
    defaults = {
        "max_steps": 4,
        "per_device_train_batch_size": 8,
        "per_device_eval_batch_size": 8,
        "learning_rate": 1e-2,
        "save_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 3,
    }
    made = transformers.TrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    return transformers.Trainer(
        model=model or bert(),
        args=made,
        train_dataset=DATA,
        eval_dataset=DATA[:8],
        callbacks=[callback] if callback is not None else [],
    )


def trained(folder, callback, resume=None, **arguments):
    """The weights after training."""
    trainer = trainer_of(folder, callback, **arguments)
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    return weights(trainer.model)


# ---- a run ----


def test_a_run_is_the_loop_with_compress_model(tmp_path):
    """It rounds, and as it would without the callback."""
    model = integrations.compress_model(bert())
    ours = trained(tmp_path / "a", CompressionCallback(), save_strategy="no")
    assert equal(ours, trained(tmp_path / "b", None, model=model, save_strategy="no"))
    assert not equal(ours, trained(tmp_path / "c", None, save_strategy="no"))


def test_the_report_and_the_log(tmp_path):
    callback = CompressionCallback(report=tmp_path / "new" / "report.json")
    trainer = trainer_of(tmp_path, callback, save_strategy="no")
    trainer.train()
    report = integrations.Report.from_json((tmp_path / "new" / "report.json").read_text())
    ours, last = trainer.state.log_history[-2:]
    assert ours["compression_ratio"] == report.ratio == callback.handle.report().ratio > 2
    assert ours["compression_original_bytes"] / ours["compression_stored_bytes"] == report.ratio
    assert ours["step"] == 4
    plain = trainer_of(tmp_path, None, save_strategy="no")
    plain.train()
    assert last.keys() == plain.state.log_history[-1].keys()
    assert "train_loss" in last


def test_the_report_as_a_page_and_printed(tmp_path, capsys):
    trained(tmp_path, CompressionCallback(report=tmp_path / "report.html"), max_steps=1, save_strategy="no")
    assert "BertForSequenceClassification" in (tmp_path / "report.html").read_text()
    capsys.readouterr()
    trained(tmp_path, CompressionCallback(report=True), max_steps=1, save_strategy="no")
    assert "L1: saved " in capsys.readouterr().out


@pytest.mark.parametrize("restore", [True, False])
def test_the_model_afterwards(tmp_path, restore):
    callback = CompressionCallback(restore=restore)
    trainer = trainer_of(tmp_path, callback, max_steps=2, save_strategy="no")
    trainer.train()
    assert ("forward" in trainer.model.__dict__) is not restore
    assert callback.handle.closed is restore
    assert trainer.predict(DATA[:8]).predictions.shape == (8, 2)
    trainer.train()  # a second time, from where the weights are
    assert callback.handle.step == (2 if restore else 4)


def test_a_model_that_was_compressed_before_stays_compressed(tmp_path):
    model = integrations.compress_model(bert(), bits=5)
    callback = CompressionCallback(bits=5)
    trained(tmp_path, callback, model=model, max_steps=1, save_strategy="no")
    assert callback.handle is integrations.compression(model)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_accumulation_steps": 2, "gradient_checkpointing": True, "label_smoothing_factor": 0.1},
        {
            "eval_strategy": "steps",
            "eval_steps": 1,
            "save_strategy": "steps",
            "save_steps": 1,
            "load_best_model_at_end": True,
        },
        {"bf16": True},
        {"auto_find_batch_size": True},
    ],
    ids=lambda options: ", ".join(options),
)
def test_what_the_trainer_can_do(tmp_path, options):
    """It trains without a warning of ours, all forwards are compressed, and no evaluation is."""
    callback = CompressionCallback()
    trainer = trainer_of(tmp_path, callback, **{"save_strategy": "no", **options})
    before = weights(trainer.model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(compress|stored).*")
        trainer.train()
    assert callback.handle.step == 4 * options.get("gradient_accumulation_steps", 1)
    assert callback.handle.report().ratio > 1.5
    assert not equal(before, weights(trainer.model))
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(trainer.model)


def test_an_adapter_of_peft(tmp_path):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(bert(), peft.LoraConfig(r=4, target_modules=["query", "value"]))
    callback = CompressionCallback()
    whole, lora = weights(model), "base_model.model.bert.encoder.layer.0.attention.self.query.lora_B.default.weight"
    after = trained(tmp_path, callback, model=model, save_strategy="no")
    assert callback.handle.model is model
    assert not torch.equal(whole[lora], after[lora])
    assert callback.handle.report().ratio > 1.5


# ---- checkpoints ----


@pytest.mark.parametrize(
    "options",
    [{"level": "L1"}, {"level": "L2"}, {"level": "L2", "adapt_interval": 2}],
    ids=["L1", "L2", "L2 measured again after the checkpoint"],
)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, options):
    """Bit for bit; from a folder elsewhere, by a callback and a model that know nothing."""
    whole = CompressionCallback(**options)
    expected = trained(tmp_path / "whole", whole)
    shutil.move(tmp_path / "whole" / "checkpoint-2", tmp_path / "elsewhere")
    resumed = CompressionCallback(**options)
    assert equal(trained(tmp_path / "other", resumed, resume=tmp_path / "elsewhere"), expected)
    assert resumed.handle.step == whole.handle.step == 4
    assert str(resumed.handle.plan) == str(whole.handle.plan)


def test_a_resumed_run_that_rounds_anew(tmp_path):
    """At another level, if that is wanted; with the state, it would have ended with the same weights."""
    expected = trained(tmp_path / "whole", CompressionCallback())
    for level in ("L1", "L1.1"):
        anew = CompressionCallback(level, resume=False)
        after = trained(tmp_path / level, anew, resume=tmp_path / "whole" / "checkpoint-2", save_strategy="no")
        assert not equal(after, expected)
        assert (anew.handle.step, anew.handle.level_name) == (2, level)


@pytest.mark.parametrize(
    "options", [{"activations": "fewbit", "linear": 0.5}, {"checkpoint": "optimal"}], ids=["exchanged", "recomputed"]
)
def test_a_resumed_run_with_other_options(tmp_path, options):
    """Sketches are drawn from torch's generators, which the Trainer saves."""
    expected = trained(tmp_path / "whole", whole := CompressionCallback(**options))
    resumed = CompressionCallback(**options)
    assert equal(trained(tmp_path / "b", resumed, resume=tmp_path / "whole" / "checkpoint-2"), expected)
    assert whole.handle.closed


def test_a_resumed_run_with_accumulation_and_checkpointing(tmp_path):
    options = {"gradient_accumulation_steps": 2, "gradient_checkpointing": True}
    expected = trained(tmp_path / "whole", CompressionCallback(), **options)
    checkpoint = tmp_path / "whole" / "checkpoint-2"
    assert equal(trained(tmp_path / "resumed", CompressionCallback(), resume=checkpoint, **options), expected)


def test_a_checkpoint_of_a_run_without_the_callback(tmp_path):
    """Its second half is compressed, from step 0 on, and saves checkpoints that have the state."""
    trained(tmp_path / "plain", None)
    callback = CompressionCallback()
    trained(tmp_path / "then", callback, resume=tmp_path / "plain" / "checkpoint-2")
    assert callback.handle.step == 2
    saved = json.loads((tmp_path / "then" / "checkpoint-4" / "trainer_state.json").read_text())
    assert saved["stateful_callbacks"]["CompressionCallback"]["attributes"]["compression"]["step"] == 2


def test_a_callback_that_the_trainer_makes_of_the_checkpoint(tmp_path):
    """Arguments and state are those of the checkpoint."""
    expected = trained(tmp_path / "whole", CompressionCallback("L1.1", min_bytes=64))
    given = CompressionCallback("L1.1")
    options = {"restore_callback_states_from_checkpoint": True, "resume": tmp_path / "whole" / "checkpoint-2"}
    assert equal(trained(tmp_path / "resumed", given, **options), expected)
    assert given.handle is None


def test_a_checkpoint_that_cannot_hold_an_argument(tmp_path):
    batch = {name: torch.stack([row[name] for row in DATA[:8]]) for name in DATA[0]}
    plan = checkpoint.plan(bert().train(), (), kwargs=batch)
    trained(tmp_path / "whole", CompressionCallback(checkpoint=plan), max_steps=2)
    trainer = trainer_of(tmp_path / "b", CompressionCallback(), restore_callback_states_from_checkpoint=True)
    with pytest.raises(ValueError, match="cannot hold the callback's checkpoint"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))


def test_a_checkpoint_holds_the_path_of_a_plan(tmp_path):
    """A path is not plain, and its text is."""
    batch = {name: torch.stack([row[name] for row in DATA[:8]]) for name in DATA[0]}
    checkpoint.plan(bert().train(), (), kwargs=batch).save(tmp_path / "plan.json")
    found = CompressionCallback(plan=tmp_path / "plan.json").state()
    assert found["args"]["plan"] == str(tmp_path / "plan.json")
    assert found["attributes"]["left_out"] == []


def test_a_checkpoint_of_another_level(tmp_path):
    trained(tmp_path / "whole", CompressionCallback("L1"))
    trainer = trainer_of(tmp_path / "other", CompressionCallback("L1.1", restore=False))
    with pytest.raises(ValueError, match=r"the checkpoint is of a run at L1, and the callback's level is L1\.1"):
        trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert "forward" not in trainer.model.__dict__


def test_a_monitor_that_raised_the_bits_is_no_other_level(tmp_path):
    callback = CompressionCallback()
    trainer = trainer_of(tmp_path, callback, max_steps=2)
    integrations.compress_model(trainer.model)
    integrations.compression(trainer.model).monitor(
        lambda: trainer.model(**{name: value[None] for name, value in DATA[0].items()}).loss.backward(),
        every=1,
        bound=1e-9,
        raise_bits=True,
    )
    with pytest.warns(UserWarning, match="error"):
        trainer.train()
    assert callback.handle.level.bits > 4
    resumed = CompressionCallback()
    with pytest.warns(UserWarning, match="a state does not contain the closure"):
        trained(tmp_path / "resumed", resumed, resume=tmp_path / "checkpoint-2", save_strategy="no")
    assert resumed.handle.level.bits == callback.handle.level.bits


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"level": "L9"}, ValueError, r"level must be one of L0, L1, .* got 'L9'"),
        ({"level": 1}, TypeError, "level must be a string"),
        ({"bit": 4}, ValueError, "options of a level are bits, .* got 'bit'"),
        ({"model": None}, ValueError, "options of a level are bits, .* got 'model'"),
        ({"report": "report.txt"}, ValueError, r"ends in \.json or \.html, got 'report\.txt'"),
        ({"report": 3}, TypeError, "report must be None, True, or a path, got 3"),
        ({"restore": 1}, TypeError, "restore must be True or False, got 1"),
        ({"resume": "x"}, TypeError, "resume must be True or False, got 'x'"),
        ({"strict": 1}, TypeError, "strict must be True or False, got 1"),
        ({"checkpoint": "best"}, ValueError, "'best'"),
        ({"plan": "absent.json"}, FileNotFoundError, "No such file"),
        ({"plan": "plan.json", "memory": 0.5}, ValueError, r"plan= cannot be combined with memory=0\.5"),
        ({"activations": 9}, ValueError, "activations must be 'fewbit' or bits from 1 to 8, got 9"),
        ({"layers": "q", "checkpoint": "optimal"}, ValueError, "checkpoint must be None with Q-layers"),
    ],
)
def test_bad_arguments_are_told_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        CompressionCallback(**arguments)


def test_a_folder_for_a_report(tmp_path):
    (tmp_path / "report.json").mkdir()
    with pytest.raises(ValueError, match="is a folder: name one in it"):
        CompressionCallback(report=tmp_path / "report.json")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": "L1.1"}, r"is compressed already, at L1\.1, and the callback's level is L1: give"),
        ({"strict": True}, r"is compressed already, with strict=True, and the callback's is False: give"),
        ({"activations": 2}, "with other values of activations, linear, layers or loss than the callback's: give"),
        ({"checkpoint": "optimal"}, "with another plan than the callback's: none: give"),
        ({"memory": 0.5, "error": 0}, "at L0, and the callback's level is L1: give"),
    ],
)
def test_a_model_that_is_compressed_otherwise(tmp_path, arguments, message):
    model = integrations.compress_model(bert(), **arguments)
    with pytest.raises(ValueError, match=message):
        trainer_of(tmp_path, CompressionCallback(), model=model).train()
    assert integrations.compression(model).step == 0


@pytest.mark.parametrize("arguments", [{"checkpoint": "optimal"}, {"memory": 0.5}])
def test_a_plan_and_the_trainers_own_checkpoints(tmp_path, arguments):
    trainer = trainer_of(tmp_path, CompressionCallback(**arguments), gradient_checkpointing=True)
    [name] = arguments
    with pytest.raises(ValueError, match=f"{name} must be None in a BertForSequenceClassification"):
        trainer.train()


def test_a_run_within_a_memory_is_the_plain_one_and_goes_on(tmp_path):
    """With no error allowed, bit for bit."""
    plain = trained(tmp_path / "a", None)
    callback = CompressionCallback(memory=0.6, error=0)
    assert equal(plain, trained(tmp_path / "b", callback))
    assert callback.handle._plan_manager.plan.segments
    resumed = CompressionCallback(memory=0.6, error=0)
    assert equal(plain, trained(tmp_path / "c", resumed, tmp_path / "b" / "checkpoint-2"))
    with pytest.raises(
        ValueError, match=r"of a run with plan\(memory=0.6, error=0\), .* plan\(memory=0.5, error=0\): give"
    ):
        trained(tmp_path / "d", CompressionCallback(memory=0.5, error=0), tmp_path / "b" / "checkpoint-2")


def test_two_callbacks(tmp_path):
    trainer = trainer_of(tmp_path, CompressionCallback())
    trainer.add_callback(CompressionCallback())
    with pytest.raises(ValueError, match="the Trainer must have one CompressionCallback, got 2"):
        trainer.train()
