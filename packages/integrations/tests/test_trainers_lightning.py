"""``CompressionCallback`` of Lightning: real short runs of ``Trainer``, and what a resumed one goes on with."""

import copy
import logging
import shutil
import warnings

import pytest
import torch
import torch.nn.functional as F

import integrations

from .trainer_nets import classifier, equal, points, weights

lightning = pytest.importorskip("lightning.pytorch")

from integrations.lightning import CompressionCallback  # noqa: E402


class Module(lightning.LightningModule):
    """Enters its network through ``training_step``."""

    def __init__(self, fails=False):
        super().__init__()
        self.net = classifier()
        self.fails = fails

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        if self.fails:
            raise RuntimeError("the step fails")
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch, batch_idx):
        self.log("loss", F.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class ByHand(Module):
    """Manual optimization: the backward is in ``training_step``."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(F.cross_entropy(self(batch[0]), batch[1]))
        optimizer.step()


class Numbers(lightning.loggers.CSVLogger):
    """Keeps what is logged."""

    def __init__(self, folder):
        super().__init__(folder)
        self.seen = {}

    def log_metrics(self, metrics, step=None):
        self.seen |= {name: (value, step) for name, value in metrics.items()}


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def trainer_of(folder, *callbacks, steps=4, **options):
    saving = lightning.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)
    options = {"logger": False, "accelerator": "cpu", "limit_val_batches": 1, **options}
    return lightning.Trainer(
        max_steps=steps,
        callbacks=[*callbacks, saving],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **options,
    )


def loader(size=32):
    """Two batches an epoch: Lightning resumes in the middle of one only where the loader has a state of its own."""
    return torch.utils.data.DataLoader(points(), batch_size=size)


def trained(folder, callback, module=None, resume=None, **options):
    """The weights after training."""
    module = module or Module()
    callbacks = () if callback is None else (callback,)
    trainer_of(folder, *callbacks, **options).fit(module, loader(), loader(), ckpt_path=resume)
    return weights(module)


def operators(callback):
    return {row.operator for row in callback.handle.report().rows}


# ---- a run ----


def test_the_whole_step_is_compressed(tmp_path):
    """Each step is, the loss included, and no evaluation; it is the loop with a session around the step."""
    callback, module, loop = CompressionCallback(min_bytes=64), Module(), Module()
    ours = trained(tmp_path, callback, module)
    assert callback.handle.step == 4
    assert callback.handle.model is module
    assert "cross_entropy" in operators(callback)
    assert not {"forward", "training_step"} & module.__dict__.keys()
    integrations.compress_model(loop, min_bytes=64)
    handle, optimizer = integrations.compression(loop), loop.configure_optimizers()
    for batch in [*loader(), *loader()]:
        optimizer.zero_grad()
        handle.run(loop.training_step, (batch, 0), {}).backward()
        optimizer.step()
    assert equal(ours, weights(loop))
    assert not equal(ours, trained(tmp_path, None))


def test_a_submodule_is_compressed(tmp_path):
    callback, module, loop = CompressionCallback(module="net"), Module(), classifier()
    ours = trained(tmp_path, callback, module)
    assert callback.handle.model is module.net
    assert "cross_entropy" not in operators(callback)
    integrations.compress_model(loop)
    optimizer = torch.optim.AdamW(loop.parameters(), lr=1e-2)
    for x, y in [*loader(), *loader()]:
        optimizer.zero_grad()
        F.cross_entropy(loop(x), y).backward()
        optimizer.step()
    assert equal(ours, {f"net.{name}": value for name, value in weights(loop).items()})


def test_two_submodules(tmp_path):
    module = Module()
    first, second = CompressionCallback(module="net.0"), CompressionCallback("L1.1", module="net.2", min_bytes=64)
    options = {"accumulate_grad_batches": 2, "steps": 2, "logger": (logger := Numbers(tmp_path))}
    trainer = trainer_of(tmp_path, first, second, **options)
    trainer.fit(module, loader())
    assert (first.handle.step, second.handle.step) == (4, 4)
    assert logger.seen["compression_ratio/net.2"] == (second.handle.report().ratio, 2)
    state = torch.load(tmp_path / "step=2.ckpt", weights_only=False)["callbacks"]
    assert [state[callback.state_key]["level"] for callback in (first, second)] == ["L1", "L1.1"]


def test_the_report_and_the_loggers(tmp_path):
    callback, logger = CompressionCallback(report=tmp_path / "report.json"), Numbers(tmp_path)
    trained(tmp_path, callback, logger=logger)
    report = integrations.Report.from_json((tmp_path / "report.json").read_text())
    assert logger.seen["compression_ratio"] == (report.ratio, 4)
    assert report.ratio > 2


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.parametrize("named", [None, "net"])
def test_the_module_afterwards(tmp_path, restore, named):
    """It trains a second time; predictions are its own."""
    callback, module = CompressionCallback(module=named, restore=restore), Module()
    trained(tmp_path, callback, module)
    assert callback.handle.closed is restore
    assert "training_step" not in module.__dict__
    assert module.eval()(torch.ones(2, 16)).shape == (2, 4)
    module.train()
    trained(tmp_path, callback, module)
    assert callback.handle.step == (4 if restore else 8)


def test_a_step_that_fails_leaves_the_module_as_it_was(tmp_path):
    module = Module(fails=True)
    with pytest.raises(RuntimeError, match="the step fails"):
        trained(tmp_path, CompressionCallback(), module)
    assert not {"forward", "training_step"} & module.__dict__.keys()


def test_a_copy_of_the_module_in_training(tmp_path):
    """Its step is compressed by a handle of its own."""
    callback, module, found = CompressionCallback(), Module(), []

    class Copying(lightning.Callback):
        def on_train_start(self, trainer, pl_module):
            found.append(copy.deepcopy(pl_module))

    trainer_of(tmp_path, callback, Copying()).fit(module, loader())
    found[0].training_step(next(iter(loader())), 0).backward()
    assert integrations.compression(found[0]).step == 1
    assert found[0].net[0].weight.grad is not None
    assert callback.handle.step == 4


@pytest.mark.parametrize("options", [{"accumulate_grad_batches": 2}, {"precision": "bf16-mixed"}], ids=str)
def test_what_the_trainer_can_do(tmp_path, options):
    callback = CompressionCallback()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(compress|stored).*")
        trained(tmp_path, callback, **options)
    assert callback.handle.step == 4 * options.get("accumulate_grad_batches", 1)
    assert callback.handle.report().ratio > 1.5


def test_a_compiled_module(tmp_path):
    """Lightning compiles ``training_step`` then, around which the session stands."""
    callback, module = CompressionCallback(), Module()
    trainer_of(tmp_path, callback).fit(torch.compile(module, backend="aot_eager"), loader())
    assert callback.handle.step == 4
    assert callback.handle.report().ratio > 1.5


# ---- checkpoints ----


@pytest.mark.parametrize("named", [None, "net"])
@pytest.mark.parametrize("options", [{"level": "L1"}, {"level": "L2"}, {"level": "L2", "adapt_interval": 2}], ids=str)
def test_a_resumed_run_ends_with_the_same_weights(tmp_path, options, named):
    """Bit for bit; from a folder elsewhere, by a callback and a module that know nothing."""
    options = {"module": named, "min_bytes": 64, **options}
    whole, resumed = CompressionCallback(**options), CompressionCallback(**options)
    expected = trained(tmp_path / "whole", whole)
    saved = shutil.move(tmp_path / "whole" / "step=2.ckpt", tmp_path / "elsewhere.ckpt")
    assert equal(trained(tmp_path / "other", resumed, resume=saved), expected)
    assert resumed.handle.step == whole.handle.step == 4
    assert str(resumed.handle.plan) == str(whole.handle.plan)
    anew = CompressionCallback(resume=False, **options)
    assert not equal(trained(tmp_path / "anew", anew, resume=saved), expected)


def test_backward_in_the_step(tmp_path):
    """Manual optimization, at a level that measures a backward."""
    whole, resumed = (CompressionCallback("L2", min_bytes=64) for _ in range(2))
    expected = trained(tmp_path / "whole", whole, ByHand())
    assert whole.handle.plan is not None
    saved = tmp_path / "whole" / "step=2.ckpt"
    assert equal(trained(tmp_path / "resumed", resumed, ByHand(), resume=saved), expected)


def test_a_checkpoint_that_was_validated_is_not_gone_on_with(tmp_path):
    trained(tmp_path, CompressionCallback())
    callback, module = CompressionCallback(), Module()
    trainer = trainer_of(tmp_path, callback)
    trainer.validate(module, loader(), ckpt_path=tmp_path / "step=2.ckpt", verbose=False)
    trainer.fit(module, loader())
    assert callback.handle.step == 4


def test_a_checkpoint_of_a_run_without_the_callback(tmp_path):
    trained(tmp_path, None)
    callback = CompressionCallback()
    trained(tmp_path, callback, resume=tmp_path / "step=2.ckpt")
    assert callback.handle.step == 2


def test_a_checkpoint_of_another_level(tmp_path):
    trained(tmp_path, CompressionCallback("L1"))
    module = Module()
    with pytest.raises(ValueError, match=r"the checkpoint is of a run at L1, and the callback's level is L1\.1"):
        trained(tmp_path, CompressionCallback("L1.1"), module, resume=tmp_path / "step=2.ckpt")
    assert not {"forward", "training_step"} & module.__dict__.keys()


# ---- bad input ----


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"level": "L9"}, ValueError, "level must be one of L0, L1, .* got 'L9'"),
        ({"module": 3}, TypeError, "module must be the path of a submodule, such as 'net', or None, got 3"),
        ({"module": ""}, ValueError, "None means the whole module"),
        ({"checkpoint": "optimal"}, ValueError, "checkpoint needs module=, got None"),
        ({"memory": 0.5}, ValueError, "memory needs module=, got None"),
        ({"plan": "plan.json"}, ValueError, "plan needs module=, got None"),
        ({"memory": 1.5, "module": "net"}, ValueError, r"memory must be in \(0, 1\]"),
        ({"report": "report"}, ValueError, r"ends in \.json or \.html, got 'report'"),
    ],
)
def test_bad_arguments_are_told_at_once(arguments, error, message):
    with pytest.raises(error, match=message):
        CompressionCallback(**arguments)


def test_no_such_submodule(tmp_path):
    with pytest.raises(ValueError, match="module must be the path of a submodule of Module, got 'nets'; it has net"):
        trained(tmp_path, CompressionCallback(module="nets"))


def test_a_module_that_is_compressed_otherwise(tmp_path):
    module = Module()
    integrations.compress_model(module.net, "L1.1")
    with pytest.raises(ValueError, match=r"Sequential is compressed already, at L1\.1, and the callback's level is L1"):
        trained(tmp_path, CompressionCallback(module="net"), module)


class Calling(Module):
    """Has an activation that is a call."""

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(F.gelu(self.net(batch[0])), batch[1])


def test_calls_in_the_step_are_in_few_bits(tmp_path):
    """Lightning calls training_step, not forward, in which alone a converted model exchanges its calls."""
    callback = CompressionCallback("L1", activations="fewbit", min_bytes=0)
    trained(tmp_path, callback, Calling())
    assert "few-bit gelu" in operators(callback)
    assert "gelu" not in operators(callback)


def test_a_checkpoint_of_other_layers(tmp_path):
    trained(tmp_path, CompressionCallback("L1", activations=3, min_bytes=0))
    file = tmp_path / "step=2.ckpt"
    with pytest.raises(ValueError, match="activations must be the same as in the run of the checkpoint"):
        trained(tmp_path, CompressionCallback("L1", activations=2, min_bytes=0), resume=file)
    with pytest.raises(ValueError, match="activations must be the same as in the run of the checkpoint"):
        trained(tmp_path, CompressionCallback("L1", min_bytes=0), resume=file)
    trained(tmp_path, CompressionCallback("L1", activations=3, min_bytes=0), resume=file)
    trained(tmp_path, CompressionCallback("L1", activations=2, min_bytes=0, resume=False), resume=file)
