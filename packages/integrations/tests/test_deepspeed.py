"""DeepSpeed's ZeRO stages, where it is installed; and what stands in for it where it is not."""

import importlib.util
import json
import sys
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations
from integrations.deepspeed import initialize

from .decoder import BATCH, CLASSES, IDS, LENGTH, SUMS, Decoder, shifted, twin
from .largest import Largest
from .long_form import LONG
from .nets import normal, relative_error
from .two_ranks import run_torchrun

NOT_THERE = "deepspeed and transformers are not both installed"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two ranks found (see ``deepspeed_child.py``)."""
    if any(importlib.util.find_spec(name) is None for name in ("deepspeed", "transformers")):
        pytest.skip(NOT_THERE)
    folder = tmp_path_factory.mktemp("ranks")
    run_torchrun("deepspeed_child.py", folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("level", ["L1", "lean"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_levels_store_as_much_at_each_stage(ranks, stage, level):
    for found in ranks:
        one, plain, first = (found[f"{way} {number}"] for way, number in ((level, stage), ("plain", stage), (level, 1)))
        assert one["losses"] == pytest.approx(plain["losses"], rel=1e-3)  # rounding changes the loss after a step
        assert one["bytes"] == first["bytes"]
        assert one["rows"] == first["rows"]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_plan_is_exact_or_says_why_there_is_none(ranks, stage):
    for found in ranks:
        if stage == 3:
            assert "DeepSpeed's ZeRO-3 has partitioned the parameters" in found["plan 3"]["refused"]
        else:
            assert found[f"plan {stage}"]["losses"] == pytest.approx(found[f"plain {stage}"]["losses"], rel=1e-6)


@pytest.mark.skipif(not LONG, reason="one of the long forms: set ACTCORE_LONG=1")
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_adaptive_bits_and_bounds_on_the_error(ranks, stage):
    for found in ranks:
        plain, adaptive, bound = (found[f"{way} {stage}"] for way in ("plain", "L2", "error"))
        assert adaptive["losses"] == pytest.approx(plain["losses"], rel=1e-3)
        assert adaptive["bytes"] == found["L2 1"]["bytes"]
        if stage == 3:
            assert "DeepSpeed's ZeRO-3 has partitioned the parameters" in bound["refused"]
        else:
            assert bound["losses"][:3] == pytest.approx(plain["losses"], rel=1e-3)
            assert bound["bytes"][1] < bound["bytes"][0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_loss_in_chunks_is_computed_without_logits(ranks, stage):
    for found in ranks:
        chunked = found[f"chunked {stage}"]
        assert chunked["told"] == []  # of hooks that DeepSpeed registers on logits
        assert chunked["losses"] == pytest.approx(found[f"plain {stage}"]["losses"], rel=1e-3)
        exact, outside = found[f"chunked alone {stage}"], found[f"chunked outside {stage}"]
        assert exact["losses"] == pytest.approx(found[f"plain {stage}"]["losses"], rel=1e-6)
        assert outside["losses"] == pytest.approx(exact["losses"], rel=1e-6)
        assert "without logits" in exact["said"]
        assert "without logits" in outside["said"]


def test_a_resumed_run_rounds_as_one_without_a_break(ranks):
    for found in ranks:
        one, resumed = found["resumed"]
        assert one == resumed


# ---- without DeepSpeed ----


class Engine:
    """As much of DeepSpeed's as saves and loads checkpoints."""

    saved: dict

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True):
        Engine.saved = client_state

    def load_checkpoint(self, load_dir):
        return load_dir, dict(Engine.saved)


@pytest.fixture
def deepspeed(monkeypatch):
    """Stands in for DeepSpeed. The list has what its ``initialize`` was called with."""
    called = []

    def initialize(**given):
        called.append(given)
        if "fails" in given:
            raise RuntimeError("no such option")
        return Engine(), None, None, None

    monkeypatch.setitem(sys.modules, "deepspeed", types.SimpleNamespace(initialize=initialize))
    return called


@pytest.mark.parametrize("as_file", [False, True])
def test_options_come_from_the_configuration(deepspeed, tmp_path, as_file):
    config = {"train_batch_size": 4, "actcore": {"level": "L1", "bits": 6}}
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    model = make(nn.Linear)
    initialize(model=model, config=file if as_file else config, model_parameters=[])
    assert integrations.compression(model).level.bits == 6
    assert deepspeed == [{"model": model, "config": {"train_batch_size": 4}, "model_parameters": []}]
    assert "actcore" in config


