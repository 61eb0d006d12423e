"""Logits that are not computed: at levels, in plans, on ranks, in models of transformers, with adapters."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import integrations
from integrations.losses import linear_cross_entropy

from .decoder import (
    BATCH,
    CLASSES,
    IDS,
    LENGTH,
    SUMS,
    WIDTH,
    Decoder,
    assert_same_step,
    exchanged,
    llama,
    shifted,
    step,
    twin,
)
from .largest import Largest
from .libraries import library_or_skip
from .nets import EIGHT_BITS, relative_error


def test_at_a_level_the_rest_is_stored_as_it_says():
    """The head's own gradient is that of exact hidden states, and what the loss keeps for backward is a gradient."""
    model = Decoder(shifted).train()
    chunked = twin(model, level="L1.1", min_bytes=0)
    _, gradients = step(chunked)
    _, expected = step(model)
    heads = {name: one for name, one in expected.items() if name.startswith("head")}
    assert relative_error(heads, gradients) <= SUMS
    assert SUMS < relative_error(expected, gradients) <= EIGHT_BITS
    rows = integrations.compression(chunked).report().rows
    assert {row.codec for row in rows if row.operator == "cross_entropy"} == {"kept"}


def test_a_loss_in_chunks_alone_is_no_forward_without_effect():
    """Logits that were never made are in no record."""
    model = twin(Decoder(shifted).train())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(model)
        step(model)


def test_a_level_with_formulas_asks_nothing_of_the_logits():
    model = Decoder(shifted).train()
    step(model)
    whole = BATCH * LENGTH * CLASSES
    for way, made in ((model, True), (twin(model, level="L1.1", recompute=True), False)):
        with Largest() as largest:
            step(way)
        assert (largest.elements >= whole) is made


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def whole_gradients(model):
    named = ((name, one.grad) for name, one in model.named_parameters())
    return {name: grad.full_tensor() if hasattr(grad, "full_tensor") else grad for name, grad in named}


@pytest.mark.parametrize("shards", [(), ("layer",)], ids=str)
@pytest.mark.usefixtures("one_rank")
def test_fully_sharded(shards):
    """FSDP listens to all outputs."""
    model = Decoder(lambda logits, ids: (shifted(logits, ids), logits)).train()
    sharded = twin(model)
    for name in shards:
        fully_shard(getattr(sharded, name))
    loss, _ = fully_shard(sharded)(IDS)
    loss.backward()
    wanted, _ = model(IDS)
    wanted.backward()
    assert abs(loss - wanted) <= 1e-6 * wanted
    assert relative_error(whole_gradients(model), whole_gradients(sharded)) <= SUMS
    assert "without logits" in exchanged(sharded)


@pytest.mark.usefixtures("one_rank")
def test_a_head_that_is_sharded_by_itself():
    """Its weight is gathered for the loss. A head that is more than a weight and a bias cannot be."""
    model = Decoder(shifted).train()
    sharded = twin(model)
    fully_shard(sharded.head)
    loss = fully_shard(sharded)(IDS)
    loss.backward()
    model(IDS).backward()
    assert relative_error(whole_gradients(model), whole_gradients(sharded)) <= SUMS
    assert "without logits" in exchanged(sharded)
    more = Decoder(shifted).train()
    more.head.forward = lambda hidden: F.linear(hidden, more.head.weight) + 1
    more = twin(more)
    fully_shard(more.head)
    with pytest.raises(
        ValueError, match=r"loss must be .full. for this model.* Linear, because it is sharded, and more"
    ):
        fully_shard(more)(IDS)
    with torch.no_grad():
        assert more(IDS).isfinite()


@pytest.mark.usefixtures("one_rank")
def test_a_loss_after_fsdp_took_the_weights_back_is_refused():
    model = fully_shard(twin(Decoder(lambda logits, ids: logits).train()), reshard_after_forward=True)
    with pytest.raises(RuntimeError, match=r"must be computed in the model's forward.*reshard_after_forward=False"):
        shifted(model(IDS), IDS)


