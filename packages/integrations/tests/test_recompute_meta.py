"""A model that has shapes and no memory can be planned for."""

import pytest
import torch
from torch import nn

from integrations import checkpoint

from .nets import Net, mlp, normal

LLAMA = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "use_cache": False}


def llama(**fields):
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**LLAMA, **fields})).train()


def inputs(device, batch=2, tokens=16):
    ids = torch.arange(batch * tokens, device=device).reshape(batch, tokens) % 64
    return {"input_ids": ids, "labels": ids}


@pytest.mark.parametrize("model_on", ["cpu", "meta"])
@pytest.mark.parametrize("inputs_on", ["cpu", "meta"])
def test_a_plan_on_meta_is_the_one_with_memory(model_on, inputs_on):
    with torch.device(model_on):
        model = llama(num_hidden_layers=2)
    made = checkpoint.plan(model, inputs(inputs_on))
    assert not made.graph.note
    assert made == checkpoint.plan(llama(num_hidden_layers=2), inputs("cpu"))


def test_a_plan_on_meta_is_followed_by_the_model_with_memory(recwarn):
    with torch.device("meta"):
        plan = checkpoint.plan(mlp().train(), torch.empty(32, 64))
    model = mlp().train()
    checkpoint.apply(model, plan)
    model(normal(32, 64)).sum().backward()
    assert not recwarn.list


def test_a_model_of_eight_billion_parameters():
    """Llama 3 8B, whose weights and gradients would take 64 GB."""
    with torch.device("meta"):
        model = llama(
            vocab_size=128256,
            hidden_size=4096,
            intermediate_size=14336,
            num_hidden_layers=32,
            num_attention_heads=32,
            num_key_value_heads=8,
        )
    plan = checkpoint.plan(model, inputs("meta", batch=4, tokens=2048))
    assert sum(parameter.numel() for parameter in model.parameters()) > 8e9
    assert plan.graph.gradients > 32e9
    assert plan.accumulating.peak < 0.5 * plan.accumulating.plain_peak


def test_what_a_forward_looks_at_has_to_have_elements():
    def looks(self, x, mask):
        return x @ self.w if bool(mask.all()) else x * self.w.sum()

    model = Net(looks, w=torch.eye(8)).train()
    x, mask = normal(4, 8), torch.ones(4, dtype=torch.bool)
    model = model.to("meta")
    assert not checkpoint.plan(model, (x.to("meta"), mask)).graph.note
    with pytest.raises(ValueError, match=r"must have data for a capture on real tensors.*: fix the error"):
        checkpoint.plan(model, (x, mask.to("meta")))
    with pytest.raises(ValueError, match="are on the meta device"):
        checkpoint.plan(nn.Sequential(nn.Linear(8, 8)).to("meta").train(), x, real=True)
