"""An error that memory has run out says where the bytes were and what would have fitted, and costs nothing before."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations._utils.torch_internals import FakeTensor, current_graph_task_id
from integrations.report.words import format_bytes

from .libraries import library_or_skip
from .nets import mlp, normal

pytestmark = pytest.mark.usefixtures("captured_once")

FAR_TOO_MUCH = 1 << 50  # bytes


def llama():
    transformers = library_or_skip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(num_hidden_layers=2, vocab_size=512, use_cache=False, **sizes)
    return transformers.LlamaForCausalLM(config).train()


def sample():
    ids = torch.arange(128).view(2, 64)
    return {"input_ids": ids, "labels": ids}


def fails(module, args, output):
    """A forward hook in which the allocator fails; not where the forward only tells what it would take."""
    if not isinstance(output, FakeTensor):
        torch.empty(FAR_TOO_MUCH, dtype=torch.uint8)


def fails_in_backward(gradient):
    raise MemoryError("cannot allocate")


def note_of(raised):
    (note,) = raised.value.__notes__
    assert note.startswith("Memory ran out.")
    return note


def test_in_a_forward():
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters())
    with integrations.explain_oom(model):
        model(**sample()).loss.backward()
        optimizer.step()
    model.model.layers[1].register_forward_hook(fails)
    plain = integrations.fit(model, sample(), memory="1GiB", ways=["plain"], grow=False).total
    with pytest.raises(RuntimeError, match="memory") as raised, integrations.explain_oom(model, memory=plain):
        model(**sample())
    note = note_of(raised)
    count = 4 * sum(parameter.numel() for parameter in model.parameters())
    states = sum(one.nbytes for state in optimizer.state.values() for one in state.values())
    assert f"gradients {format_bytes(count)}, optimizer states {format_bytes(states)}" in note
    assert "The cheapest change that fits" in note
    assert 'level="L0", loss="chunked"' in note
    assert "with adamw" in note
    assert not model._forward_pre_hooks


def test_in_a_compressed_forward():
    """Without a block, too, and with what was stored, by module."""
    model = integrations.compress_model(llama(), level="L1", min_bytes=32)
    model.model.layers[1].register_forward_hook(fails)
    with pytest.raises(RuntimeError, match="memory") as raised:
        model(**sample())
    note = note_of(raised)
    assert "stored for backward" in note
    assert "model.layers.0.mlp" in note
    assert "call integrations.fit(model, args, memory=...), or train inside" in note
    with pytest.raises(RuntimeError) as raised, integrations.explain_oom(model, memory="1MiB"):
        model(**sample())
    assert "of 1.0 MiB" in note_of(raised)


def test_in_a_backward():
    model = llama()

    def step():
        output = model(**sample())
        output.logits.register_hook(fails_in_backward)
        output.loss.backward()

    with pytest.raises(MemoryError) as raised, integrations.explain_oom(model, memory="1GiB"):
        step()
    assert "LlamaForCausalLM" in note_of(raised)
    assert "with sgd, of 1.00 GiB, which fits" in note_of(raised)


class NoMemoryAgain(TorchDispatchMode):
    """The allocator fails in an activation that is computed in a backward."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.gelu.default and current_graph_task_id() != -1:
            torch.empty(FAR_TOO_MUCH, dtype=torch.uint8)
        return function(*args, **(kwargs or {}))


def test_in_what_a_plan_recomputes():
    """In backward, and without a block: a part of the forward runs there again."""
    layers = [layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU())]
    model = integrations.compress_model(nn.Sequential(*layers).train(), level="L0", checkpoint="optimal")
    model(normal(256, 64)).square().sum().backward()
    loss = model(normal(256, 64)).square().sum()
    with pytest.raises(RuntimeError, match="memory") as raised, NoMemoryAgain():
        loss.backward()
    note = note_of(raised)
    assert f"Memory of Sequential: weights {format_bytes(4 * 3 * 65 * 64)}, gradients" in note
    assert "stored for backward" in note
    assert "train inside of integrations.explain_oom(model)" in note