@pytest.mark.usefixtures("one_rank")
def test_a_sharded_weight_by_itself_is_refused():
    head = fully_shard(nn.Linear(WIDTH, CLASSES))
    hidden, labels = torch.randn(4, WIDTH), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(TypeError, match=r"weight must be a plain tensor, .* or pass weight.full_tensor\(\)"):
        linear_cross_entropy(hidden, head.weight, labels)
    assert linear_cross_entropy(hidden, head.weight.full_tensor(), labels, head.bias.full_tensor()).isfinite()


@pytest.mark.usefixtures("one_rank")
def test_data_parallel():
    model = Decoder(shifted).train()
    parallel = twin(model)
    found, gradients = step(DistributedDataParallel(parallel))
    wanted, expected = step(model)
    assert abs(found - wanted) <= 1e-6 * wanted
    assert relative_error({f"module.{name}": one for name, one in expected.items()}, gradients) <= SUMS
    assert "without logits" in exchanged(parallel)


@pytest.mark.parametrize("options", [{"error": 0.1}, {"error": 0}, {"level": "L1", "checkpoint": "optimal"}], ids=str)
def test_in_a_plan(options):
    model = Decoder(shifted).train()
    chunked = twin(model, **{"level": None, **options})
    for _ in range(3):
        _, gradients = step(chunked)
    _, expected = step(model)
    assert relative_error(expected, gradients) <= (SUMS if options == {"error": 0} else 0.3)
    assert "without logits" in exchanged(chunked)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast(dtype, inside):
    """Products are in the dtype of autocast where the head is called, wherever the loss is computed."""
    model = Decoder((lambda logits, ids: logits) if not inside else shifted).train().to(dtype)
    chunked = twin(model)
    results = []
    for one in (chunked, model):
        with torch.autocast("cpu", torch.bfloat16):
            loss = one(IDS)
        if not inside:
            loss = shifted(loss, IDS)
        loss.backward()
        results.append((loss.detach(), {name: value.grad for name, value in one.named_parameters()}))
    (found, gradients), (wanted, expected) = results
    assert found.dtype == wanted.dtype == torch.float32
    assert abs(found - wanted) <= 1e-5 * wanted
    assert relative_error(expected, gradients) <= 0.02
    assert "without logits" in exchanged(chunked)


