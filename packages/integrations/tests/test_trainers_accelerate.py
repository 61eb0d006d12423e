"""The accelerate recipe: with the handle registered for checkpointing, a resumed run goes on as one without a break."""

import pytest
import torch
import torch.nn.functional as F

import integrations

from .trainer_nets import bert, equal, sentences, weights

accelerate = pytest.importorskip("accelerate")
pytest.importorskip("transformers")

STEPS = 6


class Run:
    """What a user writes."""

    def __init__(self, level="L1", mixed_precision="no", accumulate=1):
        self.accelerator = accelerate.Accelerator(
            cpu=True, mixed_precision=mixed_precision, gradient_accumulation_steps=accumulate
        )
        model = integrations.compress_model(bert(), level)
        self.handle = integrations.compression(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        loader = torch.utils.data.DataLoader(sentences(8 * STEPS), batch_size=8)
        self.plain = model
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, optimizer, loader)
        self.accelerator.register_for_checkpointing(self.handle)

    def train(self, first=0, last=STEPS, save=None, folder=None):
        """The steps from ``first`` on, and the weights after."""
        self.model.train()
        for index, batch in enumerate(self.loader):
            if not first <= index < last:
                continue
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(**batch).loss)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if index + 1 == save:
                self.accelerator.save_state(str(folder))
        return weights(self.plain)


@pytest.fixture(autouse=True)
def fresh_accelerator():
    """Accelerate keeps mixed precision and its settings for all of a process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize("save", [2, 3], ids=["right after the measurement", "under the plan"])
@pytest.mark.parametrize("level", ["L1", "L2"])
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, level, save):
    whole = Run(level)
    expected = whole.train(save=save, folder=tmp_path / "saved")
    resumed = Run(level)
    resumed.accelerator.load_state(str(tmp_path / "saved"))
    assert resumed.handle.step == save
    assert equal(resumed.train(first=save), expected)
    anew = Run(level)
    beginning = anew.handle.state_dict()
    anew.accelerator.load_state(str(tmp_path / "saved"))
    anew.handle.load_state_dict(beginning)
    assert not equal(anew.train(first=save), expected)


def test_mixed_precision_and_accumulation(tmp_path):
    """Accelerate wraps the compressed forward; that can be undone all the same."""
    whole = Run(mixed_precision="bf16", accumulate=2)
    expected = whole.train(save=4, folder=tmp_path / "saved")
    assert whole.handle.step == STEPS
    assert whole.handle.report().ratio > 1.5
    resumed = Run(mixed_precision="bf16", accumulate=2)
    resumed.accelerator.load_state(str(tmp_path / "saved"))
    assert equal(resumed.train(first=4), expected)
    integrations.restore_model(whole.plain)
    whole.train(last=1)
    assert whole.handle.step == STEPS


def test_a_loss_outside_of_the_model():
    run = Run()
    batch = next(iter(run.loader))
    labels = batch.pop("labels")
    run.accelerator.backward(F.cross_entropy(run.model(**batch).logits, labels))
    assert run.handle.report().ratio > 1.5