def test_what_cannot_be_told():
    model = mlp()
    with pytest.raises(MemoryError) as raised, integrations.explain_oom(model):
        raise MemoryError
    assert "The inputs are not known here: call integrations.fit" in note_of(raised)

    class Asks(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = mlp()

        def forward(self, x):
            if x.sum().item() > -1e9 and isinstance(x, FakeTensor):
                raise AssertionError
            return torch.empty(FAR_TOO_MUCH, dtype=torch.uint8)

    model = Asks()
    with pytest.raises(RuntimeError) as raised, integrations.explain_oom(model):
        model(normal(4, 64))
    assert "No change that fits is known" in note_of(raised)


def test_other_errors_are_left_alone(monkeypatch):
    model = integrations.compress_model(mlp(), level="L1")
    # An out-of-memory error would call it.
    monkeypatch.setattr(integrations.estimate.fit.oom, "_memory_in_words", None)
    with pytest.raises(RuntimeError) as raised, integrations.explain_oom(model):
        model(normal(4, 3))
    assert not getattr(raised.value, "__notes__", [])


def test_errors():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got str"), integrations.explain_oom("model"):
        pass
    with pytest.raises(ValueError, match="memory must have a unit"), integrations.explain_oom(mlp(), memory="24"):
        pass


def runs_out(module, args, output):
    """A forward hook that fails in a forward of elements."""
    if all(one.device.type != "meta" for one in module.parameters()) and not isinstance(
        next(module.parameters()), FakeTensor
    ):
        raise MemoryError


def totals_of(raised):
    """The words on what the training takes."""
    return next(line for line in note_of(raised).splitlines() if "the training takes" in line.lower())


OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "adamw-fused": lambda weights: torch.optim.AdamW(weights, fused=True),
    "adamw": lambda weights: torch.optim.NAdam(weights),  # which fit does not know, and keeps as many numbers
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_optimizers_states_are_counted(name):
    model, x = mlp(), normal(64, 64)
    optimizer = OPTIMIZERS[name](model.parameters())
    model(x).square().sum().backward()
    optimizer.step()
    expected = integrations.fit(model, x, memory="1GiB", optimizer=name, ways=["plain"], grow=False).total
    model.register_forward_hook(runs_out)
    with pytest.raises(MemoryError) as raised, integrations.explain_oom(model, memory="1GiB"):
        model(x)
    assert f"takes {format_bytes(expected)} with {name}" in totals_of(raised)


def test_optimizers_that_step_in_backward_are_all_counted():
    model = mlp()
    optimizers = [torch.optim.AdamW([weight]) for weight in model.parameters()]
    model(normal(4, 64)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()
    states = sum(one.nbytes for optimizer in optimizers for state in optimizer.state.values() for one in state.values())
    with pytest.raises(MemoryError) as raised, integrations.explain_oom(model):
        raise MemoryError
    assert f"optimizer states {format_bytes(states)}" in note_of(raised)


def test_the_forward_is_judged_as_it_was_called():
    """Under its autocast, and with its inputs by position and by name."""
    model, inputs = llama(), sample()
    options = {"memory": "1GiB", "optimizer": "sgd", "ways": ["plain"], "grow": False}
    wide, mixed = (integrations.fit(model, inputs, dtype=dtype, **options).total for dtype in (None, "bfloat16-mixed"))
    assert format_bytes(wide) != format_bytes(mixed)
    model.register_forward_hook(runs_out)
    surroundings = torch.autocast("cpu", torch.bfloat16)
    with pytest.raises(MemoryError) as raised, integrations.explain_oom(model, memory="1GiB"), surroundings:
        model(inputs["input_ids"], labels=inputs["labels"])
    assert f"takes {format_bytes(mixed)} with sgd" in totals_of(raised)


def test_of_what_is_sharded_the_ranks_own_part_is_counted():
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=2)
    try:
        model = mlp()
        whole = sum(one.nbytes for one in model.parameters())
        fully_shard(model, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
        with pytest.raises(MemoryError) as raised, integrations.explain_oom(model):
            raise MemoryError
        own = sum(one.to_local().untyped_storage().nbytes() for one in model.parameters())
        assert own < 0.6 * whole
        assert f"weights {format_bytes(own)}" in note_of(raised)
    finally:
        torch.distributed.destroy_process_group()
