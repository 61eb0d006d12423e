"""Mixtures of experts: whatever backward runs again routes as the forward did, however close the scores are."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import integrations
from integrations._utils.torch_internals import current_graph_task_id
from integrations.api.handle.remeasuring import Remeasuring
from integrations.tracing.data_dependence import Deciding as Decisions

from . import nets
from .deciding_nets import Deciding, routed
from .guest_nets import assert_averages_out, language_step, whole_error
from .libraries import library_or_skip

SIZES = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
RANKS = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
SWITCH = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
SWITCH |= {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "num_experts": 4, "expert_capacity": 128}
SWITCH |= {"dropout_rate": 0.0, "router_jitter_noise": 0.0, "decoder_start_token_id": 0, "pad_token_id": 0}
FAMILIES = {
    "MixtralForCausalLM": {"num_local_experts": 4},
    "Qwen3MoeForCausalLM": {
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "decoder_sparse_step": 1,
        "head_dim": 16,
    },
    "DeepseekV3ForCausalLM": {
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 64,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        **RANKS,
    },
    "SwitchTransformersForConditionalGeneration": SWITCH,
}
IDS = torch.randint(100, (2, 64), generator=torch.Generator().manual_seed(3))
ROUTERS = ("gate.weight", "router.classifier.weight")
DRAWS = 8
PLANNED = {"memory": 0.8, "error": 0.3, "stores": ("recompute", "bits"), "min_bytes": 0}


class Routes(TorchDispatchMode):
    """Notes the places that operators choose, in the forward and in backward."""

    def __init__(self):
        super().__init__()
        self.forward, self.again = [], []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function._schema.name in ("aten::topk", "aten::argmax", "aten::max") and len(args) > 1:
            places = result[1] if isinstance(result, tuple) else result
            noted = self.forward if current_graph_task_id() == -1 else self.again
            noted.append(places.tolist())
        return result


def mixture(name):
    """A model whose routers' scores nearly tie: what 8 bits round routes otherwise."""
    transformers = library_or_skip("transformers")
    kind = getattr(transformers, name)
    torch.manual_seed(0)
    model = kind(kind.config_class(**{**SIZES, **FAMILIES[name]})).train()
    model.config.use_cache = False
    for weight in (one for path, one in model.named_parameters() if path.endswith(ROUTERS)):
        with torch.no_grad():
            weight.copy_(weight[:1] + 1e-4 * weight)
    return model


def step(model):
    """The gradients, and what was chosen."""
    with Routes() as routes:
        _, gradients = language_step(model, input_ids=IDS, labels=IDS)
    assert routes.forward
    return gradients, routes


def compressed_steps(model, count=DRAWS, **options):
    hf = library_or_skip("integrations.hf")
    model = hf.compress_model(model, **options)
    step(model)  # the second repeats what the first decided
    return [step(model) for _ in range(count)]


@pytest.mark.parametrize("name", FAMILIES)
def test_formulas_choose_nothing(name):
    """At lean, backward computes from rounded values again, and no expert is chosen from them."""
    model = mixture(name)
    expected, plain = step(copy.deepcopy(model))
    found = compressed_steps(model, level="lean")
    for _, routes in found:
        assert routes.forward == plain.forward
        assert routes.again == []
    # Of another expert than the forward's, the error would be of the size of the gradient itself.
    assert whole_error(expected, found[0][0]) < 0.15
    assert_averages_out(expected, [gradients for gradients, _ in found])


@pytest.mark.parametrize("level", ["L1", "lean"])
@pytest.mark.parametrize("name", FAMILIES)
def test_checkpointed_layers_choose_as_before(name, level):
    """Each router is run again in backward, by transformers' own checkpoints, of which this level stores the inputs."""
    model = mixture(name)
    expected, plain = step(copy.deepcopy(model))
    model.gradient_checkpointing_enable()
    for gradients, routes in (found := compressed_steps(model, count=2, level=level)):
        assert routes.forward == plain.forward
        assert sorted(map(str, routes.again)) == sorted(map(str, plain.forward))
        assert whole_error(expected, gradients) < 0.15
    assert len(found) == 2


def test_rounded_inputs_would_have_chosen_otherwise(monkeypatch):
    """What the test above is worth: without what notices decisions, the same model routes otherwise in backward."""
    monkeypatch.setattr(Decisions, "decides", lambda self, call, outputs: False)
    model = mixture("MixtralForCausalLM")
    model.gradient_checkpointing_enable()
    _, routes = compressed_steps(model, count=1, level="L1")[0]
    assert len(routes.again) == len(routes.forward)
    assert sorted(map(str, routes.again)) != sorted(map(str, routes.forward))


def test_a_plan_at_a_level_chooses_as_before():
    model = mixture("MixtralForCausalLM")
    expected, plain = step(copy.deepcopy(model))
    for gradients, routes in compressed_steps(model, count=2, level="L1", checkpoint="optimal"):
        assert routes.forward == plain.forward
        assert all(places in plain.forward for places in routes.again)
        assert whole_error(expected, gradients) < 0.3
    codecs = {row.codec.partition("(")[0] for row in integrations.compression(model).report().rows}
    assert {"recomputed", "GroupAffine"} <= codecs


def test_a_plan_that_rounds_and_recomputes_chooses_as_before(monkeypatch):
    """Of values: two experts of four, whose scores nearly tie, between layers that are recomputed."""
    monkeypatch.setattr(Remeasuring, "waits", lambda *given: False)  # steps aside choose, too
    model, x = Deciding(routed).train(), nets.normal(256, 32)
    with torch.no_grad():
        model.table[:4] = model.table[:1] + 1e-4 * model.table[:4]
    found = []
    for one in (copy.deepcopy(model), integrations.compress_model(model, **PLANNED)):
        nets.gradients(one, x)  # which is planned for
        with Routes() as routes:
            found.append((nets.gradients(one, x), routes))
    (expected, plain), (rounded, routes) = found
    assert routes.forward == plain.forward
    assert all(places in plain.forward for places in routes.again)
    assert 0 < whole_error(expected, rounded) < PLANNED["error"]
    codecs = {row.codec.partition("(")[0] for row in integrations.compression(model).report().rows}
    assert {"recomputed", "GroupAffine"} <= codecs
