"""Logits that are not computed: their loss is that of the logits, of which all else is asked that is asked of them."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import integrations

from .largest import Largest
from .libraries import library_or_skip
from .nets import EIGHT_BITS, assert_same, relative_error

CLASSES, WIDTH, BATCH, LENGTH = 600, 32, 4, 150
IDS = torch.randint(CLASSES, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
# Gradients of up to 600 rows, summed in another order than torch's product sums them: sqrt(600) half units of 2^-24,
# and as much again by each product behind the head's.
SUMS = 5e-6


class Decoder(nn.Module):
    """A language model of one layer, and what is done to its logits."""

    def __init__(self, loss, bias=True):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(CLASSES, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=bias)
        self.loss = loss

    def forward(self, ids):
        return self.loss(self.head(torch.tanh(self.layer(self.embedding(ids)))), ids)


def shifted(logits, ids):
    return F.cross_entropy(logits[..., :-1, :].float().contiguous().view(-1, CLASSES), ids[:, 1:].reshape(-1))


def capped(logits, ids):
    return F.cross_entropy((torch.tanh(logits / 5.0) * 5.0).flatten(0, 1), ids.flatten())


def scaled(logits, ids):
    return F.cross_entropy((logits * 0.25).reshape(-1, logits.size(-1)), ids.view(-1), label_smoothing=0.1)


def masked(logits, ids):
    return nn.CrossEntropyLoss(reduction="sum", ignore_index=3)(logits[ids % 3 > 0], ids[ids % 3 > 0])


def last(logits, ids):
    return F.cross_entropy(logits[:, -40:].to(torch.float64).flatten(end_dim=1), ids[:, -40:].flatten())


def each(logits, ids):
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1), reduction="none").square().mean()


def accuracy(logits, ids):
    right = (logits.argmax(dim=-1) == ids).float().mean()
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1)) * (1 + right)


IN_CHUNKS = {call.__name__: call for call in (shifted, capped, scaled, masked, last, each, accuracy)}


def twin(model, **options):
    return integrations.compress_model(copy.deepcopy(model), loss={"head": "head"}, **{"level": "L0", **options})


def step(model, ids=IDS):
    model.zero_grad()
    loss = model(ids)
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def exchanged(model):
    return integrations.compression(model).report().exchanged


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", IN_CHUNKS)
def test_the_loss_is_that_of_the_logits_which_never_are(name, bias):
    model = Decoder(IN_CHUNKS[name], bias).train()
    chunked = twin(model)
    with Largest() as largest:
        found, gradients = step(chunked)
    wanted, expected = step(model)
    assert largest.elements < BATCH * 40 * CLASSES  # the fewest rows of which a loss is asked
    assert found.dtype == wanted.dtype
    assert abs(found - wanted) <= 1e-6 * abs(wanted)
    assert relative_error(expected, gradients) <= SUMS
    assert exchanged(chunked) == "Exchanged: a loss in chunks of 128 rows, without logits."


def softmax(logits, ids):
    return -logits.softmax(-1).gather(-1, ids[..., None]).log().mean()


def classes_second(logits, ids):
    return F.cross_entropy(logits.transpose(1, 2), ids)


def probabilities(logits, ids):
    return F.cross_entropy(logits.view(-1, CLASSES), F.one_hot(ids.view(-1), CLASSES).float())


def written(logits, ids):
    logits.masked_fill_(torch.arange(CLASSES) > 500, -1e4)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1) % 500)


def written_through_a_view(logits, ids):
    logits[:, 0] = 0
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))


def listened(logits, ids):
    logits.register_hook(lambda gradient: gradient * 2)
    return F.cross_entropy(logits.view(-1, CLASSES), ids.view(-1))


def cut_in_classes(logits, ids):
    return F.cross_entropy(logits[..., :500].reshape(-1, 500), ids.view(-1) % 500)


def squashed_twice(logits, ids):
    return F.cross_entropy(logits.tanh().tanh().view(-1, CLASSES), ids.view(-1))


def turned(logits, ids):
    return F.cross_entropy((logits.tanh() * -2).view(-1, CLASSES), ids.view(-1))


def added(logits, ids):
    return shifted(logits + 0.1 * torch.arange(CLASSES), ids)


def beside_the_loss(logits, ids):
    return shifted(logits, ids) + logits.logsumexp(-1).square().mean()


class Sum(torch.autograd.Function):
    """A Function, which no tensor's ``__torch_function__`` is asked about."""

    @staticmethod
    def forward(ctx, logits):
        ctx.shape = logits.shape
        return logits.square().sum() / 100

    @staticmethod
    def backward(ctx, gradient):
        return (gradient * torch.linspace(0, 1, ctx.shape.numel()).view(ctx.shape),)