def test_copies_and_pickles_have_it_and_restoring_ends_it():
    model = twin(Decoder(shifted).train())
    wanted, _ = step(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        found, _ = step(other)
        assert torch.equal(found, wanted)
        assert "without logits" in exchanged(other)
    integrations.restore_model(model)
    assert "forward" not in vars(model.head)
    with Largest() as largest:
        step(model)
    assert largest.elements >= BATCH * (LENGTH - 1) * CLASSES


def test_a_compiled_model_has_its_own_logits():
    model = Decoder(shifted).train()
    chunked = twin(model)
    found, gradients = step(torch.compile(chunked, backend="aot_eager"))
    wanted, expected = step(model)
    assert abs(found - wanted) <= 1e-6 * wanted
    assert relative_error({f"_orig_mod.{name}": one for name, one in expected.items()}, gradients) <= SUMS


def test_a_replica_runs_with_its_own_weights():
    """``nn.DataParallel`` makes such copies, which share the dictionary's entries."""
    model = twin(Decoder(lambda logits, ids: logits).train())
    replica = model._replicate_for_data_parallel()
    replica.head = model.head._replicate_for_data_parallel()
    replica.head.weight, replica.head.bias = model.head.weight * 2, model.head.bias * 2
    with pytest.warns(UserWarning, match="a shallow copy of the compressed Decoder"):
        logits = replica(IDS)
    assert type(logits) is torch.Tensor
    assert torch.equal(logits, 2 * model.eval()(IDS))


def test_what_cannot_be_is_refused():
    model = Decoder(shifted)
    for given, message in {
        "whole": "loss must be 'chunked'",
        "chunked": "loss must name the layer that makes the logits",
        "embedding": "loss must name a linear layer.*: Embedding has no in_features",
        "nothing": "has no 'nothing'",
    }.items():
        loss = given if given in ("whole", "chunked") else {"head": given}
        with pytest.raises(ValueError, match=message):
            integrations.compress_model(model, loss=loss)
    with pytest.raises(TypeError, match="loss must be 'chunked'"):
        integrations.compress_model(model, loss=3)
    assert "forward" not in vars(model)


MODELS = {
    "Llama": {},
    "Gemma2": {},  # a cap
    "Cohere": {"eos_token_id": 2, "bos_token_id": 1},  # a scale
    "Granite": {"logits_scaling": 4.0},
    "Mixtral": {},
    "GPTNeoX": {},
    "Qwen2": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("items", [None, 77])
@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers(name, items):
    transformers, hf = library_or_skip("transformers"), library_or_skip("integrations.hf")
    sizes = {"vocab_size": CLASSES, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "use_cache": False}
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**{**sizes, **MODELS[name]})
    model = getattr(transformers, f"{name}ForCausalLM")(config).train()
    labels = IDS.masked_fill(IDS % 5 == 0, -100)

    def language_step(one):
        one.zero_grad()
        given = {} if items is None else {"num_items_in_batch": items}
        loss = one(input_ids=IDS, labels=labels, **given).loss
        loss.backward()
        return loss.detach(), {
            key: value.grad.clone() for key, value in one.named_parameters() if value.grad is not None
        }

    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    assert_same_step(language_step(chunked), language_step(model))
    assert "without logits" in exchanged(chunked)


def test_a_copy_of_the_head_that_peft_makes_is_restored_too():
    peft, hf = library_or_skip("peft"), library_or_skip("integrations.hf")
    model = hf.compress_model(llama(), level="L0", loss="chunked")
    peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"])).train()
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert "without logits" in exchanged(model)
    hf.restore_model(model)
    assert not any("forward" in vars(module) for module in model.modules() if isinstance(module, nn.Linear))


def test_a_head_that_is_gone_is_told_of():
    hf = library_or_skip("integrations.hf")
    model = hf.compress_model(llama(), level="L0", loss="chunked")
    model.resize_token_embeddings(CLASSES + 8)
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert "no loss in chunks any more, since the layer that made the logits is gone" in exchanged(model)
    hf.restore_model(model)


class Packed(nn.Parameter):
    """A weight of a kind of its own, as libraries that quantise have them."""


class Quantised(nn.Module):
    """A linear layer with a frozen weight of int8 and a scale."""

    def __init__(self):
        super().__init__()
        self.in_features, self.out_features = WIDTH, CLASSES
        self.weight = Packed(torch.randint(-127, 128, (CLASSES, WIDTH), dtype=torch.int8), requires_grad=False)

    def forward(self, hidden):
        return F.linear(hidden, self.weight.as_subclass(torch.Tensor) / 500)


def test_a_quantised_head():
    model = Decoder(shifted).train()
    model.head = Quantised()
    chunked = twin(model)
    assert_same_step(step(chunked), step(model))
    assert "without logits" in exchanged(chunked)


def test_in_forward_mode_they_are_tensors():
    model = twin(Decoder(lambda logits, ids: logits).train())
    with torch.autograd.forward_ad.dual_level():
        assert type(model(IDS)) is torch.Tensor


@pytest.mark.parametrize("level", ["L0", "L1.1"])
@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "lm_head"]], ids=str)
def test_adapters_on_the_head_and_elsewhere(targets, level):
    """At a level too the head's own are exact: what a chunk saves is gone before anybody else's backward."""
    peft, hf = library_or_skip("peft"), library_or_skip("integrations.hf")
    model = peft.get_peft_model(llama(), peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).train()
    chunked = hf.compress_model(copy.deepcopy(model), level=level, loss="chunked", min_bytes=0)
    results = []
    for one in (chunked, model):
        with Largest() as largest:
            loss = one(input_ids=IDS, labels=IDS).loss
            loss.backward()
        gradients = {name: value.grad for name, value in one.named_parameters() if value.grad is not None}
        results.append((loss.detach(), gradients, largest.elements))
    (found, gradients, most), (wanted, expected, _) = results
    assert most < BATCH * (LENGTH - 1) * CLASSES
    assert abs(found - wanted) <= 1e-6 * wanted
    heads = {name: one for name, one in expected.items() if level == "L0" or "lm_head" in name}
    assert not heads or relative_error(heads, gradients) <= SUMS
