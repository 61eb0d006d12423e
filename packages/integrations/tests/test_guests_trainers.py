"""A language model in transformers' Trainer and in TRL's SFTTrainer, at lean and with a loss in chunks."""

import itertools

import pytest
import torch

import integrations

from .guest_nets import CLASSES, LEAN, llama, whole_error
from .libraries import library_or_skip
from .trainer_nets import equal, weights

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from integrations.api.trainers.hf import CompressionCallback  # noqa: E402

BFLOAT16 = 2**-8
"""A rounding of bfloat16, relative."""


class Watching(transformers.TrainerCallback):
    """Takes the gradients of the first optimizer's step, and what the report says while the model is compressed."""

    def __init__(self):
        self.gradients, self.exchanged = None, ""

    def on_pre_optimizer_step(self, args, state, control, *, model, **kwargs):
        named = ((name, one.grad) for name, one in model.named_parameters())
        self.gradients = self.gradients or {name: grad.clone() for name, grad in named if grad is not None}

    def on_step_end(self, args, state, control, *, model, **kwargs):
        try:
            self.exchanged = integrations.compression(model).report().exchanged
        except ValueError:  # it is not compressed
            self.exchanged = ""


def texts():
    """Token ids and labels, of which some do not count."""
    ids = torch.randint(CLASSES, (32, 64), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row.masked_fill(row % 7 == 0, -100)} for row in ids]


OPTIONS = {
    "max_steps": 4,
    "save_steps": 2,
    "logging_steps": 1,
    "per_device_train_batch_size": 2,
    "learning_rate": 1e-3,
    "gradient_accumulation_steps": 3,
    "bf16": True,
    "max_grad_norm": 0,
    "use_cpu": True,
    "report_to": [],
    "disable_tqdm": True,
    "seed": 3,
}


def run(trainer, watching, resume=None):
    """The first step's gradients, the losses, the weights afterwards, and what was exchanged."""
    trainer.train(resume_from_checkpoint=None if resume is None else str(resume))
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return watching.gradients, losses, weights(trainer.model), watching.exchanged


def trained(folder, callback=None, resume=None):
    watching = Watching()
    callbacks = [watching] if callback is None else [watching, callback]
    arguments = transformers.TrainingArguments(output_dir=str(folder), **OPTIONS)
    trainer = transformers.Trainer(model=llama(), args=arguments, train_dataset=texts(), callbacks=callbacks)
    return run(trainer, watching, resume)


@pytest.mark.parametrize("level", ["L0", "lean"])
def test_accumulation_in_bf16_with_a_loss_in_chunks(tmp_path, level):
    """Gradients and losses are the plain run's within rounding, and a resumed run goes on with the same bits."""
    plain, plain_losses, _, _ = trained(tmp_path / "plain")
    made = lambda: CompressionCallback(level=level, loss="chunked")  # noqa: E731
    gradients, losses, after, exchanged = trained(tmp_path / "whole", callback := made())
    # The plain loss rounds the gradient of the logits to bfloat16, and the head's, and the one in chunks does not.
    assert whole_error(plain, gradients) <= (4 * BFLOAT16 if level == "L0" else LEAN)
    for loss, other in itertools.zip_longest(losses, plain_losses):
        assert abs(loss - other) <= BFLOAT16 * other
    assert "without logits" in exchanged
    assert exchanged == callback.handle.report().exchanged  # which the model has no more
    assert level == "L0" or callback.handle.step == OPTIONS["max_steps"] * OPTIONS["gradient_accumulation_steps"]
    assert equal(trained(tmp_path / "resumed", made(), tmp_path / "whole" / "checkpoint-2")[2], after)


# ---- TRL ----


def tokenizer():
    """Of some words, made here: nothing is downloaded."""
    tokenizers = library_or_skip("tokenizers")
    words = [*["the", "cat", "sat", "on", "mat", "a", "dog", "ran", "to", "house"], ".", "<pad>", "<eos>", "<unk>"]
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return words[:11], transformers.PreTrainedTokenizerFast(tokenizer_object=made, **special)


def fine_tuned(folder, callback=None, adapters=None, offloads=False, **options):
    """As ``run``, of TRL's SFTTrainer on sentences of several lengths."""
    datasets, trl = library_or_skip("datasets"), library_or_skip("trl")
    words, tokens = tokenizer()
    drawn = torch.Generator().manual_seed(2)
    lengths = torch.randint(20, 60, (32,), generator=drawn).tolist()
    places = [torch.randint(len(words), (length,), generator=drawn).tolist() for length in lengths]
    data = datasets.Dataset.from_dict({"text": [" ".join(words[place] for place in row) for row in places]})
    given = {**OPTIONS, "bf16": False, "max_steps": 2, "save_strategy": "no", "max_length": 64, **options}
    given.setdefault("gradient_checkpointing", False)
    watching = Watching()
    trainer = trl.SFTTrainer(
        llama(pad_token_id=11, eos_token_id=12),
        trl.SFTConfig(str(folder), **given),
        train_dataset=data,
        processing_class=tokens,
        peft_config=adapters,
        callbacks=[watching] if callback is None else [watching, callback],
    )
    if offloads:
        trainer.maybe_activation_offload_context = offloads
    return run(trainer, watching)


def lora():
    return library_or_skip("peft").LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)


FINE_TUNINGS = {
    "as it is": dict,
    "packed": lambda: {"packing": True},
    "LoRA": lambda: {"adapters": lora()},
    "bf16, checkpointed": lambda: {"bf16": True, "gradient_checkpointing": True},
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", FINE_TUNINGS)
def test_supervised_fine_tuning(tmp_path, name):
    """TRL makes no logits itself: its own loss is in chunks, and ours is not asked, which the report says."""
    library_or_skip("trl")
    plain, plain_losses, _, _ = fine_tuned(tmp_path, **FINE_TUNINGS[name]())
    callback = CompressionCallback(level="lean", loss="chunked")
    gradients, losses, _, exchanged = fine_tuned(tmp_path, callback, **FINE_TUNINGS[name]())
    assert 0 < whole_error(plain, gradients) <= LEAN
    assert abs(losses[0] - plain_losses[0]) <= (BFLOAT16 if "bf16" in name else 1e-6) * losses[0]
    assert exchanged == "Exchanged: a loss in chunks, for which no forward asked yet."
    assert callback.handle.report().ratio > (2 if "checkpointed" in name else 4)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_supervised_fine_tuning_with_activation_offloading(tmp_path):
    """TRL's hooks are around ours, and get what is saved outside of the model: the gradient is as without them."""
    library_or_skip("trl")
    module = library_or_skip("trl.models.activation_offloading")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
        theirs = module.OffloadActivations(use_pin_memory=False, use_streams=False)
    expected = fine_tuned(tmp_path, CompressionCallback(level="lean"))
    with pytest.warns(UserWarning, match="OffloadActivations around the forward has no effect"):
        found = fine_tuned(tmp_path, CompressionCallback(level="lean"), offloads=theirs)
    assert equal(expected[0], found[0])
    assert equal(expected[2], found[2])