def functions(logits, ids):
    return Sum.apply(logits.float())


WHOLE = {
    "softmax": softmax,
    "transpose": classes_second,
    "cross_entropy": probabilities,
    "masked_fill_": written,
    "__setitem__": written_through_a_view,
    "register_hook": listened,
    "__getitem__": cut_in_classes,
    "tanh": squashed_twice,
    "mul": turned,
    "add": added,
    "logsumexp": beside_the_loss,
    "": functions,
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_else_is_asked_is_asked_of_the_logits(name):
    """The very loss and gradients, where no part of them is computed in chunks; and the report says for what."""
    model = Decoder(WHOLE[name]).train()
    chunked = twin(model)
    found, gradients = step(chunked)
    wanted, expected = step(model)
    if WHOLE[name] is beside_the_loss:
        assert abs(found - wanted) <= 1e-6 * abs(wanted)
        assert relative_error(expected, gradients) <= SUMS
    else:
        assert torch.equal(found, wanted)
        assert_same(expected, gradients)
    assert f"though the logits were made, for {name}" in exchanged(chunked)


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


@pytest.mark.parametrize("options", [{"error": 0.1}, {"error": 0}, {"level": "L1", "checkpoint": "optimal"}], ids=str)
def test_in_a_plan(options):
    model = Decoder(shifted).train()
    chunked = twin(model, **{"level": None, **options})
    for _ in range(3):
        _, gradients = step(chunked)
    _, expected = step(model)
    assert relative_error(expected, gradients) <= (SUMS if options == {"error": 0} else 0.3)
    assert "without logits" in exchanged(chunked)


def test_under_autocast():
    model = Decoder(shifted).train()
    chunked = twin(model)
    with torch.autocast("cpu", torch.bfloat16):
        found, gradients = step(chunked)
        wanted, expected = step(model)
    assert found.dtype == wanted.dtype == torch.float32
    assert abs(found - wanted) <= 1e-5 * wanted
    assert relative_error(expected, gradients) <= 0.02
    assert "without logits" in exchanged(chunked)


@pytest.mark.parametrize("way", ["eval", "no_grad", "inference_mode"])
def test_without_training_they_are_tensors(way):
    model = twin(Decoder(lambda logits, ids: logits).train())
    if way == "eval":
        logits = model.eval()(IDS)
    else:
        with getattr(torch, way)():
            logits = model(IDS)
    assert type(logits) is torch.Tensor


def test_what_is_asked_of_their_shape_does_not_make_them():
    model = twin(Decoder(lambda logits, ids: logits).train())
    logits = model(IDS)
    assert (logits.shape, logits.dtype, logits.device) == ((BATCH, LENGTH, CLASSES), torch.float32, IDS.device)
    assert logits.requires_grad
    assert not logits.is_leaf
    assert "not computed" in repr(logits)
    assert "no forward asked" in exchanged(model)
    assert torch.equal(logits.detach(), model.eval()(IDS))


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


def test_what_cannot_be_is_refused():
    model = Decoder(shifted)
    for given, message in {
        "whole": "loss must be 'chunked'",
        "chunked": "does not say what makes its logits; name that layer",
        "embedding": "loss must be None .*no linear layer: a Embedding has no in_features",
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
    found, gradients = language_step(chunked)
    wanted, expected = language_step(model)
    assert abs(found - wanted) <= 1e-6 * wanted
    assert relative_error(expected, gradients) <= SUMS
    assert "without logits" in exchanged(chunked)


@pytest.mark.parametrize("level", ["L0", "L1.1"])
@pytest.mark.parametrize("targets", [["q_proj"], ["q_proj", "lm_head"]], ids=str)
def test_adapters_on_the_head_and_elsewhere(targets, level):
    """At a level too the head's own are exact: what a chunk saves is gone before anybody else's backward."""
    peft, transformers, hf = map(library_or_skip, ("peft", "transformers", "integrations.hf"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=CLASSES, use_cache=False, **sizes))
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=targets, init_lora_weights=False)).train()
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