@pytest.mark.usefixtures("deepspeed")
def test_the_state_is_saved_with_the_engines():
    runs = [make(nn.Linear), make(nn.Linear)]
    config = {"actcore": {"level": "L1", "min_bytes": 0}}
    engines = [initialize(model=model, config=config)[0] for model in runs]
    for _ in range(2):
        runs[0](normal(64, 32)).sum().backward()
    engines[0].save_checkpoint("there", client_state={"epoch": 3})
    assert engines[1].load_checkpoint("there") == ("there", {"epoch": 3})
    assert [integrations.compression(model).step for model in runs] == [2, 2]


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize(
    ("config", "error", "told"),
    [
        (
            {"train_batch_size": 4},
            ValueError,
            r'config must have a section "actcore" .* got the sections train_batch_size',
        ),
        ({"actcore": "L1"}, TypeError, "must be a mapping, got 'L1'"),
        (4, TypeError, "config must be a mapping or the path of a JSON file, got int"),
        ({"actcore": {"level": "L17"}}, ValueError, "L17"),
    ],
)
def test_what_is_no_configuration(config, error, told):
    model = make(nn.Linear)
    with pytest.raises(error, match=told):
        initialize(model=model, config=config)
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(model)


@pytest.mark.usefixtures("deepspeed")
@pytest.mark.parametrize("section", [{"level": "lean"}, {"level": "L1", "bits": 8}, {"memory": 0.9}])
def test_a_checkpoint_of_another_level_raises(section):
    engines = [initialize(model=make(nn.Linear), config={"actcore": one})[0] for one in ({"level": "L1"}, section)]
    engines[0].save_checkpoint("there")
    with pytest.raises(ValueError, match=r"the checkpoint is of a run .* give the configuration"):
        engines[1].load_checkpoint("there")


@pytest.mark.usefixtures("deepspeed")
def test_a_model_is_restored_where_deepspeed_raises():
    model = make(nn.Linear)
    with pytest.raises(RuntimeError, match="no such option"):
        initialize(model=model, config={"actcore": {"level": "L1"}}, fails=True)
    with pytest.raises(ValueError, match="is not compressed"):
        integrations.compression(model)


class Product(torch.autograd.Function):
    """As DeepSpeed's ``LinearFunctionForZeroStage3``."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.t() + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x, gradient.sum(0)


class Linear(nn.Linear):
    def forward(self, x):
        return sys.modules["deepspeed.runtime.zero.linear"].zero3_linear_wrap(x, self.weight, self.bias)


@pytest.fixture
def engine(monkeypatch):
    """Stands in for DeepSpeed's linear layers."""

    def zero3_linear_wrap(input, weight, bias=None):
        return Product.apply(input, weight, bias)

    module = types.ModuleType("deepspeed.runtime.zero.linear")
    module.zero3_linear_wrap = zero3_linear_wrap
    monkeypatch.setitem(sys.modules, module.__name__, module)


def make(kind):
    torch.manual_seed(0)
    return nn.Sequential(kind(32, 32), nn.GELU(), kind(32, 32))


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("level", ["L1", "lean"])
def test_what_a_linear_layer_of_the_engine_saves_is_stored_as_a_linear_layers(level):
    x, found = normal(64, 32), {}
    for kind in (nn.Linear, Linear):
        model = integrations.compress_model(make(kind), level=level, min_bytes=0)
        for _ in range(2):  # the second forward repeats what the first has decided
            model.zero_grad()
            model(x).square().mean().backward()
        kept = [row for row in integrations.compression(model).report().rows if not row.owner]
        rows = [(row.module, row.operator, row.role, row.codec, row.stored_bytes) for row in kept]
        found[kind] = rows, {name: one.grad for name, one in model.named_parameters()}
    assert found[Linear][0] == found[nn.Linear][0]
    assert relative_error(found[nn.Linear][1], found[Linear][1]) < 1e-6  # the same noise; sums in another order


def test_a_function_of_ones_own_is_unknown():
    class Net(nn.Linear):
        def forward(self, x):
            return F.gelu(Product.apply(x.tanh(), self.weight, self.bias))

    model = integrations.compress_model(Net(32, 32), level="L1", min_bytes=0)
    model(normal(64, 32)).square().mean().backward()
    rows = [row for row in integrations.compression(model).report().rows if not row.owner]
    assert [row.why for row in rows if not row.operator] == ["the operator that saves it is unknown"]


