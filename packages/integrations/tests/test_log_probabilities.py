"""Log-probabilities of chosen tokens without logits, in losses as trainers of preferences and rewards write them."""

import copy

import pytest
import torch
import torch.nn.functional as F

from integrations.losses import linear_cross_entropy

from .decoder import BATCH, CLASSES, IDS, LENGTH, SUMS, exchanged, llama
from .largest import Largest
from .libraries import library_or_skip
from .nets import relative_error

MASK = (torch.arange(LENGTH - 1) >= 40).float().expand(BATCH, -1)  # the completion's tokens


def log_probabilities(logits, ids):
    """The log-probability of each token after the first, as most code computes it."""
    return torch.gather(logits[:, :-1].log_softmax(-1), 2, ids[:, 1:].unsqueeze(2)).squeeze(2)


def selective(logits, ids):
    """The same in the form of TRL's ``selective_log_softmax`` for float32."""
    selected = torch.gather(logits[:, :-1], dim=-1, index=ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return selected - torch.stack([torch.logsumexp(row, dim=-1) for row in logits[:, :-1]])


def dpo(model, reference, of_tokens):
    sums = [(of_tokens(one(input_ids=IDS).logits, IDS) * MASK).sum(-1) for one in (model, reference)]
    margins = sums[0] - sums[1].detach()
    return -F.logsigmoid(0.1 * (margins[: BATCH // 2] - margins[BATCH // 2 :])).mean()


def grpo(model, reference, of_tokens):
    chosen, of_reference = (of_tokens(one(input_ids=IDS).logits / 0.9, IDS) for one in (model, reference))
    ratio = torch.exp(chosen - chosen.detach() + 0.1 * torch.sin(torch.arange(LENGTH - 1.0)))
    advantages = torch.tensor([1.3, -0.7, 0.4, -1.0])[:, None]
    clipped = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    apart = of_reference.detach() - chosen
    return -((clipped - 0.04 * (apart.exp() - apart - 1)) * MASK).sum() / MASK.sum()


def decoder(kind):
    if kind == "GPT2":
        transformers = library_or_skip("transformers")
        torch.manual_seed(0)
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": LENGTH, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        config = transformers.GPT2Config(vocab_size=CLASSES, use_cache=False, attn_pdrop=0.0, **sizes)
        return transformers.GPT2LMHeadModel(config).train()
    return llama()


def gradients_of(loss, model, reference, of_tokens):
    with Largest() as largest:
        found = loss(model, reference, of_tokens)
        found.backward()
    return found.detach(), {name: one.grad for name, one in model.named_parameters() if one.requires_grad}, largest


@pytest.mark.parametrize("of_tokens", [log_probabilities, selective])
@pytest.mark.parametrize("loss", [dpo, grpo])
@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_losses_of_preferences_and_rewards(kind, loss, of_tokens):
    hf = library_or_skip("integrations.hf")
    model = decoder(kind)
    reference = copy.deepcopy(model).requires_grad_(False)
    torch.nn.init.normal_(reference.get_output_embeddings().weight, std=0.03)
    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    wanted, expected, _ = gradients_of(loss, model, reference, of_tokens)
    found, gradients, _ = gradients_of(loss, chunked, reference, of_tokens)
    # A sum of some 110 log-probabilities, each of which is off by a few units of 2^-21.
    assert abs(found - wanted) <= 1e-5 * max(1.0, abs(wanted))
    assert relative_error(expected, gradients) <= SUMS
    assert "of 128 rows, without logits" in exchanged(chunked)


def test_a_policy_alone_never_has_its_logits():
    hf = library_or_skip("integrations.hf")
    model = hf.compress_model(decoder("Llama"), level="L0", loss="chunked")

    def loss(policy, _, of_tokens):
        return -(of_tokens(policy(input_ids=IDS).logits, IDS) * MASK).mean()

    assert gradients_of(loss, model, None, log_probabilities)[2].elements < BATCH * (LENGTH - 1) * CLASSES


@pytest.mark.parametrize("loss", [dpo, grpo])
@pytest.mark.parametrize("of_tokens", [log_probabilities, selective])
def test_a_head_with_an_adapter(loss, of_tokens):
    """Such a head is called for each chunk, and once more in backward with the same random numbers."""
    peft, hf = library_or_skip("peft"), library_or_skip("integrations.hf")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"], init_lora_weights=False)
    model = peft.get_peft_model(decoder("Llama"), config).train()
    reference = copy.deepcopy(decoder("Llama")).requires_grad_(False)
    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    wanted, expected, _ = gradients_of(loss, model, reference, of_tokens)
    found, gradients, _ = gradients_of(loss, chunked, reference, of_tokens)
    assert abs(found - wanted) <= 1e-5 * max(1.0, abs(wanted))
    assert relative_error(expected, gradients) <= SUMS
    assert "without logits" in exchanged(chunked)


def test_an_adapter_that_drops_draws_the_same_numbers_in_backward():
    peft, hf = library_or_skip("peft"), library_or_skip("integrations.hf")
    config = peft.LoraConfig(r=4, target_modules=["lm_head"], init_lora_weights=False, lora_dropout=0.5)
    model = peft.get_peft_model(decoder("Llama"), config).train()
    model = hf.compress_model(model, level="L0", loss="chunked")
    name, weight = next((name, one) for name, one in model.named_parameters() if "lora_B" in name)

    def loss():
        torch.manual_seed(7)
        return log_probabilities(model(input_ids=IDS).logits, IDS).sum()

    loss().backward()
    step = torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 2**-8
    weight.data += step
    above = loss().double()
    weight.data -= 2 * step
    below = loss().double()
    # The loss is nearly linear over the step; its sums of some 600 numbers are off by 1e-3 at most.
    wanted = (above - below) / 2
    assert abs(wanted - (weight.grad * step).sum()) <= 0.02 * abs(wanted), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_in_16_bits(dtype):
    """Values have the dtype of the logits, and their errors are those of rounding the logits to it."""
    hf = library_or_skip("integrations.hf")
    model = decoder("Llama").to(dtype)
    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    found, wanted = (log_probabilities(one(input_ids=IDS).logits, IDS) for one in (chunked, model))
    assert found.dtype == wanted.dtype == dtype
    # One unit in the last place of numbers from 4 to 8.
    assert (found - wanted).abs().max() <= 8 * torch.finfo(dtype).eps
    results = []
    for one, values in ((chunked, found), (model, wanted)):
        (values.float() * MASK).sum().backward()
        results.append({name: value.grad.float() for name, value in one.named_parameters()})
    assert relative_error(results[1], results[0]) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast(dtype):
    hf = library_or_skip("integrations.hf")
    model = decoder("Llama")
    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = (
            F.log_softmax(one(input_ids=IDS).logits.to(dtype), -1).gather(-1, IDS[..., None])
            for one in (chunked, model)
        )
    assert found.dtype == wanted.dtype == dtype
    assert (found - wanted).abs().max() <= 8 * torch.finfo(torch.bfloat16).eps


def test_the_loss_of_each_row_is_its_negative_log_probability():
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 8), torch.randn(30, 8)
    ids = torch.arange(9)
    wanted = (hidden @ weight.T).log_softmax(-1).gather(-1, ids[:, None]).squeeze(-1)
    found = -linear_cross_entropy(hidden, weight, ids, reduction="none")
    assert (found - wanted).abs().max() <= 1e-5  # sums of 8 products of numbers up to 3, in float32


def test_a_class_that_is_none_is_refused():
    hf = library_or_skip("integrations.hf")
    model = hf.compress_model(decoder("Llama"), level="L0", loss="chunked")
    wrong = torch.where(torch.arange(LENGTH) == 5, -100, IDS)
    with pytest.raises(ValueError, match="labels must be classes from 0 to 599"):
        log_probabilities(model(input_ids=IDS).logits, wrong)


def test_several_classes_of_a_row_take_whole_logits():
    """As in distillation from a teacher's largest classes: in chunks, each would compute the row's logits again."""
    hf = library_or_skip("integrations.hf")
    model = decoder("Llama")
    chunked = hf.compress_model(copy.deepcopy(model), level="L0", loss="chunked")
    rows, classes = torch.arange(LENGTH)[:, None], torch.arange(8).expand(LENGTH, 8)

    def loss(policy, _, of_tokens):
        return -torch.log_softmax(policy(input_ids=IDS[:1]).logits[0], -1)[rows, classes].mean()

    wanted, expected, plain = gradients_of(loss, model, None, None)
    found, gradients, largest = gradients_of(loss, chunked, None, None)
    assert abs(found - wanted) <= 1e-5
    assert relative_error(expected, gradients) <= SUMS
    assert largest.elements <= plain.elements