PARTITIONS = """
import torch
from torch.autograd import Function

heard = []

class BeforeBackward(Function):
    @staticmethod
    def forward(ctx, output, module):
        ctx.module = module
        return output.detach()

    @staticmethod
    def backward(ctx, gradient):
        gather(ctx.module)
        return gradient, None

class AfterBackward(Function):
    @staticmethod
    def forward(ctx, given, module):
        ctx.module = module
        return given.detach()

    @staticmethod
    def backward(ctx, gradient):
        release(ctx.module)
        return gradient, None

def gather(module, *_):
    for parameter in module.parameters(recurse=False):
        parameter.data = parameter.whole

def release(module, *_):
    for parameter in module.parameters(recurse=False):
        parameter.data = torch.empty(0)

def listen(gradient):
    heard.append(gradient.shape)
    return gradient / 2

def partition(model):
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            parameter.ds_status, parameter.whole = "NOT_AVAILABLE", parameter.data
        release(module)
        module.register_forward_pre_hook(gather)
        module.register_forward_pre_hook(lambda module, given: AfterBackward.apply(*given, module))
        module.register_forward_hook(release)
        module.register_forward_hook(lambda module, given, output: BeforeBackward.apply(output, module))
    model.register_forward_hook(lambda module, given, output: output.register_hook(listen) and None)
    return model
"""


@pytest.fixture
def partitions(monkeypatch):
    """Stands in for ZeRO-3: parameters have elements only while their module runs, forward or backward. The gradient of
    the model's output is halved."""
    module = types.ModuleType("deepspeed.runtime.zero.parameter_offload")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(PARTITIONS, vars(module))
    return module


def each_row(logits, ids):
    rows = F.cross_entropy(logits[:, :-1].reshape(-1, CLASSES), ids[:, 1:].reshape(-1), reduction="none")
    return (rows * torch.linspace(0, 1, len(rows))).mean()


def of_probabilities(logits, ids):
    return logits.softmax(-1).square().mean()


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("loss", [shifted, each_row, of_probabilities])
def test_the_loss_in_chunks_of_a_partitioned_head(partitions, loss, outside):
    """It is computed in a call of the head, whose hooks gather the weight."""
    model = Decoder(loss).train()
    partitioned = partitions.partition(twin(Decoder((lambda logits, ids: logits) if outside else loss).train()))
    expected = model(IDS)
    (expected / 2).backward()
    with Largest() as largest:
        found = partitioned(IDS)
        found = loss(found, IDS) if outside else found
        found.backward()
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)
    gradients = ({name: one.grad for name, one in net.named_parameters()} for net in (model, partitioned))
    assert relative_error(*gradients) <= SUMS
    assert not partitioned.head.weight.numel()
    assert len(partitions.heard) == 1
    assert (largest.elements < BATCH * LENGTH * CLASSES) is (loss is not of_probabilities)


@pytest.mark.parametrize("register", [nn.Module.register_forward_hook, nn.Module.register_forward_pre_hook])
def test_a_partitioned_head_with_hooks_of_a_user_raises(partitions, register):
    """The loss in chunks would run them twice."""
    model = partitions.partition(twin(Decoder(shifted).train()))
    handle = register(model.head, lambda *call: None)
    with pytest.raises(
        ValueError, match=r"loss must be 'full' for this model: .* it has forward hooks, which would run"
    ):
        model(IDS)
    handle.remove()
    model(IDS).backward()


def test_a_head_without_hooks_of_its_own_has_no_weight_after_the_forward_of_its_parent(partitions):
    """As in a leaf module of ZeRO-3, which gathers the parameters of all modules inside."""
    model = partitions.partition(twin(Decoder(lambda logits, ids: logits).train()))
    for hooks in (model.head._forward_pre_hooks, model.head._forward_hooks):
        hooks.clear()
    partitions.gather(model.head)
    logits = model(IDS)
    partitions.release(model.head)
    with pytest.raises(RuntimeError, match=r"must be computed in the model.s forward, because FSDP or ZeRO-3 releases"):
        shifted(logits, IDS)


def test_partitioned_parameters_cannot_be_planned_for():
    model = make(nn.Linear)
    model[0].weight.ds_status = "NOT_AVAILABLE"
    integrations.compress_model(model, memory=0.8, error=0)
    with pytest.raises(ValueError, match=r"ZeRO-3 has partitioned the parameters and .* use ZeRO-1 or 2") as refused:
        model(normal(64, 32))
    assert "a part" not in str(refused.value)
